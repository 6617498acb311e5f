"""Robust aggregation: rules to aggregate clients' results if some clients may be attackers.

The server is sent each client's arrays separately (`PerClient`) and aggregates them by a rule:

median         the elementwise median (Yin et al. 2018, arxiv.org/abs/1803.01498)
trimmed-mean   the elementwise mean without the f largest and the f smallest values (the same paper)
krum           the arrays of the client with the smallest score; a client's score is the sum of its
               squared distances to the n - f - 2 clients nearest to it (Blanchard et al. 2017,
               arxiv.org/abs/1703.02757)
multi-krum     the mean of the n - f clients with the smallest scores (the same paper)
norm-clipping  the mean of the updates, each clipped to a largest l2 norm (Sun et al. 2019,
               arxiv.org/abs/1911.07963; in the paper the largest norm is a constant, here it is
               `clip_factor` times the median norm of the updates)

n is the number of replies, and f is `tolerated_share` * n, rounded down. The first three rules are
unweighted, as in the papers. The last two rules weight clients as the mean would. Clients report
their weights themselves, so the weights are winsorised: clipped to the range without the f largest
and the f smallest. So are the losses in CoPreFL. Otherwise an attacker that reports a billion
samples would dominate the mean.

A client's update is x_j - x, where x_j is the client's result and x the arrays that were sent. For
gradients, and for arrays named in `changes`, the update is the result itself. Scores and norms are
over all weights of the model together, without buffers (BatchNorm's statistics). Buffers are
aggregated by the elementwise median, or with `trimmed-mean` by the trimmed mean, because a client
with a good update could still send any statistics. All computations are in float64 and in the
order of client ids, so the result does not depend on which node hosts which client.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, cast_like, is_buffer, norm
from coprefl_flwr.errors import RoundFailedError, SettingsError
from coprefl_flwr.federation.aggregation import LossMoments, Mean, MetricsOnly, PerClient
from coprefl_flwr.federation.exchange import Exchange, Replies, Round, RoundMetrics

MEAN, MEDIAN, TRIMMED, KRUM, MULTI_KRUM, CLIPPING = AGGREGATIONS = (
    *("mean", "median", "trimmed-mean"),
    *("krum", "multi-krum", "norm-clipping"),
)
"""Allowed values of the option `aggregation`; all except the mean are robust rules."""

AGGREGATION = ("aggregation", "tolerated_share", "clip_factor")
"""Names of the options that only strategies that average have."""

MOST_ATTACKERS = 0.49
"""Largest allowed fraction of attackers; if half of the clients are, no rule can work."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Robust:
    """A robust aggregation rule.

    `aggregation` is the name of the rule. `tolerated_share` is the largest fraction of clients that
    may be attackers. `clip_factor` is the largest norm of an update with norm-clipping, in median
    norms.
    """

    aggregation: str
    tolerated_share: float
    clip_factor: float

    def around(self, program: Round, buffers: Collection[str] = ()) -> Round:
        """Return the generator of a round with all means replaced by the robust rule.

        `buffers` are the names of the model's buffers.
        """
        of_rule: RoundMetrics = {}
        try:
            exchange = next(program)
            while True:
                answers = yield self.per_client(exchange)
                replies, metrics = self.mean(exchange, answers, buffers)
                of_rule |= metrics
                exchange = program.send(replies)
        except StopIteration as end:
            arrays, metrics = end.value
        return arrays, metrics | of_rule

    def per_client(self, exchange: Exchange) -> Exchange:
        """Return the exchange changed so that the server is sent each client's arrays separately.

        An exchange without arrays is returned unchanged. Raises a SettingsError if the exchange's
        aggregation rule has no robust form, or if the exchange has too few clients.
        """
        rule = exchange.combine
        if isinstance(rule, MetricsOnly):
            return exchange
        if not isinstance(rule, Mean | LossMoments):
            problem = f"{exchange.action} uses the rule '{rule}', which has no robust form"
            raise SettingsError(f"aggregation = {self.aggregation}: {problem}", "aggregation")
        self.check(len(exchange.clients))
        return replace(exchange, combine=PerClient(rule))

    def check(self, clients: int) -> None:
        """Raise a SettingsError if this number of clients is too small for the rule."""
        if problem := self._too_few(clients):
            raise SettingsError(problem, "aggregation", "tolerated-share")

    def mean(
        self, exchange: Exchange, replies: Replies, buffers: Collection[str] = ()
    ) -> tuple[Replies, dict[str, float]]:
        """Return the replies with the robust mean as `arrays`, and the metrics of the rule.

        `exchange` is the original exchange, and `replies` are the replies to
        `per_client(exchange)`. Replies with gradients (`LossMoments`) are returned unchanged;
        `robust_sum` aggregates them. Raises a RoundFailedError if there are too few replies.
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
        averaged = {name for name in sent if is_buffer(name, sent[name], buffers)}
        weights = np.ones(len(models))
        if rule.weight:
            weights = self.winsorise(replies.metrics[rule.weight])
        arrays, metrics = self._combined(models, start, averaged, weights)
        if "krum-client" in metrics:
            metrics["krum-client"] = float(replies.clients[int(metrics["krum-client"])])
        return replace(replies, arrays=cast_like(arrays, sent), sums={}), metrics

    def robust_sum(self, gradients: Sequence[Arrays]) -> Arrays:
        """Return n times the robust, unweighted mean of n clients' gradients."""
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
        """Return f, the tolerated number; 1e-9 corrects products such as 0.29 * 100 < 29."""
        return math.floor(self.tolerated_share * clients + 1e-9)

    def _too_few(self, clients: int) -> str:
        """Return a message if this number of clients is too small for the rule, or else ""."""
        needed = 2 * self._tolerated(clients) + 3
        if self.aggregation not in (KRUM, MULTI_KRUM) or clients >= needed:
            return ""
        needs = f"tolerated-share = {self.tolerated_share:g} needs {needed}; use a smaller share"
        return f"aggregation = {self.aggregation}: {clients} clients are too few: {needs}"

    def _combined(
        self, models: Sequence[Arrays], start: Arrays, buffers: set[str], weights: Numbers
    ) -> tuple[Arrays, dict[str, float]]:
        """Return (aggregated arrays, metrics of the rule); updates are differences from `start`."""
        if self.aggregation in (MEDIAN, TRIMMED):
            return self._by_number(models, models[0]), {}
        names = [name for name in models[0] if name not in buffers]
        metrics: dict[str, float] = {}
        if self.aggregation == CLIPPING:
            updates = ({n: model[n] - start[n] for n in names} for model in models)
            with np.errstate(over="ignore"):  # Infinity is a correct norm for such a client.
                factors = self._shortened(list(map(norm, updates)))
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
        """Return the elementwise median, or trimmed mean, of the arrays with these names."""
        n = len(models)
        # The median is the mean of the one or two middle values; sorting is faster than np.median.
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
    """Return Krum's score of each client, shape (n,).

    The score is the sum of squared distances to the n - f - 2 nearest other clients.
    """
    n = len(models)
    squares = np.full((n, n), np.inf)
    with np.errstate(over="ignore"):  # Infinity is a correct distance for such a client.
        for i, j in combinations(range(n), 2):
            differences = (models[i][name] - models[j][name] for name in names)
            squares[i, j] = squares[j, i] = sum(float(np.vdot(d, d)) for d in differences)
    return np.asarray(np.sort(squares, axis=1)[:, : n - f - 2].sum(axis=1))


def _average(
    models: Sequence[Arrays],
    name: str,
    weights: Numbers,
    start: Arrays | None = None,
    factors: Numbers | None = None,
) -> npt.NDArray[np.float64]:
    """Return sum_j w_j a_j (x_j - start) / sum_j w_j for one array; a_j is factors[j]."""
    before = start[name] if start else 0.0
    coefficients = weights if factors is None else weights * factors
    terms = (c * (model[name] - before) for c, model in zip(coefficients, models, strict=True))
    return np.asarray(sum(terms) / weights.sum())
