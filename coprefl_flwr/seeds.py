"""Random numbers as a function of what they are for.

Every random choice of a run is drawn from a generator keyed by (seed, population, round, client,
purpose). Nothing depends on node ids, on the order of arrival, or on how many processes work.
"""

import hashlib

import numpy as np


def integer(*key: str | int) -> int:
    """Return a 63-bit integer that is a function of `key` alone, for libraries that take a seed."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(*key: str | int) -> np.random.Generator:
    """Return a NumPy generator whose stream is a function of `key` alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
