"""The comparison of a personalised study: accuracies of clients, by method, over runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import fairness

COLUMNS: dict[str, Callable[[Sequence[float]], float]] = {
    "Average": fairness.mean,
    "Worst 10 %": lambda values: fairness.worst(values, 0.1),
    "Worst 20 %": lambda values: fairness.worst(values, 0.2),
    "Worst 40 %": lambda values: fairness.worst(values, 0.4),
    "Best 10 %": lambda values: fairness.best(values, 0.1),
    "Std": lambda values: float(np.std(values)),
}
"""What Tables 12 and 13 list of the clients' accuracies in percent.

Their "Variance" is about the size of the spread between the worst and the best, so it can only be a
standard deviation; ours is the population's.
"""


@dataclass(frozen=True)
class Run:
    """One run of a personalised study.

    Parameters
    ----------
    domains : tuple[str, ...]
        By client, the name of the dataset it has.
    results : Mapping[str, Any]
        By method, what its result.json holds.
    """

    domains: tuple[str, ...]
    results: Mapping[str, Any]

    def accuracies(self, method: str) -> list[float]:
        """Return the clients' accuracies of a method in percent, in the order of clients."""
        rows = sorted(self.results[method]["rows"], key=lambda row: int(row["client"]))
        return [100 * row["correct"] / row["n"] for row in rows]

    def by_domain(self, method: str) -> dict[str, float]:
        """Return {dataset: mean accuracy of its clients}."""
        found = self.accuracies(method)
        return {
            name: float(np.mean([a for a, d in zip(found, self.domains, strict=True) if d == name]))
            for name in dict.fromkeys(self.domains)
        }


def comparison(runs: Sequence[Run]) -> str:
    """Return the tables in Markdown: over clients, by dataset where there are several, and notes.

    Raises
    ------
    SettingsError
        If there is no run, or they are not of the same methods and datasets.
    """
    if not runs:
        raise SettingsError("there is no run to compare: name their folders")
    first = runs[0]
    for run in runs[1:]:
        if list(run.results) != list(first.results) or run.domains != first.domains:
            raise SettingsError("the runs are not of the same methods, datasets and clients")
    over_clients = {
        method: {
            title: [measure(run.accuracies(method)) for run in runs]
            for title, measure in COLUMNS.items()
        }
        for method in first.results
    }
    sent = {method: [_sent(result)] for method, result in first.results.items()}
    parts = [_table(over_clients, "Weights sent (all numbers)", sent)]
    if len(set(first.domains)) > 1:
        by_domain = {
            method: {
                name: [run.by_domain(method)[name] for run in runs]
                for name in dict.fromkeys(first.domains)
            }
            for method in first.results
        }
        parts.append(_table(by_domain))
    spread = f"Mean ± sample std over {len(runs)} runs" if len(runs) > 1 else "One run"
    parts.append(
        f"{spread} of {len(first.domains)} clients, accuracies in %, each client with its own "
        "model on its own test samples. Sent: by a client in a round."
    )
    return "\n\n".join(parts) + "\n"


def _sent(result: Mapping[str, Any]) -> str:
    return f"{result['weights-sent']:,} ({result['numbers-sent']:,})"


def _table(
    values: Mapping[str, Mapping[str, Sequence[float]]],
    last: str = "",
    cells: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return rows of mean ± std, the best mean of a column in bold, with a last column of texts."""
    titles = list(next(iter(values.values())))
    best = {}
    for title in titles:
        shown = {method: round(float(np.mean(row[title])), 1) for method, row in values.items()}
        target = min(shown.values()) if title == "Std" else max(shown.values())
        best[title] = {method for method, value in shown.items() if value == target}
    header = ["Method", *titles, *([last] if last else [])]
    lines = ["| " + " | ".join(header) + " |", "|:--|" + "--:|" * (len(header) - 1)]
    for method, row in values.items():
        texts = [method]
        for title in titles:
            text = _mean_and_std(row[title])
            mark = method in best[title] and len(values) > 1
            texts.append(f"**{text}**" if mark else text)
        texts += cells[method] if cells else []
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _mean_and_std(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.1f}"
    return f"{mean} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else mean
