"""The Flower `ClientApp` that runs NumPyClients."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coprefl_flwr.arrays import records_of
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.flower import Client, NumPyClient
from coprefl_flwr.federation.hosting import answer
from coprefl_flwr.federation.machine import keep_freed_memory

ClientFn = Callable[..., NumPyClient | Client]
OwnClients = Sequence[int] | Callable[[Context, str], Sequence[int] | None] | None


def client_app(
    client_fn: ClientFn, clients: OwnClients = None, actions: Sequence[str] = ("query",)
) -> ClientApp:
    """Return a `ClientApp` that runs NumPyClients for this package's and for Flower's strategies.

    `client_fn(context)`, `client_fn(context, client_id)` or `client_fn(context, client_id, config)`
    returns the `NumPyClient` of a client. `config` is the config of the request, with population,
    server-round and the settings that the server app sends. `client_fn` is called for every
    message, so it should cache objects that are slow to create.

    `clients` are the clients of this node. None means one client, whose id is the node's
    `partition-id`. A list holds the ids of several clients. A function of (context, population)
    returns None or a list of ids. If any node can run any client, as in a simulation, give
    `clients=N`, the number of all clients, to the strategy; `clients` here is then ignored.

    `actions` are the names of further exchanges that the clients answer. For the message type
    "train.NAME", the client's method NAME is called.
    """
    takes = _arguments(client_fn)
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        keep_freed_memory()
        partition_id = context.node_config.get("partition-id")
        own = clients[0] if isinstance(clients, Sequence) else partition_id

        def make(client_id: int | None, config: Mapping[str, Any]) -> NumPyClient:
            if takes < 2:
                _refuse_other(client_id, own)
            elif client_id is None:
                client_id = _partition_id(context)
            client: Any = client_fn(*(context, client_id, config)[:takes])
            unwrapped: NumPyClient = getattr(client, "numpy_client", client)  # Of `to_client`.
            return unwrapped

        return answer(message, make, partition_id)

    def roster(message: Message, context: Context) -> Message:
        population = str(records_of(message.content, ConfigRecord)["config"].get("population", ""))
        own = clients(context, population) if callable(clients) else clients
        reply = roster_reply(message, context, own)
        records_of(reply.content, ConfigRecord)["roster"]["runs-clients"] = True
        return reply

    app.train()(handle)
    app.evaluate()(handle)
    app.query("roster")(roster)
    for action in actions:
        app.train(action)(handle)
    return app


def roster_reply(message: Message, context: Context, own: Sequence[int] | None = None) -> Message:
    """Return a node's answer to a strategy that asks for the ids of the node's clients.

    An app that is written with functions registers it by `app.query("roster")(roster_reply)`. Its
    node is then one client, whose id is the node's `partition-id`. `own` are other ids.
    """
    ids = [_partition_id(context)] if own is None else list(map(int, own))
    record = ConfigRecord({"own": ids})
    if "name" in context.node_config:
        record["name"] = str(context.node_config["name"])
    return Message(RecordDict({"roster": record}), reply_to=message)


def _arguments(client_fn: ClientFn) -> int:
    """Return the number of arguments without a default."""
    parameters = inspect.signature(client_fn).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in parameters)


def _refuse_other(client_id: int | None, own: object) -> None:
    """Refuse the id of another client than the node's client `own`: `client_fn` takes no id."""
    if client_id is not None and str(client_id) != str(own):
        other = f"the node must run client {client_id}, which is not its own"
        raise SettingsError(f"{other}: write client_fn(context, client_id)")


def _partition_id(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise SettingsError("node-config has no partition-id: start the node with one")
    return int(str(context.node_config["partition-id"]))
