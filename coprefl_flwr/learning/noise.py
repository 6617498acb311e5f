"""Noise on prototypes, images and query replies, which protects the clients' data.

Noise on prototypes and images is x~ = (1 - p) x + e (FedPCL, appendix A.2.4). The clipping and the
noise of a query's gradient and loss are from this project, not from a paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, norm


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise on a client's prototypes before the client sends them, or on its training images.

    The noise e in (1 - p) x + e has mean 0, and p is `share`, in 0..1. `kind` is "laplace", whose
    scale parameter is `scale`, or "gaussian", whose standard deviation is `scale`.
    """

    kind: str
    scale: float
    share: float

    def on(self, values: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """Return (1 - p) x + e, float32, for x = `values`; e is drawn for each element."""
        draw = {"laplace": rng.laplace, "gaussian": rng.normal}[self.kind]
        noise = draw(0.0, self.scale, np.shape(values))
        return np.asarray((1 - self.share) * values + noise, dtype=np.float32)


def clipped(
    gradient: Arrays,
    loss: float,
    clip: float,
    noise: float,
    rng: np.random.Generator,
    first: Mapping[str, str],
) -> tuple[Arrays, float]:
    """Return a gradient and a loss, clipped and with Gaussian noise on the loss and each element.

    The gradient is scaled down so that its l2 norm is at most `clip`. The loss is clipped to the
    range from 0 to `clip`, before the noise and again after the noise. The standard deviation of
    the noise is `noise` x `clip`. `first` maps the name of each array to the first name of the same
    weights: tied weights count once in the norm, and get the same noise.
    """
    distinct = {name: array for name, array in gradient.items() if first.get(name, name) == name}
    length, deviation = norm(distinct), noise * clip
    scale = min(1.0, clip / length) if length else 1.0
    noised = {}
    for name, array in distinct.items():
        values = scale * array.astype(np.float64)
        if noise:
            values += deviation * rng.standard_normal(array.shape)
        noised[name] = values.astype(array.dtype)
    noisy_loss = min(max(loss, 0.0), clip)
    if noise:
        noisy_loss = min(max(noisy_loss + deviation * float(rng.standard_normal()), 0.0), clip)
    return {name: noised[first.get(name, name)] for name in gradient}, noisy_loss
