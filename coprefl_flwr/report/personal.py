"""The tables of a personalised study: accuracies of clients by method, over runs."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.columns import Better
from coprefl_flwr.report.results import accuracies
from coprefl_flwr.report.statistics import METRICS, Measure, summarise
from coprefl_flwr.report.table import Column, Note, Number, Table, column_of

PersonalRun = tuple[pd.DataFrame, Mapping[str, Mapping[str, int]]]
"""Rows of clients with the column domain, and what a client sends in a round, by method:
{method: {"weights-sent": int, "numbers-sent": int}}."""

# What FedPCL's Tables 12 and 13 list of the clients' accuracies, and Std. Their "Variance" is about
# the size of the spread between the worst and the best, so it can only be a standard deviation.
_OVER_CLIENTS: dict[str, Measure] = {
    "Average": METRICS["accuracy"],
    **{f"Worst {percent} %": METRICS[f"worst-{percent}%"] for percent in (10, 20, 40)},
    "Best 10 %": METRICS["best-10%"],
}


def personal_tables(runs: Sequence[PersonalRun]) -> list[Table]:
    """Return a table over clients and, where they have several datasets, one by dataset.

    The notes stand below the last. Raises `SettingsError` if there is no run, or they are not of
    the same methods, datasets and clients.
    """
    if not runs:
        raise SettingsError("there is no run to compare: name their folders")
    by_run = [_by_method(rows) for rows, _ in runs]
    methods, domains = [*map(str, by_run[0])], by_run[0].index
    for run in by_run:
        if list(run) != methods or not run.index.equals(domains) or run.isna().any(axis=None):
            raise SettingsError("the runs are not of the same methods, datasets and clients")
    spread = f"Mean ± sample std over {len(runs)} runs" if len(runs) > 1 else "One run"
    note = Note(
        f"{spread} of {len(domains)} clients, accuracies in %, each client with its own model on "
        "its own test samples. Sent: by a client in a round."
    )

    def column(title: str, measure: Measure, better: Better = "higher", domain: str = "") -> Column:
        chosen = (domains == domain) | (domain == "")
        found = [[measure(run[method].to_numpy()[chosen]) for run in by_run] for method in methods]
        return column_of(title, list(map(summarise, found)), better)

    over_clients = [column(title, measure) for title, measure in _OVER_CLIENTS.items()]
    over_clients.append(column("Std", np.std, "lower"))
    sent = [runs[0][1][method] for method in methods]
    traffic = [Number(f"{one['weights-sent']:,} ({one['numbers-sent']:,})") for one in sent]
    over_clients.append(Column("Weights sent (all numbers)", {"here": traffic}))
    by_domain = [column(one, METRICS["accuracy"], domain=one) for one in domains.unique()]
    tables = [over_clients, by_domain] if len(by_domain) > 1 else [over_clients]
    lines = [[method] for method in methods]
    notes = [*[[]] * (len(tables) - 1), [note]]
    return [Table(["Method"], lines, *of) for of in zip(tables, notes, strict=True)]


def _by_method(rows: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies in percent, a row a client by its domain, a column a method."""
    wide = accuracies(rows).pivot(index=["client", "domain"], columns="start", values="accuracy")
    return wide[rows["start"].unique()].droplevel("client")
