"""Random numbers that are a function of a key, which describes their purpose.

Every random choice of a run is drawn from a generator keyed by (seed, population, round, client,
purpose). The choices do not depend on node ids, the order in which messages arrive, or the number
of processes.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

Key = tuple[str | int, ...]
"""What random numbers depend on, such as (seed, population, round, client, purpose)."""


def integer(*key: str | int) -> int:
    """Return a 63-bit integer that depends only on `key`, as a seed for other libraries."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(*key: str | int) -> np.random.Generator:
    """Return a NumPy generator whose random numbers depend only on `key`."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


@contextmanager
def of_python_and_numpy(seed: int) -> Iterator[None]:
    """Seed the global generators of Python and NumPy in this context, and restore them after it.

    The code of users draws from them, such as random transforms and layers.
    """
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
