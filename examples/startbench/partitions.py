"""A partition of startbench: whole classes are dealt to the clients."""

from typing import Any

import numpy as np
import numpy.typing as npt


def whole_classes(
    labels: npt.NDArray[np.int64], clients: int, rng: np.random.Generator
) -> list[npt.NDArray[Any]]:
    """Return the indices of each client's samples: no two clients have samples of the same class.

    `labels` (n,) are the classes of the samples; there must be a class for each client.
    """
    classes = rng.permutation(np.unique(labels))
    return [np.flatnonzero(np.isin(labels, classes[i::clients])) for i in range(clients)]
