"""CoPreFL's meta objective and its first-order gradient.

With the participants' query losses L_1..L_m at the temporary global model and gamma in [0, 1]
(ICLR text eq. 3 to 5 and Algorithm 1 line 16; AAAI text eq. 3 and 4):

    L_meta = gamma * sum_j L_j + (1 - gamma) * var,    var = 1/m sum_j (L_j - mean L)^2

The first term is a sum, not a mean, as printed. Differentiating with respect to the temporary
global model (first order: it is taken as a free variable, AAAI text) gives

    grad L_meta = sum_j c_j g_j,    c_j = gamma + (1 - gamma) * 2/m * (L_j - mean L)

where m is the number of query replies that came back.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, cast

Losses = npt.NDArray[np.float64]


def meta_loss(losses: Losses, gamma: float) -> float:
    """Return L_meta of the query losses, shape (m,)."""
    return float(gamma * losses.sum() + (1 - gamma) * losses.var())


def meta_gradient(
    gradient: Arrays, loss_gradient: Arrays, losses: Losses, gamma: float, reference: float
) -> Arrays:
    """Return grad L_meta from the two moments of the clients' gradients, exactly.

    With G1 = sum_j g_j and G2 = sum_j (L_j - r) g_j for any reference r,

        grad L_meta = gamma G1 + (1 - gamma) * 2/m * (G2 - (mean L - r) G1).

    A reference near the mean loss keeps the difference in the bracket free of cancellation.
    `gradient` and `loss_gradient` are G1 and G2, float64; `losses` are the L_j, shape (m,).
    """
    spread = (1 - gamma) * 2 / len(losses)
    shift = losses.mean() - reference
    return {
        name: gamma * g1 + spread * (loss_gradient[name] - shift * g1)
        for name, g1 in gradient.items()
    }


def meta_step(
    arrays: Arrays,
    sums: Mapping[str, Arrays],
    losses: Losses,
    *,
    gamma: float,
    reference: float,
    learning_rate: float,
) -> Arrays:
    """Return the meta update arrays - learning_rate * grad L_meta (Algorithm 1 line 17).

    `sums` are those of the rule `LossMoments(reference)`: "gradient" and "loss-gradient".
    """
    gradient = meta_gradient(sums["gradient"], sums["loss-gradient"], losses, gamma, reference)
    return descend(arrays, gradient, learning_rate)


def meta_metrics(losses: Losses, gamma: float) -> dict[str, float]:
    """Return what a round reports of its query losses, shape (m,)."""
    return {
        "query-loss": float(losses.mean()),
        "query-loss-variance": float(losses.var()),
        "meta-loss": meta_loss(losses, gamma),
    }


def descend(arrays: Arrays, gradient: Arrays, learning_rate: float) -> Arrays:
    """Return arrays - learning_rate * gradient, computed in float64; buffers stay as they are."""
    return {
        name: cast(np.float64(array) - learning_rate * gradient[name], array.dtype)
        if name in gradient
        else array
        for name, array in arrays.items()
    }
