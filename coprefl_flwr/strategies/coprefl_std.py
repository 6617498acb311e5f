"""CoPreFL with the mean and the standard deviation of the query losses: a variant of ours."""

from dataclasses import dataclass

from coprefl_flwr.learning.meta import Losses, Terms, mean_and_deviation
from coprefl_flwr.options import option
from coprefl_flwr.strategies.coprefl import CoPreFL


@dataclass(kw_only=True, eq=False)
class CoPreFLStd(CoPreFL):
    """CoPreFL whose meta objective is gamma * mean_j L_j + (1 - gamma) * std_j L_j.

    In no paper: it is ours, to see what gamma could do. In the printed objective (AAAI text eq. 4)
    the variance of the query losses is some hundredths where their sum over 20 participants is some
    tens, so that gamma sets the length of the step and hardly balances anything; mean and standard
    deviation have one unit and, over the participants, one size.
    """

    gamma: float = option(
        0.5,
        "balance: 1 the mean of the query losses, 0 their standard deviation",
        minimum=0,
        maximum=1,
    )

    name = "coprefl-std"
    refined_name = "coprefl-std-sgd"

    def terms(self, losses: Losses) -> Terms:
        """Return the mean of the query losses and their standard deviation."""
        return mean_and_deviation(losses)
