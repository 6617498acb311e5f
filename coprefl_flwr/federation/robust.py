"""Robust aggregation: what becomes of clients' results where some clients may be attackers.

The server is sent each client's arrays separately (`PerClient`) and makes one of them by a rule:

median         of each number by itself (Yin et al. 2018, arxiv.org/abs/1803.01498)
trimmed-mean   of each number by itself, without the f largest and the f smallest (the same paper)
krum           the client with the least score, the sum of its squared distances to the n - f - 2
               clients nearest to it (Blanchard et al. 2017, arxiv.org/abs/1703.02757)
multi-krum     the mean of the n - f clients with the least scores (the same paper)
norm-clipping  the mean of updates, each cut to a length (Sun et al. 2019, arxiv.org/abs/1911.07963;
               theirs is fixed, here it is a multiple of the median length)

n are the replies, and f the share `tolerated_share` of them, rounded down. The first three are
unweighted, as in the papers. The last two weigh clients as the mean would; the weights, which
clients tell themselves, are kept within those of the others, and so are the losses of CoPreFL: a
rule for the arrays would protect nothing if a client could say that it has a billion samples.

An update is x_j - x, x the arrays that were sent; of gradients and `changes` it is what is sent.
Scores and lengths are over all weights together. Buffers (BatchNorm's statistics) do not count in
them, and are the median, under `trimmed-mean` the trimmed mean: a client with a good update could
have any statistics. All is float64 and in the order of client ids, whichever node hosts whom.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, cast_like, is_buffer
from coprefl_flwr.errors import RoundFailedError, SettingsError
from coprefl_flwr.federation.aggregation import LossMoments, Mean, MetricsOnly, PerClient
from coprefl_flwr.federation.exchange import Exchange, Replies, Round, RoundMetrics

MEAN, MEDIAN, TRIMMED, KRUM, MULTI_KRUM, CLIPPING = AGGREGATIONS = (
    *("mean", "median", "trimmed-mean"),
    *("krum", "multi-krum", "norm-clipping"),
)
"""Allowed values of the option `aggregation`; the mean is not robust."""

AGGREGATION = ("aggregation", "tolerated_share", "clip_factor")
"""Options of a strategy that averages."""

MOST_ATTACKERS = 0.49
"""Largest allowed share of attackers: with half of the clients, no rule can work."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Robust:
    """A robust rule: `aggregation`, `tolerated_share`, and `clip_factor` median lengths."""

    aggregation: str
    tolerated_share: float
    clip_factor: float

    def around(self, program: Round) -> Round:
        """Return a round's program with the rule instead of its means."""
        of_rule: RoundMetrics = {}
        try:
            exchange = next(program)
            while True:
                replies, metrics = self.mean(exchange, (yield self.per_client(exchange)))
                of_rule |= metrics
                exchange = program.send(replies)
        except StopIteration as end:
            arrays, metrics = end.value
        return arrays, metrics | of_rule

    def per_client(self, exchange: Exchange) -> Exchange:
        """Return an exchange that asks for each client's arrays separately, if it asks for a mean.

        Raises a SettingsError if it asks for what there is no robust form of, or too few clients.
        """
        rule = exchange.combine
        if isinstance(rule, MetricsOnly):
            return exchange
        if not isinstance(rule, Mean | LossMoments):
            problem = f"{exchange.action} is combined by '{rule}', of which there is no robust form"
            raise SettingsError(f"aggregation = {self.aggregation}: {problem}", "aggregation")
        self.check(len(exchange.clients))
        return replace(exchange, combine=PerClient(rule))

    def check(self, clients: int) -> None:
        """Raise a SettingsError if this many clients are too few for the rule."""
        if problem := self._too_few(clients):
            raise SettingsError(problem, "aggregation", "tolerated-share")

    def mean(self, exchange: Exchange, replies: Replies) -> tuple[Replies, dict[str, float]]:
        """Return the replies with the robust mean, and metrics of the rule.

        `exchange` asked for a mean, and `replies` are those to its form `per_client`. Replies to an
        exchange for gradients stay as they are: see `robust_sum`.
        """
        rule, sent = exchange.combine, exchange.template
        if isinstance(rule, MetricsOnly):
            return replies, {}
        if problem := self._too_few(len(replies.clients)):
            raise RoundFailedError(problem)
        if not isinstance(rule, Mean):
            return replies, {}
        models = [replies.sums[str(client)] for client in replies.clients]
        start = {n: np.zeros(()) if n in exchange.changes else array for n, array in sent.items()}
        buffers = {name for name in sent if is_buffer(name, sent[name])}
        weights = np.ones(len(models))
        if rule.weight:
            weights = self.winsorise(replies.metrics[rule.weight])
        arrays, metrics = self._combined(models, start, buffers, weights)
        if "krum-client" in metrics:
            metrics["krum-client"] = float(replies.clients[int(metrics["krum-client"])])
        return replace(replies, arrays=cast_like(arrays, sent), sums={}), metrics

    def robust_sum(self, gradients: Sequence[Arrays]) -> Arrays:
        """Return n times the robust mean of n clients' gradients, which have no weights."""
        number = len(gradients)
        start = {name: np.zeros(()) for name in gradients[0]}
        mean, _ = self._combined(gradients, start, set(), np.ones(number))
        return {name: number * array for name, array in mean.items()}

    def winsorise(self, values: Numbers) -> Numbers:
        """Winsorise values: clip them to the range without the f largest and the f smallest.

        Up to f attackers then cannot move a value outside the range of the other clients' values.
        """
        ascending, f = np.sort(values), self._tolerated(len(values))
        return np.clip(values, ascending[f], ascending[len(values) - 1 - f])

    def _tolerated(self, clients: int) -> int:
        """Return f, rounded down; 1e-9 corrects float products such as 0.29 * 100 < 29."""
        return math.floor(self.tolerated_share * clients + 1e-9)

    def _too_few(self, clients: int) -> str:
        """Return a message if this many clients are too few for the rule, or else ""."""
        needed = 2 * self._tolerated(clients) + 3
        if self.aggregation not in (KRUM, MULTI_KRUM) or clients >= needed:
            return ""
        of = f"with tolerated-share = {self.tolerated_share:g} of {clients} clients"
        return f"aggregation = {self.aggregation}: {of} at least {needed} are needed"

    def _combined(
        self,
        models: Sequence[Arrays],
        start: Arrays,
        buffers: set[str],
        weights: Numbers,
    ) -> tuple[Arrays, dict[str, float]]:
        """Return the arrays combined by the rule, with its metrics; updates are from `start`."""
        if self.aggregation in (MEDIAN, TRIMMED):
            return self._by_number(models, models[0]), {}
        names = [name for name in models[0] if name not in buffers]
        metrics: dict[str, float] = {}
        if self.aggregation == CLIPPING:
            factors = self._shortened([_length(model, start, names) for model in models])
            mean = {n: start[n] + _average(models, n, weights, start, factors) for n in names}
            metrics["clipped"] = float(np.mean(factors < 1))
        else:
            f = self._tolerated(len(models))
            best = np.argsort(krum_scores(models, names, f), kind="stable")
            positions = sorted(best[:1] if self.aggregation == KRUM else best[: len(models) - f])
            chosen = [models[position] for position in positions]
            mean = {n: _average(chosen, n, weights[positions]) for n in names}
            if self.aggregation == KRUM:
                metrics["krum-client"] = float(positions[0])
        return mean | self._by_number(models, buffers), metrics

    def _by_number(self, models: Sequence[Arrays], names: Iterable[str]) -> Arrays:
        """Return the elementwise median, or trimmed mean, of the arrays of these names."""
        n = len(models)
        # A median is the mean of the one or two in the middle; sorting is faster than np.median.
        cut = self._tolerated(n) if self.aggregation == TRIMMED else (n - 1) // 2
        means: Arrays = {}
        for name in names:
            values = np.sort(np.stack([model[name] for model in models]), axis=0)
            means[name] = values[cut : n - cut].mean(axis=0)
        return means

    def _shortened(self, lengths: Sequence[float]) -> Numbers:
        """Return the factor, at most 1, that clips each update to the allowed l2 norm."""
        most = self.clip_factor * float(np.median(lengths))
        return np.array([most / length if length > most else 1.0 for length in lengths])


