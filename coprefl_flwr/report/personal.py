"""The tables of a personalised study: accuracies of clients by method, over runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import fairness
from coprefl_flwr.report.columns import Better
from coprefl_flwr.report.results import accuracies
from coprefl_flwr.report.statistics import summarise
from coprefl_flwr.report.table import Note, Number, Table, column_of, of_columns

PersonalRun = tuple[pd.DataFrame, Mapping[str, Mapping[str, int]]]
"""Rows of clients with the column domain, and what a client sends in a round, by method:
{method: {"weights-sent": int, "numbers-sent": int}}."""

# What FedPCL's Tables 12 and 13 list of the clients' accuracies. Their "Variance" is about the size
# of the spread between the worst and the best, so it can only be a standard deviation.
_OVER_CLIENTS = {
    "Average": fairness.METRICS["accuracy"],
    **{f"Worst {percent} %": fairness.METRICS[f"worst-{percent}%"] for percent in (10, 20, 40)},
    "Best 10 %": fairness.METRICS["best-10%"],
    "Std": fairness.std,
}


def personal_tables(runs: Sequence[PersonalRun]) -> list[Table]:
    """Return a table over clients and, where they have several datasets, one by dataset.

    The notes stand below the last.

    Raises
    ------
    SettingsError
        If there is no run, or they are not of the same methods, datasets and clients.
    """
    if not runs:
        raise SettingsError("there is no run to compare: name their folders")
    by_run = [_by_method(rows) for rows, _ in runs]
    methods, clients = list(by_run[0]), next(iter(by_run[0].values()))
    for run in by_run:
        if list(run) != methods or any(
            list(of.index) != list(clients.index) for of in run.values()
        ):
            raise SettingsError("the runs are not of the same methods, datasets and clients")
    spread = f"Mean ± sample std over {len(runs)} runs" if len(runs) > 1 else "One run"
    note = Note(
        f"{spread} of {len(clients)} clients, accuracies in %, each client with its own model on "
        "its own test samples. Sent: by a client in a round."
    )

    def column(measure: Callable[["pd.Series[float]"], float], better: Better) -> list[Number]:
        over_runs = [summarise([measure(run[method]) for run in by_run]) for method in methods]
        return column_of(over_runs, ".1f", better)

    over_clients = [
        column(measure, "lower" if title == "Std" else "higher")
        for title, measure in _OVER_CLIENTS.items()
    ]
    sent = [runs[0][1][method] for method in methods]
    traffic = [Number(f"{one['weights-sent']:,} ({one['numbers-sent']:,})") for one in sent]
    titles = [*_OVER_CLIENTS, "Weights sent (all numbers)"]
    tables = [Table(["Method"], titles, of_columns(methods, [*over_clients, traffic]))]
    domains = list(dict.fromkeys(clients.index))
    if len(domains) > 1:
        by_domain = [column(partial(_mean_of, domain=name), "higher") for name in domains]
        tables.append(Table(["Method"], domains, of_columns(methods, by_domain)))
    return [*tables[:-1], replace(tables[-1], notes=[note])]


def _by_method(rows: pd.DataFrame) -> dict[str, "pd.Series[float]"]:
    """Return by method its clients' accuracies in percent in the order of clients, by domain."""
    methods = accuracies(rows).sort_values("client", kind="stable").groupby("start", sort=False)
    order = rows["start"].unique()
    found = {str(method): of.set_index("domain")["accuracy"] for method, of in methods}
    return {method: found[method] for method in order}


def _mean_of(accuracy: "pd.Series[float]", domain: str) -> float:
    return float(np.mean(accuracy[accuracy.index == domain].to_numpy()))
