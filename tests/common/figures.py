"""Rows to draw."""

from typing import Any

import numpy as np
import pandas as pd

from coprefl_flwr.seeds import generator
from tests.common.comparisons import row

STARTS = ["random", "fedavg", "fedmeta", "q-ffl:q=3", "coprefl:gamma=0.5", "coprefl:gamma=0.25"]


def client_rows(starts: list[str]) -> pd.DataFrame:
    """Return rows of 8 clients in 3 tasks."""
    rows = []
    for start in starts:
        correct = generator("test", start).integers(25, 51, size=(3, 8))
        rows += [row(start, t, c, int(k), n=50) for (t, c), k in np.ndenumerate(correct)]
    return pd.DataFrame(rows)


def curve(phase: str, start: str, task: int | None, number: int, value: float) -> dict[str, Any]:
    return {
        "phase": phase,
        "start": start,
        "task": task,
        "round": number,
        "loss": value,
        "accuracy": value if phase == "downstream" else None,
    }


def curve_rows(starts: list[str]) -> list[dict[str, Any]]:
    before = [curve("pretraining", s, None, r, 4 / r) for s in starts for r in range(1, 9)]
    return before + [
        curve("downstream", s, t, r, 60 + 3 * r + t)
        for s in starts
        for t in range(3)
        for r in range(1, 9)
    ]
