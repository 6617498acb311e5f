"""Number of cases of the tests in this folder: a few, or many under `make chaos`."""

import random

import pytest

NUMBERS: dict[str, int] = {}
"""Number of cases by kind, which `python -m tests.chaos` sets; if empty, the few are run."""
SEED = 0


def draws(kind: str, few: int) -> pytest.MarkDecorator:
    """Parametrise a test by `rng`, a random generator for each case.

    There are `few` cases; under `make chaos` the number of cases is the number of the kind.
    """
    names = [f"{kind} {number} of seed {SEED}" for number in range(NUMBERS.get(kind, few))]
    return pytest.mark.parametrize("rng", [random.Random(name) for name in names], ids=names)
