"""FedYogi: FedAdam with Yogi's rule for the second moment."""

import numpy as np

from coprefl_flwr.strategies.fedadam import FedAdam


class FedYogi(FedAdam):
    """FedYogi (Reddi et al. 2021, arxiv.org/abs/2003.00295), Algorithm 2; a variant of FedAdam."""

    name = "fedyogi"

    def second_moment(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Return the new second moment, v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)."""
        return np.asarray(v - (1 - self.beta2) * square * np.sign(v - square))
