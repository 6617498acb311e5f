"""The server's side of combining: makes one `Replies` of what the nodes sent."""

from collections.abc import Sequence

from coprefl_flwr.arrays import Arrays, cast_like, is_buffer
from coprefl_flwr.rounds.combine import Accumulator, Chain, Mean
from coprefl_flwr.rounds.exchange import Exchange, Replies
from coprefl_flwr.rounds.protocol import NodeReply, table


def combined(exchange: Exchange, replies: Sequence[NodeReply]) -> Replies:
    """Add up the nodes' replies, given in the order of their smallest client id."""
    rule = exchange.combine
    accumulator = Accumulator(rule, exchange.template)
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
        sums = accumulator.sums["sum"]
        for name, sent in exchange.template.items():
            if name in sums:  # Cast one by one: a second model in float64 is not needed.
                mean = sums[name] / (samples if is_buffer(name, sent) else weight)
                arrays |= cast_like({name: mean}, {name: sent})
    if isinstance(rule, Chain) and per_client:
        arrays = cast_like(accumulator.sums["last"], exchange.template)
    return Replies(tuple(sorted(per_client)), table(per_client), arrays, accumulator.sums)
