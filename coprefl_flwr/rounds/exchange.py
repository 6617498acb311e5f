"""An exchange with clients, as a round's program sees it: the question and the replies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.rounds.combine import Mean, Rule
from coprefl_flwr.rounds.protocol import MessageConfig


@dataclass(frozen=True)
class Exchange:
    """One question to some clients.

    Parameters
    ----------
    action : str
        Flower message type, e.g. "train", "train.query", "evaluate".
    arrays : Arrays
        The arrays every client starts from. Clients answer with arrays of these names and shapes.
    clients : Sequence[int]
        Ids of the clients to ask.
    combine : Rule
        How the clients' arrays become one (see `coprefl_flwr.rounds.combine`).
    extra : Mapping[str, Arrays]
        Further named arrays to send, each as an ArrayRecord of its own.
    config : MessageConfig
        Settings for this exchange, on top of the app's own.
    stateful : bool
        Whether the clients keep a state from one of these exchanges to the next.
    needed : int, optional
        Good replies it needs, 0 to go on without any; None is the strategy's `min_replies`.
    """

    action: str
    arrays: Arrays
    clients: Sequence[int]
    combine: Rule = field(default_factory=Mean)
    extra: Mapping[str, Arrays] = field(default_factory=dict)
    config: MessageConfig = field(default_factory=dict)
    stateful: bool = False
    needed: int | None = None


@dataclass(frozen=True)
class Replies:
    """What the clients answered, combined.

    Parameters
    ----------
    clients : tuple[int, ...]
        Ids of the clients whose results are in, ascending.
    metrics : Mapping[str, NDArray[float64]]
        Per metric one value a client, shape (len(clients),), NaN where a client did not report it.
    arrays : Arrays
        Under `Mean` the mean, under `Chain` the last client's, in the dtypes that were sent;
        otherwise empty.
    sums : Mapping[str, Arrays]
        Every sum of the rule by its name, in float64.
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
            if name != weight and not np.isnan(values).any()
        }

    def evaluation_metrics(self) -> dict[str, float]:
        """Return the mean metrics; hits become the accuracy over all samples, a fraction."""
        metrics = self.mean_metrics()
        if metrics.pop("correct", None) is not None:
            hits, samples = self.metrics["correct"].sum(), self.metrics["num-examples"].sum()
            metrics["accuracy"] = float(hits / samples)
        return metrics


def joined(parts: Sequence[Replies]) -> Replies:
    """Return the replies of several exchanges with other clients each, without their arrays."""
    names = sorted({name for part in parts for name in part.metrics})
    metrics = {}
    for name in names:
        values = [part.metrics.get(name, np.full(len(part.clients), np.nan)) for part in parts]
        metrics[name] = np.concatenate(values)
    return Replies(tuple(client for part in parts for client in part.clients), metrics)
