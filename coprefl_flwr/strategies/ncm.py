"""NCM: the class means of the features as the last layer (FedNCM)."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.strategies.linear_head import LinearHead


@dataclass(kw_only=True, eq=False)
class NCM(LinearHead):
    """The nearest class mean, after FedNCM (Legate et al. 2023, arxiv.org/abs/2306.03937).

    With m_c the mean of z over all samples of class c, the layer has the rows m_c and the biases
    -|m_c|^2 / 2. The class with the largest output is then the class whose mean is nearest to z,
    because -|z - m_c|^2 / 2 = m_c z - |m_c|^2 / 2 - |z|^2 / 2, and the last term is the same for
    all classes. The layer must have a bias.
    """

    name = "ncm"
    needs_bias = True

    def layer(self, totals: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return the class means as weights, and minus half their squared norms as biases."""
        means = totals["sums"] / np.maximum(totals["counts"], 1)[:, None]
        return means, -0.5 * np.square(means).sum(axis=1)
