"""CoPreFL with the mean and the standard deviation of the query losses: our variant."""

from dataclasses import dataclass

from coprefl_flwr.learning.meta import mean_and_deviation
from coprefl_flwr.options import option
from coprefl_flwr.strategies.coprefl import CoPreFL


@dataclass(kw_only=True, eq=False)
class CoPreFLStd(CoPreFL):
    """CoPreFL whose meta objective is gamma * mean_j L_j + (1 - gamma) * std_j L_j.

    This variant is in no paper. We added it to study the effect of gamma. In the printed objective
    (ICLR text eq. 5) the variance of the query losses is some hundredths, while their sum over 20
    participants is some tens. The variance's gradient is as small, so gamma sets the norm of the
    meta step and hardly balances the two terms. The gradient of the standard deviation is the mean
    of the g_j, each multiplied by (L_j - mean L) / std L. Its norm depends on how far the gradients
    g_j differ, and does not shrink when the losses are close to each other.
    """

    gamma: float = option(
        0.5,
        "balance of the two terms: 1 is the mean of the query losses, 0 is their standard "
        "deviation",
        minimum=0,
        maximum=1,
    )

    name = "coprefl-std"
    terms = staticmethod(mean_and_deviation)
