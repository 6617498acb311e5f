"""Ridge regression on the features as the last layer (Fed3R)."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.learning.prototypes import unit_rows
from coprefl_flwr.options import option
from coprefl_flwr.strategies.linear_head import LinearHead


@dataclass(kw_only=True, eq=False)
class Ridge(LinearHead):
    """Ridge regression onto one-hot labels, after Fed3R.

    Fed3R is Fanì et al. 2024 (arxiv.org/abs/2406.01116). The layer is
    W = (sum z z^T + lambda I)^-1 sum z y^T over all samples of all clients, each class's column
    divided by its l2 norm. The bias is 0.
    """

    penalty: float = option(0.01, "lambda, weight of the squared length of W", above=0)

    name = "ridge"
    products = True

    def layer(self, totals: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return W^T with rows of norm 1 as weights, and zeros as biases."""
        products = totals["products"]
        regular = products + self.penalty * np.eye(len(products))
        rows = np.linalg.solve(regular, totals["sums"].T).T
        return unit_rows(rows), np.zeros(len(rows))
