"""The server's side of combining: checks what the nodes sent and makes one `Replies` of it."""

import logging
from collections.abc import Sequence

from coprefl_flwr.arrays import Arrays, cast_like, is_buffer, mismatch
from coprefl_flwr.rounds.combine import Accumulator, Chain, Mean, Rule, measured
from coprefl_flwr.rounds.exchange import Exchange, Replies
from coprefl_flwr.rounds.protocol import NodeReply, table

logger = logging.getLogger("flwr.coprefl")


def check(exchange: Exchange, reply: NodeReply) -> None:
    """Raise a ValueError if what a node sent cannot enter the sums of `exchange`."""
    for metrics in reply.metrics.values():
        for name in metrics:
            measured(metrics, name)
        for coefficient in exchange.combine.coefficients({**metrics, "client": 0}).values():
            exchange.combine.buffer_coefficient(metrics, coefficient)
    if not exchange.combine.sums:
        return
    if len(reply.metrics) == 1:
        if len(reply.records) != 1:
            raise ValueError(f"{len(reply.records)} ArrayRecords in the reply, not one")
    elif set(reply.records) != sums_of(exchange.combine, reply):
        raise ValueError(f"sums {sorted(reply.records)} in the reply, asked was {exchange.combine}")
    for arrays in reply.records.values():
        problem = mismatch(arrays, exchange.arrays, subset=exchange.combine.partial)
        if problem:
            raise ValueError(problem)


def alike(replies: Sequence[NodeReply]) -> list[NodeReply]:
    """Return the replies in the order of their smallest client, without those of other arrays.

    Otherwise the sums of two arrays could be over different clients, and together no gradient.
    """
    ordered = sorted(replies, key=lambda reply: reply.clients[0])
    kept: list[NodeReply] = []
    for reply in ordered:
        names = {frozenset(arrays) for arrays in reply.records.values()}
        if kept and names != {frozenset(arrays) for arrays in kept[0].records.values()}:
            clients = ", ".join(map(str, reply.clients))
            logger.warning("clients %s are left out: their arrays are not the others'", clients)
        else:
            kept.append(reply)
    return kept


def sums_of(rule: Rule, reply: NodeReply) -> set[str]:
    """Return the names of the sums that a node's good clients enter."""
    return {
        name
        for client, metrics in reply.metrics.items()
        for name in rule.coefficients({**metrics, "client": client})
    }


def combined(exchange: Exchange, replies: Sequence[NodeReply]) -> Replies:
    """Add up the nodes' replies, given in the order of their smallest client id."""
    rule = exchange.combine
    accumulator = Accumulator(rule, exchange.arrays)
    for reply in replies:
        if len(reply.metrics) == 1 and rule.sums:
            (client,) = reply.clients
            (only,) = reply.records.values()
            accumulator.add(client, only, reply.metrics[client])
        elif rule.sums:
            accumulator.merge(reply.records)
    per_client = {client: metrics for reply in replies for client, metrics in reply.metrics.items()}
    arrays: Arrays = {}
    if isinstance(rule, Mean) and per_client:
        weight = sum(rule.coefficients(metrics)["sum"] for metrics in per_client.values())
        samples = sum(rule.buffer_coefficient(metrics, 0.0) for metrics in per_client.values())
        for name, total in accumulator.sums["sum"].items():
            arrays[name] = total / (samples if is_buffer(name, exchange.arrays[name]) else weight)
    if isinstance(rule, Chain) and per_client:
        arrays = accumulator.sums["last"]
    arrays = cast_like(arrays, exchange.arrays)
    return Replies(tuple(sorted(per_client)), table(per_client), arrays, accumulator.sums)
