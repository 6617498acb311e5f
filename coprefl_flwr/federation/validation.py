"""The checks that a reply must pass before it is used.

A node that hosts clients checks each client's result, because a sum does not show which client sent
an invalid number. The server checks the replies of nodes. Nodes and server use the strategy's
`Bounds`, which are sent in each request. A result outside the bounds is left out, and one line is
logged with the node, the client and the reason.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from coprefl_flwr.arrays import Arrays, is_buffer, mismatch
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.aggregation import Metrics, Rule, finite_metric
from coprefl_flwr.federation.exchange import Exchange
from coprefl_flwr.federation.messages import NodeReply
from coprefl_flwr.options import check_declared, option

Range = tuple[float, float]

OTHER_NAMES = "its arrays have other names than the arrays of most clients"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits on clients' replies, which every strategy takes as its option `bounds`.

    `loss_range` is (smallest, largest) allowed value of a client's metric "loss". If it is None,
    any finite loss is allowed. `positive` holds names of metrics that every client must report,
    with a value above 0. A run adds the names of the model's `buffers`, which have other weights.
    """

    loss_range: Range | None = None
    positive: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    most_samples: int = option(
        10**9, "largest number of samples that a client may report", minimum=1
    )
    clients_per_node: int | None = option(
        None,
        "largest number of clients that a node may report; not set: 1 in a deployment, no limit in "
        "a simulation or on a local grid, because their nodes are part of this program",
        minimum=1,
    )

    def __post_init__(self) -> None:
        """Check the values of the bounds; raise a SettingsError if one is invalid."""
        check_declared(self)
        if self.loss_range is None:
            return
        try:
            least, most = map(float, self.loss_range)
        except (TypeError, ValueError):
            least, most = 1.0, 0.0
        if not least <= most:
            limit = "must be two numbers, the smallest and the largest loss"
            raise SettingsError(f"loss_range = {self.loss_range!r}: {limit}")

    def check(self, arrays: Arrays, metrics: Metrics, sent: Arrays, rule: Rule) -> None:
        """Raise a ValueError if a client's arrays or metrics are invalid for the rule `rule`.

        `sent` holds arrays with the names, shapes and dtypes that the client must return.
        """
        of_sums = self.check_metrics(0, metrics, rule)
        if rule.sums:
            # Only means are divided by weights; for other sums, coefficient * array must be finite.
            largest = max([1.0, *(abs(weight) for weight, _ in of_sums.values())])
            weight = 1 / largest if rule.partial else 1.0
            _check_arrays(arrays, sent, rule, dict.fromkeys(sent, weight))

    def check_metrics(self, client: int, metrics: Metrics, rule: Rule) -> dict[str, Range]:
        """Return {name of a sum: (the client's coefficient of weights, of buffers)}.

        Raises a ValueError if a metric is missing or outside its range.
        """
        for name in metrics:
            finite_metric(metrics, name)
        coefficients = {
            name: (weight, rule.buffer_coefficient(metrics, weight))
            for name, weight in rule.coefficients({**metrics, "client": client}).items()
        }
        for name in self.positive:
            if finite_metric(metrics, name) <= 0:
                raise ValueError(f"metric '{name}' is {metrics[name]:g}; it must be above 0")
        ranges: dict[str, Range] = {"num-examples": (1, self.most_samples)}
        if self.loss_range:
            ranges["loss"] = self.loss_range
        if not rule.sums and "num-examples" in metrics:  # An evaluation.
            ranges["correct"] = (0, metrics["num-examples"])
        for name in ranges:
            if name in metrics:
                _check_range(metrics, name, ranges[name])
        return coefficients


def _check_arrays(arrays: Arrays, sent: Arrays, rule: Rule, weights: Mapping[str, float]) -> None:
    """Raise a ValueError if arrays, or sums with these total weights, do not match `sent`."""
    problem = mismatch(arrays, sent, subset=rule.partial, weights=weights)
    if problem:
        raise ValueError(problem)


def _check_range(metrics: Metrics, name: str, limits: Range) -> None:
    value = finite_metric(metrics, name)
    if not limits[0] <= value <= limits[1]:
        allowed = f"must be between {limits[0]:g} and {limits[1]:g}"
        raise ValueError(f"metric '{name}' is {value:g}; it {allowed}")


def check_reply(exchange: Exchange, bounds: Bounds, reply: NodeReply) -> None:
    """Raise a ValueError if a node's reply is invalid for the exchange and the bounds."""
    rule, sent = exchange.combine, exchange.template
    if reply.alone and reply.metrics and rule.sums:
        if len(reply.records) != 1:
            raise ValueError(f"{len(reply.records)} ArrayRecords in the reply, not one")
        (metrics,), (arrays,) = reply.metrics.values(), reply.records.values()
        bounds.check(arrays, metrics, sent, rule)
        return
    weights: dict[str, Range] = {}
    for client, metrics in reply.metrics.items():
        for name, (weight, of_buffers) in bounds.check_metrics(client, metrics, rule).items():
            before = weights.get(name, (0.0, 0.0))
            weights[name] = before[0] + weight, before[1] + of_buffers
    if not rule.sums:
        return
    if set(reply.records) != set(weights):
        raise ValueError(f"sums {sorted(reply.records)} in the reply, expected: {rule}")
    for name, arrays in reply.records.items():
        of_arrays = {
            n: weights[name][is_buffer(n, array, bounds.buffers)] for n, array in sent.items()
        }
        if rule.partial:
            of_arrays = dict.fromkeys(sent, float(len(reply.metrics)))
        _check_arrays(arrays, sent, rule, of_arrays)


def majority_names(counts: Mapping[frozenset[str], int]) -> frozenset[str]:
    """Return the set of array names that most clients have.

    `counts` is {set of array names: number of clients with it}. In a tie, the larger set of names
    is chosen, because a complete gradient has all names.
    """
    return max(counts, key=lambda names: (counts[names], len(names), sorted(names)))


def leave_out_other_names(replies: Mapping[int, NodeReply]) -> None:
    """Mark clients as failed if their arrays have other names than most clients' arrays.

    Otherwise the sums of two arrays could be sums over different clients, and would not form a
    gradient together. `replies` is {node id: reply} and is changed in place.
    """
    counts = Counter[frozenset[str]]()
    for reply in replies.values():
        for names in {frozenset(arrays) for arrays in reply.records.values()}:
            counts[names] += len(reply.metrics)
    if len(counts) < 2:
        return
    chosen = majority_names(counts)
    for reply in replies.values():
        if any(frozenset(arrays) != chosen for arrays in reply.records.values()):
            reply.failed |= dict.fromkeys(reply.metrics, OTHER_NAMES)
            reply.metrics, reply.records = {}, {}
