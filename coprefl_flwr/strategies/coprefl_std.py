"""Our variant of CoPreFL, with the mean and the standard deviation of the query losses."""

from dataclasses import dataclass, field

from coprefl_flwr.learning.meta import mean_and_deviation
from coprefl_flwr.options import same_option
from coprefl_flwr.strategies.coprefl import CoPreFL


@dataclass(kw_only=True, eq=False)
class CoPreFLStd(CoPreFL):
    """CoPreFL whose meta objective is gamma * mean_j L_j + (1 - gamma) * std_j L_j.

    L_j is the query loss of participant j. No paper contains this variant. We added it to study the
    effect of gamma. In the paper's objective (ICLR text eq. 5) the variance of the query losses is
    a few hundredths, but their sum over 20 participants is a few tens. The gradient of the variance
    is as small, so gamma mainly sets the norm of the meta step, and hardly balances the two terms.
    The gradient of the standard deviation is the mean of the query gradients g_j, each multiplied
    by (L_j - mean L) / std L. Its norm depends on the differences between the gradients g_j. It
    does not become small if the losses are close to each other.
    """

    gamma: float = same_option(
        CoPreFL,
        "gamma",
        meaning="balance of the two terms: 1 is the mean of the query losses, 0 is their standard "
        "deviation",
    )
    meta_reduction: str = field(default="mean", init=False, metadata={"option": False})

    name = "coprefl-std"
    terms = staticmethod(mean_and_deviation)
