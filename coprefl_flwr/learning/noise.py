"""Noise that hides what is shared: x~ = (1 - p) x + e (FedPCL, appendix A.2.4)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr.options import check_declared, option


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What is added to a client's prototypes before it sends them, or to its training images.

    e has mean 0; its scale s is Laplace's scale parameter, or a Gaussian's standard deviation.
    """

    kind: str = option(
        "laplace", "distribution of the noise", choices=("laplace", "gaussian"), key="noise-kind"
    )
    scale: float = option(
        0.05, "scale s of the noise, of pixels from 0 to 1", minimum=0, key="noise-scale"
    )
    share: float = option(0.1, "p in (1 - p) x + noise", minimum=0, maximum=1, key="noise-share")

    def __post_init__(self) -> None:
        """Check the options."""
        check_declared(self)

    def on(self, values: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """Return float32 (1 - p) x + e, with another e for every number of `values`."""
        draw = {"laplace": rng.laplace, "gaussian": rng.normal}[self.kind]
        noise = draw(0.0, self.scale, np.shape(values))
        return np.asarray((1 - self.share) * values + noise, dtype=np.float32)
