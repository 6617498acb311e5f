"""Class prototypes on the server: global ones from the clients', for classes a client lacks too.

A set of prototypes is two arrays: "prototypes" (C, d), a row a class, and "counts" (C,), of how
many samples each row is the mean. A class without samples has count 0 and a row of zeros, so that
every class keeps its row whichever client has it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays


def no_prototypes(classes: int, size: int) -> Arrays:
    """Return the set that a run begins with: `classes` rows of `size` numbers, of no samples."""
    return {
        "prototypes": np.zeros((classes, size), np.float32),
        "counts": np.zeros(classes, np.float32),
    }


def aggregated(sets: Sequence[Arrays]) -> Arrays:
    """Return the global set, float64: C^(j) = sum_{i in N_j} |D_ij| / N_j C_i^(j) (FedPCL, eq. 6).

    Eq. 6 as printed divides by |N_j| once more. The weights already add up to 1, and FedPCL
    normalises the result, in which a factor makes no difference; it is left out.
    """
    counts = np.zeros(sets[0]["counts"].shape, np.float64)
    total = np.zeros(sets[0]["prototypes"].shape, np.float64)
    for own in sets:
        counts += own["counts"]
        total += own["counts"][:, None] * np.asarray(own["prototypes"], np.float64)
    return {"prototypes": total / np.maximum(counts, 1)[:, None], "counts": counts}


def padded(own: Arrays, shared: Arrays) -> npt.NDArray[Any]:
    """Return a client's prototypes, the global ones where it holds no sample (FedPCL, eq. 7)."""
    has_samples = own["counts"][:, None] > 0
    return np.where(has_samples, own["prototypes"], shared["prototypes"])


def unit_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows scaled to length 1; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
