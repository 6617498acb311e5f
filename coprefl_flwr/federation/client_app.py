"""The Flower `ClientApp` around NumPyClients."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp

from coprefl_flwr.arrays import records_of
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.hosting import answer
from coprefl_flwr.federation.machine import keep_freed_memory

ClientFn = Callable[..., NumPyClient | Client]
OwnClients = Sequence[int] | Callable[[Context, str], Sequence[int] | None] | None


def client_app(
    client_fn: ClientFn, clients: OwnClients = None, actions: Sequence[str] = ("query",)
) -> ClientApp:
    """Return the `ClientApp` that runs NumPyClients for our strategies, and for Flower's own.

    `client_fn(context)`, `client_fn(context, client_id)` or `client_fn(context, client_id, config)`
    returns the `NumPyClient` of a client; `config` is the request's: population, server-round and
    what the server app sends. It is called for every message, so it should keep in a cache what
    takes time to make.

    `clients` are those of this node, where nodes are asked for theirs: None for one client, whose
    id is the node's `partition-id`; the ids of several; or a function of (context, population) that
    returns None or ids. Where any node can run any client, as in a simulation, the strategy is
    given `clients=N`, their number, and `clients` here is not heeded. `actions` are
    further exchanges the clients answer: "train.NAME" calls their method NAME.
    """
    takes = _arguments(client_fn)
    _check_hosting(takes, clients)
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        keep_freed_memory()
        partition_id = context.node_config.get("partition-id")

        def make(client_id: int | None, config: Mapping[str, Any]) -> NumPyClient:
            own = clients[0] if isinstance(clients, Sequence) else partition_id
            return _call(client_fn, takes, context, client_id, config, own)

        return answer(message, make, partition_id)

    def roster(message: Message, context: Context) -> Message:
        population = str(records_of(message.content, ConfigRecord)["config"].get("population", ""))
        own = clients(context, population) if callable(clients) else clients
        _refuse_number(own)
        ids = [_partition_id(context)] if own is None else list(map(int, own))
        return Message(RecordDict({"roster": ConfigRecord({"own": ids})}), reply_to=message)

    app.train()(handle)
    app.evaluate()(handle)
    app.query("roster")(roster)
    for action in actions:
        app.train(action)(handle)
    return app


def _check_hosting(takes: int, clients: OwnClients) -> None:
    """Refuse a node without clients, and several where `client_fn` takes no client id."""
    _refuse_number(clients)
    if isinstance(clients, Sequence) and not clients:
        raise SettingsError(f"clients = {clients}: a node hosts at least one client")
    several = clients is not None and not (isinstance(clients, Sequence) and len(clients) == 1)
    if several and takes < 2:
        raise SettingsError(
            "client_fn takes the context alone, so it cannot tell the node's clients apart: "
            "client_fn(context, client_id) is needed where clients is set"
        )


def _refuse_number(clients: object) -> None:
    if isinstance(clients, int):
        raise SettingsError(
            f"clients = {clients}: client_app takes the ids of this node's own clients; where any "
            f"node can run any of {clients}, give clients={clients} to the strategy"
        )


def _arguments(client_fn: ClientFn) -> int:
    """Return how many arguments `client_fn` demands."""
    return sum(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in inspect.signature(client_fn).parameters.values()
    )


def _call(
    client_fn: ClientFn,
    takes: int,
    context: Context,
    client_id: int | None,
    config: Mapping[str, Any],
    own: object,
) -> NumPyClient:
    """Call `client_fn` with the first arguments of the three, as many as it `takes`.

    A function of the context alone makes the node's only client, whose id is `own`.
    """
    if takes < 2 and client_id is not None and str(client_id) != str(own):
        raise SettingsError(
            f"client_fn takes the context alone, so it cannot make client {client_id}: "
            "client_fn(context, client_id) is needed where nodes run other clients than their own"
        )
    if client_id is None and takes > 1:
        client_id = _partition_id(context)
    client = client_fn(*(context, client_id, config)[:takes])
    client = getattr(client, "numpy_client", client)
    if not isinstance(client, NumPyClient):
        raise SettingsError(f"client_fn returned a {type(client).__name__}, not a NumPyClient")
    return client


def _partition_id(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise SettingsError("node-config has no partition-id: start the node with one")
    return int(str(context.node_config["partition-id"]))
