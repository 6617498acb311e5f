"""The node's side of a message: run the clients that the request names, and combine results."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from coprefl_flwr.arrays import Arrays, cast_like, from_record, read_only, records_of
from coprefl_flwr.errors import EXITS, one_line, say_once
from coprefl_flwr.federation import messages
from coprefl_flwr.federation.aggregation import Accumulator, Chain, PerClient, Rule, parse
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
    order = numbered if chained else sorted(numbered, key=itemgetter(1))
    requests = ((client_id, messages.config_of(config, position)) for position, client_id in order)
    method_of_several = "" if alone or chained or isinstance(rule, PerClient) else method
    for group in _groups(make_client, requests, method_of_several, reply.failed):
        if len(group) > 1:
            try:
                stack, of_each = _call_together(group, method, start)
                found = dict(zip(map(itemgetter(0), group), of_each, strict=True))
                bounds.check_stack(found, stack, template, rule)
                sums.add_stack(list(found), stack, of_each)
                reply.metrics |= found
                continue
            except (Exception, *EXITS) as error:  # Each client alone shows which of them fails.
                say_once(f"clients are computed one after another: {one_line(error)}")
        for client_id, client, own in group:
            try:
                arrays, metrics = call_client(client, method, start, {**own, "client": client_id})
                bounds.check({client_id: metrics}, {ARRAYS: arrays}, template, rule, alone=True)
                if chained:
                    start = cast_like(arrays, sent)
                elif alone and rule.sums:
                    arrays = rule.returned(arrays)
                    # A copy, as the arrays may share the memory of a model of another client.
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


Request = tuple[int, NumPyClient, dict[str, Any]]
"""A client's id, the client, and the config of its request without the id."""


def _groups(
    make_client: MakeClient,
    requests: Iterable[tuple[int, dict[str, Any]]],
    method: str,
    failed: dict[int, str],
) -> Iterator[list[Request]]:
    """Make the clients of (id, config), and yield those that can compute `method` as one.

    A client states the smallest and the largest number by its method `clients_at_once`. If `method`
    is "", each group has one client. Reasons of clients that cannot be made are added to `failed`.
    """
    group, least, most = list[Any](), 1, 1
    for client_id, own in requests:
        try:
            client: Any = make_client(client_id, own)
            if group and not group[0][1].may_join(client):
                yield from [group] if len(group) >= least else [[one] for one in group]
                group = []
            if not group:
                # The class has it: an object that wraps a client may pass on all attributes.
                several = method and hasattr(type(client), "clients_at_once")
                least, most = client.clients_at_once(method) if several else (1, 1)
            group.append((client_id, client, own))
        except (Exception, *EXITS) as error:
            failed[client_id] = one_line(error) + messages.place(error)
        if len(group) >= most:
            yield group
            group = []
    yield from [group] if len(group) >= least else [[one] for one in group]


def _call_together(
    group: Sequence[Request], method: str, sent: Arrays
) -> tuple[Arrays, list[dict[str, float]]]:
    """Return the arrays of a group of clients, each (K, *shape), and the metrics of each client."""
    clients: list[Any] = [client for _, client, _ in group]
    configs = [{**own, "client": client_id} for client_id, _, own in group]
    clients[0].check_request(dict(configs[0]))
    own = list(read_only(sent).values())
    stack, metrics = getattr(type(clients[0]), f"{method}_together")(clients, own, configs)
    return stack, metrics


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
