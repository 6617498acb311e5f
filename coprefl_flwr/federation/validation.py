"""The checks that a reply must pass before it is used.

A node that hosts clients checks each client's result, because a sum does not show which client sent
an invalid number. The server checks the replies of nodes. Nodes and server use the strategy's
`Bounds`, which are sent in each request. A result outside the bounds is left out, and one line is
logged with the node, the client and the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays, is_buffer, mismatch
from coprefl_flwr.federation.aggregation import Metrics, Rule, finite_metric
from coprefl_flwr.options import Checked, option

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Bounds(Checked):
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

    def check(
        self,
        metrics: Mapping[int, Metrics],
        records: Mapping[str, Arrays],
        sent: Arrays,
        rule: Rule,
        *,
        alone: bool,
    ) -> None:
        """Raise a ValueError if a reply's metrics or arrays are invalid for the rule `rule`.

        `metrics` holds the metrics by client id. `records` holds the arrays of one client if
        `alone`, or else the rule's sums. `sent` holds arrays with the names, shapes and dtypes that
        the clients must return.
        """
        weights: dict[str, Range] = {}
        for client, of_client in metrics.items():
            for name, (weight, of_buffers) in self._checked(client, of_client, rule).items():
                before = weights.get(name, (0.0, 0.0))
                weights[name] = before[0] + weight, before[1] + of_buffers
        if not (metrics and rule.sums):
            return
        if alone and len(records) != 1:
            raise ValueError(f"{len(records)} ArrayRecords in the reply, not one")
        if not alone and set(records) != set(weights):
            raise ValueError(f"sums {sorted(records)} in the reply, expected: {rule}")
        if alone:
            sent = rule.returned(sent)
            records = {name: rule.returned(arrays) for name, arrays in records.items()}
        for name, arrays in records.items():
            divisors = dict.fromkeys(sent, float(len(metrics)))
            if alone and rule.partial:  # Each coefficient * array must be finite.
                largest = max([1.0, *(abs(weight) for weight, _ in weights.values())])
                divisors = dict.fromkeys(sent, 1 / largest)
            elif not (alone or rule.partial):
                divisors = {
                    n: weights[name][is_buffer(n, array, self.buffers)] for n, array in sent.items()
                }
            problem = mismatch(arrays, sent, subset=rule.partial, weights=divisors)
            if problem:
                raise ValueError(problem)

    def check_stack(
        self, metrics: Mapping[int, Metrics], stack: Arrays, sent: Arrays, rule: Rule
    ) -> None:
        """Raise a ValueError if the metrics or arrays of one of K clients may be invalid.

        `stack` holds each array of all K clients, (K, *shape). Otherwise the arguments are those of
        `check`. Its numbers are checked as those of one array, so a client of an error may be valid
        alone.
        """
        weights = [self._checked(client, of_client, rule) for client, of_client in metrics.items()]
        if not rule.sums:
            return
        largest = max(abs(one) for of in weights for pair in of.values() for one in (1.0, *pair))
        wide = {
            name: np.broadcast_to(array, (len(metrics), *array.shape))
            for name, array in rule.returned(sent).items()
        }
        divisors = dict.fromkeys(wide, 1 / largest if rule.partial else 1.0)
        problem = mismatch(rule.returned(stack), wide, subset=rule.partial, weights=divisors)
        if problem:
            raise ValueError(problem)

    def _checked(self, client: int, metrics: Metrics, rule: Rule) -> dict[str, Range]:
        """Return `rule.weights` of a client; raise a ValueError if a metric is out of its range."""
        for name in metrics:
            finite_metric(metrics, name)
        weights = rule.weights(client, metrics)
        for name in self.positive:
            if finite_metric(metrics, name) <= 0:
                raise ValueError(f"metric '{name}' is {metrics[name]:g}; it must be above 0")
        ranges: dict[str, Range] = {"num-examples": (1, self.most_samples)}
        if self.loss_range:
            ranges["loss"] = self.loss_range
        if not rule.sums and "num-examples" in metrics:  # An evaluation.
            ranges["correct"] = (0, metrics["num-examples"])
        for name, (least, most) in ranges.items():
            if name in metrics and not least <= metrics[name] <= most:
                allowed = f"must be between {least:g} and {most:g}"
                raise ValueError(f"metric '{name}' is {metrics[name]:g}; it {allowed}")
        return weights