def krum_scores(models: Sequence[Arrays], names: Sequence[str], f: int) -> Numbers:
    """Return each client's sum of squared distances to the n - f - 2 others nearest to it."""
    n = len(models)
    squares = np.full((n, n), np.inf)
    with np.errstate(over="ignore"):  # Whoever is that far away is near to nobody.
        for i, j in combinations(range(n), 2):
            differences = (models[i][name] - models[j][name] for name in names)
            squares[i, j] = squares[j, i] = _squared_length(differences)
    return np.asarray(np.sort(squares, axis=1)[:, : n - f - 2].sum(axis=1))


def _length(model: Arrays, start: Arrays, names: Sequence[str]) -> float:
    """Return the l2 norm of a client's update over all arrays of these names."""
    with np.errstate(over="ignore"):
        return math.sqrt(_squared_length(model[name] - start[name] for name in names))


def _squared_length(arrays: Iterable[Numbers]) -> float:
    return sum(float(np.vdot(array, array)) for array in arrays)


def _average(
    models: Sequence[Arrays],
    name: str,
    weights: Numbers,
    start: Arrays | None = None,
    factors: Numbers | None = None,
) -> npt.NDArray[np.float64]:
    """Return sum_j w_j a_j (x_j - start) / sum_j w_j of one array; a_j are the `factors`."""
    before = start[name] if start else 0.0
    coefficients = weights if factors is None else weights * factors
    terms = (c * (model[name] - before) for c, model in zip(coefficients, models, strict=True))
    return np.asarray(sum(terms) / weights.sum())
