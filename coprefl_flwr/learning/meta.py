"""CoPreFL's meta objective and its first-order gradient.

With the participants' query losses L_1..L_m at the temporary global model and gamma in [0, 1]
(ICLR text eq. 3 to 5 and Algorithm 1 line 16; AAAI text eq. 3 and 4):

    L_meta = gamma * sum_j L_j + (1 - gamma) * var,    var = 1/m sum_j (L_j - mean L)^2

The first term is a sum, not a mean, as printed. Differentiating with respect to the temporary
global model (first order: it is taken as a free variable, AAAI text) gives

    grad L_meta = sum_j c_j g_j,    c_j = gamma + (1 - gamma) * 2/m * (L_j - mean L)

where m is the number of query replies that came back. Other pairs of terms may take the place of
the sum and the variance: see `Terms`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, cast

Losses = npt.NDArray[np.float64]

EQUAL = 1e-7
"""Losses whose standard deviation is at most this part of their mean are equal, to float32's
rounding: a deviation of them has no direction."""


@dataclass(frozen=True)
class Terms:
    """The two terms of L_meta = gamma * first + (1 - gamma) * second, at some query losses.

    With G1 and G2 as in `meta_gradient`, the gradient of the first is G1 / `count`, that of the
    second (G2 - mean L G1) / `width`; a width of infinity is a gradient of zeros.
    """

    names: tuple[str, str]
    first: float
    second: float
    count: float
    width: float

    def loss(self, gamma: float) -> float:
        """Return L_meta."""
        return gamma * self.first + (1 - gamma) * self.second


MetaObjective = Callable[[Losses], Terms]
"""Gives the terms of query losses, shape (m,)."""


def sum_and_variance(losses: Losses) -> Terms:
    """Return CoPreFL's terms: the sum of the losses and their variance."""
    m = len(losses)
    return Terms(("sum", "variance"), float(losses.sum()), float(losses.var()), 1, m / 2)


def mean_and_deviation(losses: Losses) -> Terms:
    """Return the mean of the losses and their standard deviation (ours: see `CoPreFLStd`).

    c_j = gamma/m + (1 - gamma) (L_j - mean L) / (m sigma); the second part is 0 where the losses
    are `EQUAL`, as sigma has a kink there.
    """
    m, mean, deviation = len(losses), float(losses.mean()), float(losses.std())
    width = m * deviation if deviation > EQUAL * abs(mean) else math.inf
    return Terms(("mean", "deviation"), mean, deviation, m, width)


def _each_weighted(
    gradients: Mapping[str, Arrays], losses: Losses, gamma: float, terms: Terms
) -> list[Arrays]:
    """Return each c_j g_j, in the order of the ids by which the g_j are named."""
    factors = gamma / terms.count + (1 - gamma) / terms.width * (losses - losses.mean())
    clients = sorted(gradients, key=int)
    return [
        {name: factor * g for name, g in gradients[client].items()}
        for factor, client in zip(factors, clients, strict=True)
    ]


def meta_gradient(
    sums: Mapping[str, Arrays],
    losses: Losses,
    gamma: float,
    objective: MetaObjective = sum_and_variance,
    robust: Any = None,
) -> tuple[Arrays, dict[str, float]]:
    """Return grad L_meta from the two moments of the clients' gradients, exactly, and metrics.

    With G1 = sum_j g_j and G2 = sum_j L_j g_j,

        grad L_meta = gamma G1 + (1 - gamma) * 2/m * (G2 - mean L G1)

    for the sum and the variance. `sums` are those of the rule `LossMoments()`, float64: "gradient"
    is G1 and "loss-gradient" G2. While the losses spread by more than 1e-7 of their mean, the
    difference in the bracket loses less than the rounding of float32 gradients. `losses` are the
    L_j, shape (m,).

    The metrics are what a round reports of its query losses: L_meta, its terms, neither weighted by
    gamma, as "meta-sum" and "meta-variance", and the lengths of their gradients over all trainable
    arrays, "meta-sum-gradient" and "meta-variance-gradient"; another objective's terms have their
    own names.

    With `robust`, a `federation.robust.Robust`, `sums` are the clients' g_j by their ids, the
    losses are kept within those of the others, as each c_j depends on all of them, and
    sum_j c_j g_j becomes m times the robust mean of the c_j g_j, which has no part for each term.
    """
    if robust is not None:
        losses = robust.winsorise(losses)
    terms, mean = objective(losses), losses.mean()
    values = dict(zip(terms.names, (terms.first, terms.second), strict=True))
    metrics = {
        "query-loss": float(mean),
        "query-loss-variance": float(losses.var()),
        "meta-loss": terms.loss(gamma),
        **{f"meta-{name}": value for name, value in values.items()},
    }
    if robust is not None:
        return robust.robust_sum(_each_weighted(sums, losses, gamma, terms)), metrics
    gradient, squares = Arrays(), np.zeros(2)
    for name, g1 in sums["gradient"].items():
        centred = sums["loss-gradient"][name] - mean * g1
        squares += np.vdot(g1, g1), np.vdot(centred, centred)
        gradient[name] = gamma / terms.count * g1 + (1 - gamma) / terms.width * centred
    # Over all arrays together; tied weights count under each of their names.
    lengths = np.sqrt(squares) / (terms.count, terms.width)
    for term, length in zip(terms.names, lengths.tolist(), strict=True):
        metrics[f"meta-{term}-gradient"] = length
    return gradient, metrics


def descend(arrays: Arrays, gradient: Arrays, learning_rate: float) -> Arrays:
    """Return arrays - learning_rate * gradient, computed in float64; buffers stay as they are."""
    moved = {
        name: cast(np.float64(arrays[name]) - learning_rate * slope, arrays[name].dtype)
        for name, slope in gradient.items()
    }
    return arrays | moved
