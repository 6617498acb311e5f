"""CoPreFL with the mean and the standard deviation of the query losses: our variant."""

from dataclasses import dataclass

from coprefl_flwr.learning.meta import mean_and_deviation
from coprefl_flwr.options import option
from coprefl_flwr.strategies.coprefl import CoPreFL


@dataclass(kw_only=True, eq=False)
class CoPreFLStd(CoPreFL):
    """CoPreFL whose meta objective is gamma * mean_j L_j + (1 - gamma) * std_j L_j.

    It is in no paper: we added it to see what gamma could do. In the printed objective (ICLR text
    eq. 5) the variance of the query losses is some hundredths where their sum over 20 participants
    is some tens, and its gradient shrinks with it, so that gamma sets the length of the step and
    hardly balances anything. The gradient of the deviation is the mean of the g_j, each times the
    number of deviations between L_j and the mean: its length is how far the g_j differ, however
    close the losses are.
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
