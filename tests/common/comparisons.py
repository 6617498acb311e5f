"""Made-up results: rows of clients and of rounds, and a comparison of three rows."""

import math
from typing import Any

import pandas as pd

from coprefl_flwr.report import Comparison, ResultRow
from coprefl_flwr.report.columns import column

UNITS = ["seed 0, task 0", "seed 0, task 1", "seed 1, task 0", "seed 1, task 1"]
NASTY = "a|b_c%d&e<f>{g}#$~^\\*"
ACCURACIES = {"fedavg": [70.0, 72.0, 74.0, 76.0], "coprefl": [75.0, 75.0, 80.0, 82.0]}


def result_row(
    label: str, accuracy: list[float], variance: list[float], chosen: str = "", **more: Any
) -> ResultRow:
    values = pd.DataFrame({"accuracy": accuracy, "variance": variance})
    return ResultRow(label, chosen, values, **more)


def comparison(**changes: Any) -> Comparison:
    """Return three rows: fedavg, coprefl (reference, chosen gamma), and one with a failed task."""
    parts: dict[str, Any] = {
        "name": "participants-20",
        "title": "participants = 20",
        "metrics": ["accuracy", "variance"],
        "units": UNITS,
        "rows": [
            result_row("fedavg", ACCURACIES["fedavg"], [40.0, 50.0, 60.0, 70.0]),
            result_row("coprefl", ACCURACIES["coprefl"], [30.0, 30.0, 40.0, 40.0], "gamma=0.5"),
            result_row(NASTY, [90.0, math.nan, 90.0, 90.0], [1.0, math.nan, 1.0, 1.0]),
        ],
        "reference": "coprefl",
        "paper": {"fedavg": {"accuracy": (78.9, 2.98), "variance": (64.8, None)}},
        "source": "CoPreFL, AAAI text, Table 1(a)",
        "failed": [f"{NASTY}, seed 0, task 1: client 3 sent a NaN"],
    }
    return Comparison(**parts | changes)


def one_unit() -> Comparison:
    rows = [result_row("fedavg", [70.0], [40.0]), result_row("coprefl", [75.0], [30.0])]
    return comparison(units=UNITS[:1], rows=rows, paper={}, failed=[])


def client_rows(start: str) -> pd.DataFrame:
    found = [row(start, task, client, client) for task in range(2) for client in range(5, 9)]
    return pd.DataFrame(found)


def row(start: str, task: int, client: int, correct: int, n: int = 10) -> dict[str, Any]:
    """Return the row of one client in one task."""
    return {
        "start": start,
        "task": task,
        "client": client,
        "n": n,
        "correct": correct,
        "loss": 0.5,
    }


def two_starts() -> list[dict[str, Any]]:
    """Return rows of two starts in two tasks of two clients."""
    return [
        row("random", 0, 0, 8),
        row("random", 0, 1, 6),
        row("coprefl", 0, 0, 9),
        row("random", 1, 0, 9),
        row("random", 1, 1, 9),
        row("coprefl", 0, 1, 7),
        row("coprefl", 1, 0, 9),
        row("coprefl", 1, 1, 9),
    ]


def without_classes(
    start: str, task: int, losses: list[float], **metrics: list[float]
) -> list[dict[str, Any]]:
    """Return rows of the clients of a task whose targets are no classes."""
    rows = []
    for client, loss in enumerate(losses):
        own = {f"metric:{name}": of[client] for name, of in metrics.items()}
        rows.append({"start": start, "task": task, "client": client, "n": 10, "loss": loss, **own})
    return rows


def loss_row(label: str, losses: list[float], **more: Any) -> ResultRow:
    """Return a row of a table of losses, each of a unit; the variance is a tenth of the loss."""
    values = pd.DataFrame({"loss": losses, "loss:variance": [loss / 10 for loss in losses]})
    return ResultRow(label, "", values, **more)


def losses(**changes: Any) -> Comparison:
    """Return a comparison by the loss: fedavg, and coprefl, which is better in each of 4 seeds."""
    rows = [
        loss_row("fedavg", [0.061, 0.063, 0.065, 0.060]),
        loss_row("coprefl", [0.031, 0.034, 0.032, 0.030]),
    ]
    units = [f"seed {seed}" for seed in range(4)]
    parts: dict[str, Any] = {
        "metrics": ["loss", "loss:variance"], "units": units, "rows": rows, "paper": {},
        "failed": [], "reference": "fedavg", "measure": column("loss"),
    }  # fmt: skip
    return comparison(**parts | changes)
