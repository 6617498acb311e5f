"""An exchange with clients, as a round's program sees it: the question and the replies."""

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, append_prefixed
from coprefl_flwr.federation.aggregation import Chain, Mean, PerClient, Rule
from coprefl_flwr.federation.messages import Value


@dataclass(frozen=True)
class Exchange:
    """One question to some clients, whose ids are `clients`.

    `action` is Flower's message type, such as "train", "train.query" or "evaluate". Every client
    starts from `arrays` and answers with arrays of these names and shapes, of which `combine` makes
    one (see `federation.aggregation`). `extra` holds further arrays by name, for the clients'
    `config["extra"]`; those named in `returned` they answer with too, as arrays "NAME/ARRAY".
    `config` holds settings on top of the app's own. `stateful` tells whether
    the clients keep a state from one of these exchanges to the next. `needed` is the number of good
    replies, 0 to continue without any; None is the strategy's `min_replies`.

    Of what clients answer: `positive` are metrics that each must have, above 0, and `changes` names
    of arrays that are answered by a change instead of a new value.
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
        """What clients answer with: arrays of these names, shapes and dtypes."""
        return with_extra(self.arrays, self.extra, self.returned)

    @property
    def of_models(self) -> bool:
        """Whether clients answer with models, and keep and measure nothing that depends on them.

        A client-side mod may clip such an answer and put noise on it, and no other.
        """
        rule = self.combine.of if isinstance(self.combine, PerClient) else self.combine
        mean = isinstance(rule, Mean) and rule.weight in ("", "num-examples")
        plain = self.action == "train" and not self.stateful and not self.changes
        return plain and (mean or isinstance(rule, Chain))


def with_extra(arrays: Arrays, extra: Mapping[str, Arrays], returned: Collection[str]) -> Arrays:
    """Return `arrays` and behind them the extra arrays that clients answer with too."""
    for name in returned:
        arrays = append_prefixed(arrays, name, extra[name])
    return arrays


@dataclass(frozen=True)
class Replies:
    """What the clients answered, combined.

    `clients` are the ids of those whose results are in, ascending; `metrics` has for each metric
    one value a client, shape (len(clients),), if every client reported it. `arrays` is the
    mean under `Mean`, the last client's under `Chain`, in the dtypes that were sent, else empty;
    `sums` has every sum of the rule by its name, in float64. Where the strategy's `aggregation` is
    robust, `arrays` is the robust mean without a sum, and under `LossMoments` `sums` has each
    client's gradient by its id.
    """

    clients: tuple[int, ...]
    metrics: Mapping[str, npt.NDArray[np.float64]]
    arrays: Arrays = field(default_factory=dict)
    sums: Mapping[str, Arrays] = field(default_factory=dict)

    def mean_metrics(self, weight: str = "num-examples") -> dict[str, float]:
        """Return the mean of every metric over the clients, weighted by the metric `weight`."""
        weights = self.metrics.get(weight, np.ones(len(self.clients)))
        return {
            name: float(np.average(values, weights=weights))
            for name, values in self.metrics.items()
            if name != weight
        }

    def evaluation_metrics(self) -> dict[str, float]:
        """Return the mean metrics; hits become the accuracy over all samples, a fraction."""
        metrics = self.mean_metrics()
        if metrics.pop("correct", None) is not None:
            hits, samples = self.metrics["correct"].sum(), self.metrics["num-examples"].sum()
            metrics["accuracy"] = float(hits / samples)
        return metrics


RoundMetrics = dict[str, float]
Round = Generator[Exchange, Replies, tuple[Arrays, RoundMetrics]]
"""The program of a round: it yields exchanges, is sent the replies, returns arrays and metrics."""


def concat_replies(parts: Sequence[Replies]) -> Replies:
    """Return the replies of several exchanges with other clients each, without their arrays.

    Their metrics are those that each of the exchanges has: with more, there could be as many names
    as there are exchanges, each with as many gaps.
    """
    parts = [part for part in parts if part.clients]
    names = [set(part.metrics) for part in parts]
    metrics = {
        name: np.concatenate([part.metrics[name] for part in parts])
        for name in sorted(set.intersection(*names) if names else ())
    }
    return Replies(tuple(client for part in parts for client in part.clients), metrics)
