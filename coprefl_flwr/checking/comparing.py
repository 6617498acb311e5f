"""Comparing what two runs came to: how far apart, and where."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coprefl_flwr.checking.running import Outcome

Flat = Mapping[str, Any]
"""Everything of an outcome by a name that says what it is: arrays and numbers."""


def flat(one: Outcome) -> Flat:
    """Return the arrays, what strategy and clients keep, and all figures of an outcome."""
    found: dict[str, Any] = {f"array {name}": array for name, array in one.arrays.items()}
    for key, value in one.kept.items():
        kept: Flat = value if isinstance(value, dict) else {"": value}
        found |= {f"state {key} {name}".strip(): each for name, each in kept.items()}
    for client, state in one.states.items():
        found |= {f"state of client {client}, {name}": array for name, array in state.items()}
    for number, metrics in one.metrics.items():
        found |= {f"{name} of round {number}": value for name, value in metrics.items()}
    return found | _of_rows(one.rows)


def _of_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{name} of client {row['client']}": value
        for row in rows
        for name, value in row.items()
        if isinstance(value, int | float)
    }


def other(one: Outcome, two: Outcome) -> str:
    """Say what is not the same to the last byte, "" if everything is."""
    a, b = flat(one), flat(two)
    for name in a.keys() ^ b.keys():
        return f"{name} is there in one of them only"
    differing = [name for name in a if _content(a[name]) != _content(b[name])]
    if not differing:
        return ""
    more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
    return f"{differing[0]} differs by {_distance(a[differing[0]], b[differing[0]]):.2g}{more}"


def furthest(one: Flat, two: Flat) -> tuple[float, str]:
    """Return the largest difference, and what has it; infinity where something is missing.

    Differences are relative to the largest number of an array, if that is above 1.
    """
    found = 0.0, ""
    for name in sorted(one.keys() | two.keys()):
        both = name in one and name in two
        found = max(found, (_distance(one[name], two[name]) if both else np.inf, name))
    return found


def _distance(one: Any, two: Any) -> float:
    a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
    if a.shape != b.shape:
        return np.inf
    if not a.size or np.array_equal(a, b, equal_nan=True):
        return 0.0
    off, largest = float(np.max(np.abs(a - b))), float(np.max(np.abs(a)))
    return off / max(1.0, largest) if np.isfinite(off) else np.inf


def _content(value: Any) -> tuple[Any, ...]:
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()
