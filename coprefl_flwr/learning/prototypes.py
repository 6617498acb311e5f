"""Class prototypes: sets of prototypes, and the global set that the server computes from them.

A set of prototypes is two arrays. "prototypes" (C, d) has one row per class. "counts" (C,) has the
number of samples of which each row is the mean. A class without samples has count 0 and a row of
zeros, so a class has the same row in the sets of all clients.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays


def no_prototypes(classes: int, size: int) -> Arrays:
    """Return the empty set of prototypes at the start of a run: zeros, (classes, size) float32."""
    return {
        "prototypes": np.zeros((classes, size), np.float32),
        "counts": np.zeros(classes, np.float32),
    }


def aggregated(sets: Sequence[Arrays]) -> Arrays:
    """Return the global set of prototypes, float64, the mean of the clients' sets (FedPCL, eq. 6).

    The prototype of class j is C^(j) = sum_{i in N_j} |D_ij| / N_j C_i^(j), the mean of the
    clients' prototypes weighted by their numbers of samples. Eq. 6 in the paper also divides by
    |N_j|. This factor is left out: the weights already add up to 1, and FedPCL normalises the
    prototypes, so a factor has no effect.
    """
    counts = np.zeros(sets[0]["counts"].shape, np.float64)
    total = np.zeros(sets[0]["prototypes"].shape, np.float64)
    for own in sets:
        counts += own["counts"]
        total += own["counts"][:, None] * np.asarray(own["prototypes"], np.float64)
    return {"prototypes": total / np.maximum(counts, 1)[:, None], "counts": counts}


def padded(own: Arrays, shared: Arrays) -> npt.NDArray[Any]:
    """Return a client's prototypes, (C, d), padded with global prototypes (FedPCL, eq. 7).

    `own` is the client's set and `shared` the global set. A class of which the client has no
    samples gets the global prototype.
    """
    has_samples = own["counts"][:, None] > 0
    return np.where(has_samples, own["prototypes"], shared["prototypes"])


def unit_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows scaled to l2 norm 1; a row of zeros stays a row of zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
