"""CoPreFL's meta objective and its first-order gradient.

L_1..L_m are the participants' query losses at the temporary global model, and gamma is in [0, 1].
The meta objective is (ICLR text eq. 3 to 5 and Algorithm 1 line 16; AAAI text eq. 3 and 4):

    L_meta = gamma * sum_j L_j + (1 - gamma) * var,    var = 1/m sum_j (L_j - mean L)^2

The first term is a sum, not a mean, as in the paper (`OBJECTIVES` has it with a mean too). The
gradient is taken with respect to the temporary global model. It is of first order: the temporary
global model is treated as a free variable (AAAI text). With the clients' query gradients g_j, the
gradient is

    grad L_meta = sum_j c_j g_j,    c_j = gamma + (1 - gamma) * 2/m * (L_j - mean L)

where m is the number of query replies that the server received. Other pairs of terms may replace
the sum and the variance (see `Terms`).
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
"""Relative tolerance: losses count as equal if their standard deviation is at most this fraction
of their mean. Their differences are then within float32 rounding."""


@dataclass(frozen=True)
class Terms:
    """The two terms of L_meta = gamma * first + (1 - gamma) * second for given query losses.

    With G1 and G2 as in `meta_gradient`, the gradient of the first term is G1 / `count`. The
    gradient of the second term is (G2 - mean L G1) / `width`. If `width` is infinite, the gradient
    of the second term is zero.
    """

    names: tuple[str, str]
    first: float
    second: float
    count: float
    width: float


MetaObjective = Callable[[Losses], Terms]
"""A function that returns the terms for the query losses, float64 (m,)."""


def sum_and_variance(losses: Losses) -> Terms:
    """Return CoPreFL's terms: the sum of the losses and their variance."""
    m = len(losses)
    return Terms(("sum", "variance"), float(losses.sum()), float(losses.var()), 1, m / 2)


def mean_and_variance(losses: Losses) -> Terms:
    """Return CoPreFL's terms with the mean of the losses instead of their sum.

    The weight of g_j is c_j = (gamma + (1 - gamma) 2 (L_j - mean L)) / m. So the length of the meta
    step does not depend on how many clients take part.
    """
    m = len(losses)
    return Terms(("mean", "variance"), float(losses.mean()), float(losses.var()), m, m / 2)


OBJECTIVES: Mapping[str, MetaObjective] = {"sum": sum_and_variance, "mean": mean_and_variance}
"""CoPreFL's objective with either first term, by the option `meta_reduction`."""


def mean_and_deviation(losses: Losses) -> Terms:
    """Return the terms of `CoPreFLStd`: the mean of the losses and their standard deviation sigma.

    These terms are from this project, not from a paper. The weight of g_j is
    c_j = gamma/m + (1 - gamma) (L_j - mean L) / (m sigma). If the losses are equal (see `EQUAL`),
    the second summand is 0, because sigma is not differentiable there.
    """
    m, mean, deviation = len(losses), float(losses.mean()), float(losses.std())
    width = m * deviation if deviation > EQUAL * abs(mean) else math.inf
    return Terms(("mean", "deviation"), mean, deviation, m, width)


def _each_weighted(
    gradients: Mapping[str, Arrays], losses: Losses, gamma: float, terms: Terms
) -> list[Arrays]:
    """Return the list of the c_j g_j, in the order of the client ids, the keys of `gradients`."""
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
    """Return grad L_meta, computed exactly from two sums over the clients, and a round's metrics.

    With G1 = sum_j g_j and G2 = sum_j L_j g_j, the gradient for the sum and the variance is

        grad L_meta = gamma G1 + (1 - gamma) * 2/m * (G2 - mean L G1)

    `sums` are the sums of the rule `LossMoments()`, float64: "gradient" is G1 and "loss-gradient"
    is G2. `losses` are the L_j, shape (m,). The difference in the bracket loses digits if the
    losses are nearly equal. If their standard deviation is more than 1e-7 of their mean, this error
    is smaller than the rounding of float32 gradients.

    The metrics describe the round's query losses. They contain L_meta ("meta-loss") and its two
    terms, not weighted by gamma ("meta-sum" and "meta-variance"). They also contain the l2 norms of
    the terms' gradients over all trainable arrays ("meta-sum-gradient" and
    "meta-variance-gradient"). The terms of another objective have other names.

    `robust` is a `federation.robust.Robust` or None. With `robust`, `sums` are the clients' g_j by
    client id. The losses are winsorised first, because each c_j depends on all losses. Then
    sum_j c_j g_j is replaced by m times the robust mean of the c_j g_j. The metrics then have no
    norms of the terms' gradients.
    """
    if robust is not None:
        losses = robust.winsorise(losses)
    terms, mean = objective(losses), losses.mean()
    values = dict(zip(terms.names, (terms.first, terms.second), strict=True))
    metrics = {
        "query-loss": float(mean),
        "query-loss-variance": float(losses.var()),
        "meta-loss": gamma * terms.first + (1 - gamma) * terms.second,
        **{f"meta-{name}": value for name, value in values.items()},
    }
    if robust is not None:
        return robust.robust_sum(_each_weighted(sums, losses, gamma, terms)), metrics
    gradient, squares = Arrays(), np.zeros(2)
    for name, g1 in sums["gradient"].items():
        centred = sums["loss-gradient"][name] - mean * g1
        squares += np.vdot(g1, g1), np.vdot(centred, centred)
        gradient[name] = gamma / terms.count * g1 + (1 - gamma) / terms.width * centred
    # Each norm is over all arrays together. Tied weights count once for each of their names.
    lengths = np.sqrt(squares) / (terms.count, terms.width)
    for term, length in zip(terms.names, lengths.tolist(), strict=True):
        metrics[f"meta-{term}-gradient"] = length
    return gradient, metrics


def descend(arrays: Arrays, gradient: Arrays, learning_rate: float) -> Arrays:
    """Return arrays - learning_rate * gradient, computed in float64.

    Arrays without a gradient, such as buffers, are returned unchanged.
    """
    moved = {
        name: cast(np.float64(arrays[name]) - learning_rate * slope, arrays[name].dtype)
        for name, slope in gradient.items()
    }
    return arrays | moved
