"""An exchange between server and clients: a request to clients, and their combined replies."""

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, append_prefixed
from coprefl_flwr.federation.aggregation import Chain, Mean, PerClient, Rule
from coprefl_flwr.federation.messages import Value

REDUCTIONS = ("max", "min", "sum")
"""How several clients' values of a metric can become one value, other than by a weighted mean."""


@dataclass(frozen=True)
class Exchange:
    """One request to the clients whose ids are in `clients`.

    `action` is Flower's message type, such as "train", "train.query" or "evaluate". Every client
    starts from `arrays` and answers with arrays of the same names and shapes. The rule `combine`
    aggregates the clients' answers (see `federation.aggregation`). `extra` holds further groups of
    arrays by name, which clients find in `config["extra"]`. Clients also return the groups named
    in `returned`, as arrays ".GROUP/ARRAY". `config` holds settings for the clients in addition to
    those of the app. `stateful` tells whether clients store a state for their next such exchange.
    `needed` is the least number of good replies. If it is 0, the round continues without any reply;
    if it is None, the strategy's `min_replies` is used.

    `positive` names metrics that every reply must have, with a value above 0. `changes` names the
    arrays for which clients return the change of the array instead of its new value.
    """

    action: str
    arrays: Arrays
    clients: Sequence[int]
    combine: Rule = field(default_factory=Mean)
    extra: Mapping[str, Arrays] = field(default_factory=dict)
    returned: Collection[str] = ()
    config: Mapping[str, Value] = field(default_factory=dict)
    stateful: bool = False
    needed: int | None = None
    positive: Collection[str] = ()
    changes: Collection[str] = ()

    @property
    def template(self) -> Arrays:
        """Arrays with the names, shapes and dtypes that a client's answer must have."""
        return with_extra(self.arrays, self.extra, self.returned)

    @property
    def of_models(self) -> bool:
        """Whether client-side mods may clip the clients' answers and add noise to them.

        Mods may do so if all of these conditions hold: The action is "train". Clients return
        models, not changes of arrays, and store no state. The models are passed along a `Chain`, or
        averaged with equal weights or by num-examples, without corrections of adapters.
        """
        rule = self.combine.of if isinstance(self.combine, PerClient) else self.combine
        mean = isinstance(rule, Mean) and rule.weight in ("", "num-examples")
        plain = self.action == "train" and not self.stateful and not self.changes
        mean = mean and len(rule.returned(self.arrays)) == len(self.arrays)
        return plain and (mean or isinstance(rule, Chain))


def with_extra(arrays: Arrays, extra: Mapping[str, Arrays], returned: Collection[str]) -> Arrays:
    """Return `arrays`, followed by those groups of `extra` arrays that `returned` names."""
    for name in returned:
        arrays = append_prefixed(arrays, name, extra[name])
    return arrays


@dataclass(frozen=True)
class Replies:
    """The combined replies of the clients to an exchange.

    `clients` holds the ids of the clients with a good reply, ascending. `metrics` holds, for each
    metric that every client reported, an array of shape (len(clients),) with one value per client.
    A user's metric of an evaluation is nan for clients for which it is undefined.
    `arrays` has the dtypes that were sent: it is the mean for the rule `Mean`, the last client's
    arrays for `Chain`, and empty for the other rules. `sums` holds the rule's sums in float64, by
    name: "sum" for `Mean` and `Total`, "gradient" and "loss-gradient" for `LossMoments`, "last" for
    `Chain`, and each client's id, as text, for `PerClient`.

    If the strategy's `aggregation` is a robust rule, `arrays` is the robust mean and `sums` is
    empty; for the rule `LossMoments`, `sums` holds each client's gradient by client id.

    `reductions` is the strategy's option `metric_reductions`.
    """

    clients: tuple[int, ...]
    metrics: Mapping[str, npt.NDArray[np.float64]]
    arrays: Arrays = field(default_factory=dict)
    sums: Mapping[str, Arrays] = field(default_factory=dict)
    reductions: Mapping[str, str] = field(default_factory=dict)

    def mean_metrics(self, weight: str = "num-examples") -> dict[str, float]:
        """Return the mean of every metric over the clients, weighted by the metric `weight`.

        A metric in `reductions` has its largest or smallest value, or its sum. Clients for which a
        metric is undefined (nan) are left out.
        """
        weights, means = self.metrics.get(weight, np.ones(len(self.clients))), {}
        for name, values in self.metrics.items():
            known = ~np.isnan(values)
            if name in self.reductions:
                means[name] = float(getattr(np, self.reductions[name])(values[known]))
            elif name != weight:
                means[name] = float(np.average(values[known], weights=weights[known]))
        return means

    def evaluation_metrics(self) -> dict[str, float]:
        """Return the mean metrics, with an accuracy if clients report the number `correct`.

        The accuracy is the fraction of correctly classified samples over all clients' samples.
        """
        metrics = self.mean_metrics()
        if metrics.pop("correct", None) is not None:
            hits, samples = self.metrics["correct"].sum(), self.metrics["num-examples"].sum()
            metrics["accuracy"] = float(hits / samples)
        return metrics


RoundMetrics = dict[str, float]
Round = Generator[Exchange, Replies, tuple[Arrays, RoundMetrics]]
"""A round's generator: yields exchanges, is sent the replies, and returns arrays and metrics."""


def concat_replies(parts: Sequence[Replies]) -> Replies:
    """Concatenate the replies of several exchanges with different clients, without the arrays.

    Only metrics that are in the replies of every exchange are kept. Other metrics would have gaps.
    """
    parts = [part for part in parts if part.clients]
    names = [set(part.metrics) for part in parts]
    metrics = {
        name: np.concatenate([part.metrics[name] for part in parts])
        for name in sorted(set.intersection(*names) if names else ())
    }
    clients = tuple(client for part in parts for client in part.clients)
    return Replies(clients, metrics, reductions=parts[0].reductions if parts else {})
