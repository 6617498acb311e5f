"""FedCOF: ridge regression whose matrix is estimated from the clients' class means."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.learning.prototypes import unit_rows
from coprefl_flwr.options import option
from coprefl_flwr.strategies.linear_head import LinearHead


@dataclass(kw_only=True, eq=False)
class FedCOF(LinearHead):
    """Ridge regression from class means only, after FedCOF (arxiv.org/abs/2412.14326).

    Client i has n_ic samples of class c, with the mean m_ic. The mean m_c of all N_c samples of the
    class, and the K_c clients that have some, estimate the class's covariance:
    S_c = sum_i n_ic (m_ic - m_c)(m_ic - m_c)^T / (K_c - 1) + shrinkage I. With m the mean of all N
    samples, G = sum_c (N_c - 1) S_c + N m m^T, and W = G^-1 (sum of z of each class), with rows of
    length 1. The bias is 0.

    The server needs the means of every client, so sums over the clients are not enough.
    """

    shrinkage: float = option(1.0, "gamma, added to the diagonal of each covariance", above=0)

    name = "fedcof"
    by_client = True

    def layer(self, totals: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return W^T with rows of norm 1 as weights, and zeros as biases."""
        sums, counts = totals["sums"], totals["counts"]  # (clients, C, d), (clients, C)
        of_class, n = sums.sum(axis=0), counts.sum(axis=0)
        means = of_class / np.maximum(n, 1)[:, None]
        gram = np.outer(of_class.sum(axis=0), of_class.sum(axis=0)) / n.sum()
        for c in np.flatnonzero(n):
            has = counts[:, c] > 0
            own = counts[has, c, None]
            deviations = np.sqrt(own) * (sums[has, c] / own - means[c])
            covariance = deviations.T @ deviations / max(has.sum() - 1, 1)
            gram += (n[c] - 1) * (covariance + self.shrinkage * np.eye(len(gram)))
        rows = of_class @ np.linalg.pinv(gram, hermitian=True)
        return unit_rows(rows), np.zeros(len(rows))
