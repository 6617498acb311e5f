"""The node's side of a message: run the clients that the request names, and combine results."""

import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from coprefl_flwr.arrays import Arrays, cast_like, from_record, read_only, records_of
from coprefl_flwr.errors import EXITS, one_line
from coprefl_flwr.federation import messages
from coprefl_flwr.federation.aggregation import Accumulator, Chain, Rule, parse
from coprefl_flwr.federation.exchange import with_extra
from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.federation.messages import ARRAYS, NO_MODEL, NodeReply
from coprefl_flwr.federation.validation import Bounds

MakeClient = Callable[[int | None, Mapping[str, Any]], NumPyClient]
"""A function that creates a client from a client id and the request's config. The id is None if
the request has no client ids, because the node is the client."""

OWN_CLIENTS = "coprefl_flwr.clients."
"""Package of the clients whose methods never change the arrays that they receive."""

RESERVED = ("clients", "phase", "start", "task", "round")
"""Names that a client's metrics cannot have: "clients" has another meaning in replies, and the
other names are columns in a study's table of rounds."""


def answer(message: Message, make_client: MakeClient, partition_id: Any = None) -> Message:
    """Run the clients of the request `message` one after another; return the node's reply.

    A request without client ids is for the node's only client, whose id is `partition_id`.
    """
    config: dict[str, Any] = dict(records_of(message.content, ConfigRecord).get("config", {}))
    category, _, action = message.metadata.message_type.partition(".")
    method = action or {"train": "fit"}.get(category, category)  # NAME for "train.NAME".
    sent, extra = sent_arrays(message)
    config |= {"extra": extra} if extra else {}
    returned = config.pop(messages.RETURNED, [])
    names = list(map(str, returned)) if isinstance(returned, list) else []
    template = with_extra(sent, extra, names)
    clients = config.pop("clients", None)
    if isinstance(clients, list):
        rule = parse(str(config.pop("combine")))
        bounds = Bounds(**json.loads(str(config.pop("bounds", "{}"))))
        ids = list(map(int, clients))
        reply = run_clients(make_client, ids, method, sent, config, rule, bounds, template)
        content = messages.hosted_reply(reply)
    else:
        own_id = {} if partition_id is None else {"client": int(partition_id)}
        client = make_client(None, config)
        content = messages.plain_reply(*call_client(client, method, sent, config | own_id))
    return Message(content, reply_to=message)


def run_clients(
    make_client: MakeClient,
    clients: Sequence[int],
    method: str,
    sent: Arrays,
    config: Mapping[str, Any],
    rule: Rule,
    bounds: Bounds,
    template: Arrays,
) -> NodeReply:
    """Run the clients in the order of their ids and combine their results by `rule`.

    If `rule` is a `Chain`, clients run in the order of the list `clients`, each from the arrays of
    the last client that did not fail. `template` holds arrays with the names, shapes and dtypes
    that clients must return.
    """
    chained, alone = isinstance(rule, Chain), len(clients) == 1
    # A copy, so that no client gets the server's arrays, as in one process. It can be written to:
    # torch would copy arrays in read-only memory again for each client.
    start, reply = _copied(sent), NodeReply(alone=alone)
    sums = Accumulator(rule, template, bounds.buffers)
    numbered = list(enumerate(clients))
    for position, client_id in numbered if chained else sorted(numbered, key=itemgetter(1)):
        try:
            own = messages.config_of(config, position)
            client = make_client(client_id, own)
            arrays, metrics = call_client(client, method, start, {**own, "client": client_id})
            bounds.check({client_id: metrics}, {ARRAYS: arrays}, template, rule, alone=True)
            if chained:
                start = cast_like(arrays, sent)
            elif alone and rule.sums:
                arrays = rule.returned(arrays)
                # A copy, as the arrays may share the memory of a model that another client uses.
                start = {name: np.array(array, order="C") for name, array in arrays.items()}
            elif rule.sums:
                sums.add(client_id, arrays, metrics)
            reply.metrics[client_id] = metrics
            arrays = {}  # Frees memory before the next client runs, as a model may be large.
        except (Exception, *EXITS) as error:  # Other clients' results must be kept.
            reply.failed[client_id] = one_line(error) + messages.place(error)
    if reply.metrics and rule.sums:
        single = {ARRAYS if alone else "last": start}
        reply.records = single if alone or chained else sums.sums
    for arrays in reply.records.values():
        for name, array in arrays.items():  # One array at a time, as a model may be large.
            arrays[name] = np.asarray(array, order="C")
    return reply


def sent_arrays(message: Message) -> tuple[Arrays, dict[str, Arrays]]:
    """Return the request's arrays and {name: copies of its further arrays}.

    The former are not copied and must not be changed.
    """
    records = records_of(message.content, ArrayRecord)
    name = ARRAYS if ARRAYS in records else next(iter(records), "")
    sent = from_record(records.pop(name), copy=False) if records else {}
    records.pop(NO_MODEL, None)
    return sent, {name: from_record(record) for name, record in records.items()}


def call_client(
    client: NumPyClient, method: str, sent: Arrays, config: Mapping[str, Any]
) -> tuple[Arrays, dict[str, float]]:
    """Call a client's method; return the arrays by name, and the metrics.

    Raises an AttributeError if the client has no such method, and a ValueError if the method does
    not return what methods of a NumPyClient return.
    """
    call = getattr(client, method)
    if hasattr(client, "check_request"):
        client.check_request(dict(config))
    # The next client gets the same arrays, so a client that may change them gets copies.
    own, given = read_only(sent), dict(config)
    if not type(client).__module__.startswith(OWN_CLIENTS):
        own = _copied(sent)
        groups = config.get("extra")
        if isinstance(groups, dict):  # It may also be a number of the app's own config.
            given["extra"] = {name: _copied(group) for name, group in groups.items()}
    outcome = call(list(own.values()), given)
    try:
        first, num_examples, extra = outcome
        metrics = {**extra, "num-examples": num_examples}
        if method == "evaluate":
            metrics["loss"], arrays = float(first), Arrays()
        else:
            arrays = name_arrays(first, sent)
    except Exception as error:  # Whatever a user's method returns.
        needed = "loss" if method == "evaluate" else "list of arrays"
        needed = f"must return ({needed}, number of samples, dict of metrics)"
        raise ValueError(f"{type(client).__name__}.{method} {needed}: {one_line(error)}") from error
    for name, value in metrics.items():
        if name in RESERVED:
            raise ValueError(f"metric '{name}' has a reserved name; choose another name")
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise ValueError(f"metric '{name}' is a {type(value).__name__}; metrics are numbers")
    return arrays, {n: v.item() if isinstance(v, np.generic) else v for n, v in metrics.items()}


def _copied(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}


def name_arrays(
    arrays: Mapping[str, np.ndarray[Any, Any]] | Sequence[np.ndarray[Any, Any]], sent: Arrays
) -> Arrays:
    """Return a client's arrays by name.

    A list of arrays must have the order of the arrays in `sent`. A mapping already has names.
    """
    if not isinstance(arrays, Mapping) and len(arrays) != len(sent):
        raise ValueError(f"{len(arrays)} arrays were returned; the message had {len(sent)}")
    named = arrays if isinstance(arrays, Mapping) else dict(zip(sent, arrays, strict=True))
    return {name: np.asarray(array) for name, array in named.items()}
