"""Clients of the table of behaviours: a message's config says which of them does what."""

import os

from coprefl_flwr.clients import client_app
from tests.chaos.behaviours import clients_behave
from tests.chaos.hostile import Client
from tests.chaos.simulated import EXIT


def client_fn(context, client_id, config):
    exchange, behaviour = str(config["exchange"]), str(config["behaviour"])
    change = (clients_behave(exchange) | {EXIT: lambda *_: os._exit(3)})[behaviour]
    return Client(client_id, {(int(config["hostile"]), exchange): change})


def hosted(context, population):
    """Return how many clients every node can host, or this node's own."""
    return int(context.run_config["clients"]) or [int(context.node_config["partition-id"])]


app = client_app(client_fn, clients=hosted)
