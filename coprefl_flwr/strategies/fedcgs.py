"""FedCGS: a Gaussian for each class of the features, with one covariance, as the last layer."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.options import option
from coprefl_flwr.strategies.linear_head import LinearHead

_RANK = 1e-10  # of the largest eigenvalue; smaller ones of the covariance are rounding errors


@dataclass(kw_only=True, eq=False)
class FedCGS(LinearHead):
    """The classifier of Gaussian classes that have the same covariance, after FedCGS.

    FedCGS is Guan et al. 2025 (AAAI, code: github.com/Yuqin-G/FedCGS). With A the sum of z over all
    N samples, S = (sum z z^T - A A^T / N) / (N - 1) is the covariance of the features around their
    common mean. Class c with the mean m_c and N_c samples has the row S^-1 m_c and the bias
    -m_c^T S^-1 m_c / 2 + log(N_c / N). The layer must have a bias.

    S + shrinkage I replaces S. If it is singular, its pseudoinverse is used: directions in which
    the features do not vary get no weight.
    """

    shrinkage: float = option(0.0, "added to the diagonal of the features' covariance", minimum=0)

    name = "fedcgs"
    products = True
    needs_bias = True

    def layer(self, totals: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return the linear discriminants of the classes, from sums over all samples."""
        sums, counts, everything = totals["sums"], totals["counts"], totals["sums"].sum(axis=0)
        n, means = counts.sum(), sums / np.maximum(counts, 1)[:, None]
        scatter = totals["products"] - np.outer(everything, everything) / n
        covariance = scatter / max(n - 1, 1) + self.shrinkage * np.eye(len(scatter))
        rows = means @ np.linalg.pinv(covariance, _RANK, hermitian=True)
        return rows, -0.5 * (rows * means).sum(axis=1) + np.log(np.maximum(counts, 1) / n)
