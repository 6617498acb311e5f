"""Number of cases of the property tests: a fixed sample, or many cases under `make chaos`."""

import functools
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

LENGTHS: dict[str, int] = {}
"""Number of cases by kind, which `python -m tests.chaos` sets; if empty, the sample is run."""
SEED = 0

settings.register_profile(
    "chaos", deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.register_profile("sample", settings.get_profile("chaos"), derandomize=True)

Test = Callable[..., None]


@dataclass
class Count:
    """Cases of a kind and their seconds, including the cases that shrink a failing case."""

    tried: int = 0
    held: int = 0
    seconds: float = 0.0
    reported: float = field(default_factory=time.monotonic)

    def add(self, tried: int, held: int, seconds: float) -> None:
        """Count cases; under `make chaos`, print every 20 seconds how many held so far."""
        self.tried, self.held = self.tried + tried, self.held + held
        self.seconds += seconds
        if LENGTHS and time.monotonic() - self.reported > 20:
            self.reported = time.monotonic()
            line = f"{self.held} of {self.tried} held so far"
            print(line, file=sys.__stderr__, flush=True)


COUNTS: defaultdict[str, Count] = defaultdict(Count)


def counted(kind: str) -> Callable[[Test], Test]:
    """Count the calls of a test, and the calls that raise nothing."""

    def of(test: Test) -> Test:
        @functools.wraps(test)
        def one(**arguments: Any) -> None:
            begun, held = time.monotonic(), 0
            try:
                test(**arguments)
                held = 1
            finally:
                COUNTS[kind].add(1, held, time.monotonic() - begun)

        return one

    return of


def examples(
    kind: str, few: int, parts: int = 1, **inputs: SearchStrategy[Any]
) -> Callable[[Test], Test]:
    """Make a property test of a test, with `few` examples.

    Under `make chaos` the number of cases of the kind is divided by `parts`.
    """
    profile = settings.get_profile("chaos" if LENGTHS else "sample")
    number = -(-LENGTHS.get(kind, few * parts) // parts)
    return lambda test: settings(profile, max_examples=number)(given(**inputs)(counted(kind)(test)))


def draws(kind: str, few: int) -> pytest.MarkDecorator:
    """Parametrise a test by `rng`, a random generator for each of `few` cases.

    Under `make chaos` the number of cases is the number of the kind.
    """
    names = [f"{kind} {number} of seed {SEED}" for number in range(LENGTHS.get(kind, few))]
    return pytest.mark.parametrize("rng", [random.Random(name) for name in names], ids=names)


def table() -> str:
    """Return a table with a line for each kind that ran."""
    lines = [f"{'kind':<12}{'cases':>8}{'held':>8}{'seconds':>10}"]
    for kind, one in COUNTS.items():
        lines.append(f"{kind:<12}{one.tried:>8}{one.held:>8}{one.seconds:>10.0f}")
    return "\n".join(lines)
