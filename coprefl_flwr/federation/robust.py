"""Robust aggregation: what becomes of clients' results where some clients may be attackers.

The server is sent each client's arrays apart (`SeparateOf`) and makes one of them by a rule:

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, cast_like, is_buffer
from coprefl_flwr.errors import RoundFailedError, SettingsError
from coprefl_flwr.federation.aggregation import LossMoments, Mean, MetricsOnly, SeparateOf
from coprefl_flwr.federation.exchange import Exchange, Metrics, Replies, Round

MEAN, MEDIAN, TRIMMED, KRUM, MULTI_KRUM, CLIPPING = AGGREGATIONS = (
    "mean",
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "norm-clipping",
)
"""What the option `aggregation` may be; the mean is not robust."""

AGGREGATION = ("aggregation", "tolerated_share", "clip_factor")
"""Options of a strategy that averages."""

MOST_ATTACKERS = 0.49
"""No rule can tell attackers from others where they are as many."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Robust:
    """A robust rule: `aggregation`, `tolerated_share`, and `clip_factor` median lengths."""

    aggregation: str
    tolerated_share: float
    clip_factor: float

    def around(self, program: Round) -> Round:
        """Return a round's program with the rule instead of its means."""
        about: Metrics = {}
        try:
            exchange = next(program)
            while True:
                replies, more = self.mean(exchange, (yield self.per_client(exchange)))
                about |= more
                exchange = program.send(replies)
        except StopIteration as end:
            arrays, metrics = end.value
        return arrays, metrics | about

    def per_client(self, exchange: Exchange) -> Exchange:
        """Return an exchange that asks for each client's arrays apart, if it asks for a mean.

        Raises a SettingsError if it asks for what there is no robust form of, or too few clients.
        """
        rule = exchange.combine
        if isinstance(rule, MetricsOnly):
            return exchange
        if not isinstance(rule, Mean | LossMoments):
            problem = f"{exchange.action} is combined by '{rule}', of which there is no robust form"
            raise SettingsError(f"aggregation = {self.aggregation}: {problem}", "aggregation")
        self.check(len(exchange.clients))
        return replace(exchange, combine=SeparateOf(rule))

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
        each = [replies.sums[str(client)] for client in replies.clients]
        start = {n: np.zeros(()) if n in exchange.changes else array for n, array in sent.items()}
        buffers = {name for name in sent if is_buffer(name, sent[name])}
        told = [replies.metrics[rule.weight]] if rule.weight else []
        found, about = self._combined(each, start, buffers, *map(self.winsorise, told))
        if "krum-client" in about:
            about["krum-client"] = float(replies.clients[int(about["krum-client"])])
        return replace(replies, arrays=cast_like(found, sent), sums={}), about

    def robust_sum(self, each: Sequence[Arrays]) -> Arrays:
        """Return n times the robust mean of n clients' gradients, which have no weights."""
        start = {name: np.zeros(()) for name in each[0]}
        found, _ = self._combined(each, start, set())
        return {name: len(each) * array for name, array in found.items()}

    def winsorise(self, values: Numbers) -> Numbers:
        """Return values cut to the range that is left without the f largest and the f smallest.

        Up to f attackers cannot move one beyond what others have; this is known as winsorising.
        """
        left = np.sort(values)[self._tolerated(len(values)) :]
        least, most = left[0], left[len(left) - 1 - self._tolerated(len(values))]
        return np.clip(values, least, most)

    def _tolerated(self, clients: int) -> int:
        """Return f; 0.29 of 100 are 29, though their product is a bit less."""
        return math.floor(self.tolerated_share * clients + 1e-9)

    def _too_few(self, clients: int) -> str:
        """Say that this many clients are too few, or return ""."""
        needed = 2 * self._tolerated(clients) + 3
        if self.aggregation not in (KRUM, MULTI_KRUM) or clients >= needed:
            return ""
        of = f"with tolerated-share = {self.tolerated_share:g} of {clients} clients"
        return f"aggregation = {self.aggregation}: {of} at least {needed} are needed"

    def _combined(
        self,
        each: Sequence[Arrays],
        start: Arrays,
        buffers: set[str],
        told: Numbers | None = None,
    ) -> tuple[Arrays, dict[str, float]]:
        """Return what becomes of the clients' arrays, whose updates are from `start`."""
        if self.aggregation in (MEDIAN, TRIMMED):
            return self._by_number(each, each[0]), {}
        weights = np.ones(len(each)) if told is None else told
        names = [name for name in each[0] if name not in buffers]
        about: dict[str, float] = {}
        if self.aggregation == CLIPPING:
            factors = self._shortened([_length(one, start, names) for one in each])
            found = {n: start[n] + _average(each, n, weights, start, factors) for n in names}
            about["clipped"] = float(np.mean(factors < 1))
        else:
            f = self._tolerated(len(each))
            best = np.argsort(krum_scores(each, names, f), kind="stable")
            kept = sorted(best[:1] if self.aggregation == KRUM else best[: len(each) - f])
            chosen = [each[position] for position in kept]
            found = {n: _average(chosen, n, weights[kept]) for n in names}
            if self.aggregation == KRUM:
                about["krum-client"] = float(kept[0])
        return found | self._by_number(each, buffers), about

    def _by_number(self, each: Sequence[Arrays], names: "Arrays | set[str]") -> Arrays:
        """Return the median, or the trimmed mean, of each number by itself."""
        n = len(each)
        # A median is the mean of the one or two in the middle; sorting is faster than np.median.
        cut = self._tolerated(n) if self.aggregation == TRIMMED else (n - 1) // 2
        found: Arrays = {}
        for name in names:
            values = np.sort(np.stack([one[name] for one in each]), axis=0)
            found[name] = values[cut : n - cut].mean(axis=0)
        return found

    def _shortened(self, lengths: Sequence[float]) -> Numbers:
        """Return what each update is multiplied by: at most 1."""
        most = self.clip_factor * float(np.median(lengths))
        return np.array([most / length if length > most else 1.0 for length in lengths])


def krum_scores(each: Sequence[Arrays], names: Sequence[str], f: int) -> Numbers:
    """Return each client's sum of squared distances to the n - f - 2 others nearest to it."""
    n = len(each)
    squares = np.full((n, n), np.inf)
    with np.errstate(over="ignore"):  # Whoever is that far away is near to nobody.
        for i, j in combinations(range(n), 2):
            apart = (each[i][name] - each[j][name] for name in names)
            squares[i, j] = squares[j, i] = sum(float(np.vdot(one, one)) for one in apart)
    return np.asarray(np.sort(squares, axis=1)[:, : n - f - 2].sum(axis=1))


def _length(one: Arrays, start: Arrays, names: Sequence[str]) -> float:
    """Return how long a client's update is over all its weights."""
    with np.errstate(over="ignore"):
        moved = (one[name] - start[name] for name in names)
        return math.sqrt(sum(float(np.vdot(array, array)) for array in moved))


def _average(
    each: Sequence[Arrays],
    name: str,
    weights: Numbers,
    start: Arrays | None = None,
    factors: Numbers | None = None,
) -> npt.NDArray[np.float64]:
    """Return sum_j w_j a_j (x_j - start) / sum_j w_j of one array; a_j are the `factors`."""
    before = start[name] if start else 0.0
    coefficients = weights if factors is None else weights * factors
    terms = (c * (one[name] - before) for c, one in zip(coefficients, each, strict=True))
    return np.asarray(sum(terms) / weights.sum())
