"""What is left out for what others answered: other names, longer updates, rare metrics."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from coprefl_flwr.arrays import Arrays, is_buffer
from coprefl_flwr.errors import cut
from coprefl_flwr.federation.aggregation import Apart, PerClient, Rule
from coprefl_flwr.federation.exchange import Exchange
from coprefl_flwr.federation.messages import NodeReply
from coprefl_flwr.federation.validation import weights_named

OTHER_NAMES = "the arrays returned are not those that other clients returned"


def leave_out_other_names(exchange: Exchange, replies: Mapping[int, NodeReply]) -> None:
    """Leave out clients whose arrays have not the names that most clients' have.

    Otherwise the sums of two arrays could be over different clients, and together no gradient.
    """
    named: dict[frozenset[str], int] = {}
    for reply in replies.values():
        for names in {frozenset(arrays) for arrays in reply.records.values()}:
            named[names] = named.get(names, 0) + len(reply.metrics)
    if len(named) < 2:
        return
    chosen = most_named(named, exchange.template)
    for reply in replies.values():
        if reply.metrics and any(frozenset(one) != chosen for one in reply.records.values()):
            reply.leave_out(reply.clients, OTHER_NAMES)


def most_named(named: Mapping[frozenset[str], int], sent: Arrays) -> frozenset[str]:
    """Return the names that most clients name, of {names: how many clients name these}.

    Where as many name others, those of more weights: a gradient lacks none. Weights that were sent
    under two names, as tied ones are, count once.
    """
    most = max(named.values())
    first = sorted((names for names, count in named.items() if count == most), key=sorted)
    if len(first) == 1:
        return first[0]

    def rank(names: frozenset[str]) -> tuple[int, int]:
        weights = [name for name in names if not is_buffer(name, sent[name])]
        return len(weights_named(weights, sent)), -len(names)

    return max(first, key=rank)


def leave_out_rare_metrics(replies: Iterable[NodeReply], most: int) -> str:
    """Leave out metrics where the replies have more than `most` different names of such.

    Those that most clients report stay, among them what every client must report. Every name has a
    value, or a gap, for every client: with names of each client's own, time and memory would grow
    with the square of their number. Returns a line about it, "" where nothing was left out.
    """
    measured = [metrics for reply in replies for metrics in reply.metrics.values()]
    reported = Counter(name for metrics in measured for name in metrics)
    if len(reported) <= most:
        return ""
    rare = sorted(reported, key=lambda name: (-reported[name], name))[most:]
    left_out = set(rare)
    for metrics in measured:
        for name in metrics.keys() & left_out:
            del metrics[name]
    found = f"the replies have metrics of {len(reported)} names, at most {most} are read"
    return f"{found}: '{cut(rare[0])}' and others that few clients report are left out"


def leave_out_large(
    exchange: Exchange, replies: Mapping[int, NodeReply], largest: float | None
) -> None:
    """Leave out clients whose update is `largest` times as long as the median, where it is seen."""
    if largest is None or not exchange.combine.sums:
        return
    lengths = {
        (node, client): _length(exchange, arrays)
        for node, reply in replies.items()
        for client, arrays in _of_clients(exchange.combine, reply).items()
    }
    most = largest * median(lengths.values()) if lengths else 0.0
    for (node, client), length in lengths.items():
        if length > most:
            found = f"the update has length {length:g}"
            replies[node].leave_out([client], f"{found}, {largest:g} times the median is {most:g}")


def _of_clients(rule: Rule, reply: NodeReply) -> dict[int, Arrays]:
    """Return the arrays of each client whose own the server sees."""
    if isinstance(rule, PerClient | Apart) and len(reply.metrics) > 1:
        return {client: reply.records[str(client)] for client in reply.clients}
    if len(reply.metrics) != 1:
        return {}
    (client,), (arrays,) = reply.clients, reply.records.values()
    return {client: arrays}


def _length(exchange: Exchange, arrays: Arrays) -> float:
    """Return how long a client's update is: of gradients and changes themselves, else from sent."""
    total, sent = 0.0, exchange.template
    for name, array in arrays.items():
        before = sent[name]
        if is_buffer(name, before):
            continue
        change = exchange.combine.partial or name in exchange.changes
        moved = np.float64(array) if change else np.float64(array) - before
        total += float(np.vdot(moved, moved))
    return math.sqrt(total)
