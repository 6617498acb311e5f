"""Clients with hostile behaviours: the config of a message names the client and the behaviour."""

import os

from coprefl_flwr.clients import client_app
from tests.chaos.behaviours import clients_behave
from tests.chaos.hostile import Client
from tests.chaos.simulated import EXIT


def client_fn(context, client_id, config):
    exchange, behaviour = str(config["exchange"]), str(config["behaviour"])
    change = (clients_behave(exchange) | {EXIT: lambda *_: os._exit(3)})[behaviour]
    return Client(client_id, {(int(config["hostile"]), exchange): change})


app = client_app(client_fn)
