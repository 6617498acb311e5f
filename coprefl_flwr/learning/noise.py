"""Noise that hides what is shared: x~ = (1 - p) x + e (FedPCL, appendix A.2.4)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.settings import unknown

KINDS = ("laplace", "gaussian")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What is added to a client's prototypes before it sends them, or to its training images.

    Parameters
    ----------
    kind : str
        Distribution of e: "laplace" or "gaussian", of mean 0.
    scale : float
        s: Laplace's scale parameter, or the standard deviation.
    share : float
        p, from 0 to 1: how much of x is taken away.
    """

    kind: str = "laplace"
    scale: float = 0.05
    share: float = 0.1

    def __post_init__(self) -> None:
        """Refuse what is no noise."""
        if self.kind not in KINDS:
            raise SettingsError(f"noise: {unknown('kind', self.kind, list(KINDS))}")
        if not 0 <= self.scale < np.inf:
            raise SettingsError(f"noise scale = {self.scale}: must be finite and at least 0")
        if not 0 <= self.share <= 1:
            raise SettingsError(f"noise share = {self.share}: must be between 0 and 1")

    def on(self, values: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """Return float32 (1 - p) x + e, with another e for every number of `values`."""
        draw = {"laplace": rng.laplace, "gaussian": rng.normal}[self.kind]
        noise = draw(0.0, self.scale, np.shape(values))
        return np.asarray((1 - self.share) * values + noise, dtype=np.float32)
