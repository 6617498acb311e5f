"""The results of a study: two DataFrames in a folder, and their report."""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import read_json, write_atomically
from coprefl_flwr.report import columns, frames
from coprefl_flwr.report.columns import DIAGNOSTICS, KEPT, KEPT_BY, MEASURED, START_LOSS
from coprefl_flwr.report.comparison import Comparison, Report, ResultRow, run_name
from coprefl_flwr.report.frames import DIAGNOSIS, DOWNSTREAM, PERSONALISED
from coprefl_flwr.report.page import FOLDER, write_report
from coprefl_flwr.report.training_checks import CHAINED, Problem, not_learnt

ROWS, ROUNDS, ABOUT = "rows.jsonl", "rounds.jsonl", "about.json"

OF_TASKS = ("accuracy", "variance", "worst-10%", "worst-20%", "worst-30%")
"""The columns of the tasks' clients, of the study's measure if the targets are no classes."""
# FedPCL's Tables 12 and 13 list these statistics of the clients' accuracies. Their "Variance" is
# about as large as the spread between the worst and the best, so it must be a standard deviation.
OF_CLIENTS = ("accuracy", "worst-10%", "worst-20%", "worst-40%", "best-10%", columns.STD_CLIENTS)
"""The columns of starting models and of personalised methods."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of a study: a row per client, a row per round, and more data for the report.

    `about` may have these keys: "title", "seed", "data-seed" (if it was set), "tasks" (number of
    tasks), "starts" (in order), "chained" ({start: rounds in which the model passed from client to
    client}), "costs" ({start: {column: number}}), "seconds" ({start: [median duration of a round,
    by task]}), "troubles" ({start: description of a problem}), "columns" ({user metric: [title,
    better]}), "warnings" (lines), "made" (provenance), "settings", "defaults" (the other settings
    that the study uses), and "command" (of `flwr run`, in the app's folder).
    """

    rows: pd.DataFrame
    rounds: pd.DataFrame
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Outcome":
        """Read the results in a folder; a SettingsError if they are missing."""
        about = read_json(folder / ABOUT) if (folder / ABOUT).exists() else {}
        return cls(frames.read_rows(folder / ROWS), frames.read_rounds(folder / ROUNDS), about)

    def write(self, folder: Path) -> Path:
        """Write the frames and their report into a folder; return the page's path."""
        frames.write_lines(folder / ROUNDS, self.rounds, keep="task")
        if not self.rows.empty:
            frames.write_lines(folder / ROWS, self.rows, keep="loss")
        text = json.dumps(dict(self.about), indent=1, default=str)
        write_atomically(folder / ABOUT, text.encode())
        return write_report(report_of([self]), folder / FOLDER)

    @property
    def starts(self) -> list[str]:
        """The starting models, or the personalised methods."""
        seen = [*self.rows["start"], *self.rounds["start"]]
        return list(dict.fromkeys([*self.about.get("starts", []), *map(str, seen)]))

    @property
    def personalised(self) -> bool:
        """Whether every client has its own model."""
        return bool(self.rounds["phase"].eq(PERSONALISED).any())

    @property
    def tasks(self) -> list[int]:
        """The tasks that starts are trained for; a personalised method counts as one."""
        if "tasks" in self.about:
            return list(range(self.about["tasks"]))
        return sorted(self.rows["task"].unique().tolist())

    @functools.cached_property
    def not_learnt(self) -> dict[str, Problem]:
        """The problem of each start that did not learn, by start."""
        tasks = frames.task_metrics(self.rows, self.headings)
        by_task = tasks.pivot(index="task", columns="start", values=self.measure.metric)
        return not_learnt(by_task, self.measure)

    @property
    def headings(self) -> columns.Headings:
        """The titles and better directions of the user's metrics, by column."""
        return dict(self.about.get("columns", {}))

    @property
    def measure(self) -> columns.ColumnSpec:
        """The column of the measure (see `report.columns`), also if only starts were tested."""
        if self.rows.empty and frames.tested_by(self.rounds) == "server-loss":
            return columns.column(columns.LOSS)
        return frames.measure_of(self.rows, self.headings)

    @property
    def problems(self) -> dict[str, Problem]:
        """The problem of each start whose training diverged, or that did not learn."""
        return {**self.not_learnt, **self.about.get("troubles", {})}

    @property
    def run(self) -> str:
        """The name of the study among several: "seed 0", or "draw 3, seed 0"."""
        return run_name(self.about.get("seed", 0), self.about.get("data-seed"))

    @property
    def units(self) -> list[str]:
        """The unit of each value of a row of the table: "seed 0, task 0" or "seed 0"."""
        tasks = [] if self.personalised else self.tasks
        return [f"{self.run}, task {task}" for task in tasks] or [self.run]

    def values(self, metrics: Iterable[str] = ()) -> pd.DataFrame:
        """Return a row per start and unit, with a column per metric; missing numbers are nan.

        The index has the levels "start" and "unit". The numbers of a pre-training are at the first
        unit. Columns that need further computation (`columns.TO_REACH`) are included only if they
        are in `metrics`.
        """
        keys, tasks = ["start", "task"], self.tasks or [0]
        of_starts = self._of_starts()
        of_starts.index = pd.MultiIndex.from_product([of_starts.index, tasks[:1]], names=keys)
        # A personalised method has no tasks.
        rounds = self.rounds.assign(task=self.rounds["task"].fillna(0).astype(int))
        curves = rounds[rounds["phase"].isin([DOWNSTREAM, PERSONALISED])]
        last = {columns.SENT: curves, tuple(DIAGNOSTICS): rounds[rounds["phase"] == DIAGNOSIS]}
        parts: list[pd.DataFrame | pd.Series[Any]] = [
            of_phase.drop_duplicates(keys, keep="last").set_index(keys).reindex(columns=names)
            for names, of_phase in last.items()
        ]
        reach = [metric for metric in metrics if columns.TO_REACH.fullmatch(metric)]
        costs = [
            [*key, *(frames.cost_to_reach(of_task, metric) for metric in reach)]
            for key, of_task in curves.groupby(keys, sort=False)
        ]
        seconds = [
            [start, *of_task]
            for start, of_start in self.about.get("seconds", {}).items()
            for of_task in zip(tasks, of_start, strict=False)
        ]
        parts.append(pd.DataFrame(costs, columns=[*keys, *reach]).set_index(keys))
        parts.append(pd.DataFrame(seconds, columns=[*keys, columns.SECONDS]).set_index(keys))
        index = pd.MultiIndex.from_product([self.starts, tasks], names=keys)
        measured = frames.task_metrics(self.rows, self.headings).set_index(keys).join(parts)
        values = measured.reindex(index).join(of_starts).infer_objects()
        names = ["start", "unit"]
        return values.set_axis(pd.MultiIndex.from_product([self.starts, self.units], names=names))

    def _of_starts(self) -> pd.DataFrame:
        """Return the numbers of the starts and their pre-trainings: a row per start."""
        costs = pd.DataFrame.from_dict(self.about.get("costs", {}), orient="index", dtype=float)
        numbers = costs.combine_first(frames.pretraining_summary(self.rounds))
        return numbers.join(frames.measured(self.rounds), how="outer")


def report_of(outcomes: Sequence[Outcome]) -> Report:
    """Return the report of one study, or of several studies with different seeds.

    Raises a SettingsError if starts or settings of the studies differ, or if two studies have the
    same seeds.
    """
    first = outcomes[0]
    if any(other.starts != first.starts for other in outcomes):
        raise SettingsError("the runs must have the same methods")
    _check_seeds_and_settings(outcomes)
    seeds = [outcome.run.removeprefix("seed ") for outcome in outcomes if "seed" in outcome.about]
    values = pd.concat([outcome.values() for outcome in outcomes])
    domains = list(dict.fromkeys(map(str, first.rows.get("domain", []))))
    wanted = [*(OF_CLIENTS if first.personalised else OF_TASKS), *frames.own_metrics(first.rows)]
    wanted += [f"{columns.ACCURACY_OF}{domain}" for domain in domains] if len(domains) > 1 else []
    wanted += [START_LOSS, KEPT, *frames.PRETRAINING, *columns.BUDGETS, *columns.SENT, *DIAGNOSTICS]
    known = [str(name) for name in values.dropna(axis="columns", how="all")]
    wanted += [name for name in known if name.startswith(MEASURED)]
    wanted = columns.of_measure(wanted, first.measure.metric)
    metrics = [name for name in dict.fromkeys(wanted) if name in known] or ["rounds"]
    title = first.about.get("title", "Starting models")
    comparison = Comparison(
        name="table",
        title=title,
        metrics=metrics,
        units=[unit for outcome in outcomes for unit in outcome.units],
        rows=[
            replace(
                result_row(start, outcomes, metrics, values), problems=_problems(start, outcomes)
            )
            for start in first.starts
        ],
        reference=first.starts[0],
        headings=first.headings,
        measure=first.measure,
    )
    return Report(
        title,
        source="",
        notes=[],
        comparisons=[comparison],
        figures=["accuracies"] * (not first.rows.empty) + ["curves"] * (not first.rounds.empty),
        settings=first.about.get("settings", {}),
        defaults=first.about.get("defaults", {}),
        provenance=first.about.get("made", {}) | ({"seeds": ", ".join(seeds)} if seeds else {}),
        command="" if len(outcomes) > 1 else first.about.get("command", ""),
        command_folder="the folder of the app",
        warnings=list(dict.fromkeys(line for outcome in outcomes for line in _warnings(outcome))),
    )


def _check_seeds_and_settings(outcomes: Sequence[Outcome]) -> None:
    """Raise a SettingsError if two studies have the same seed, or different settings.

    The methods are not compared here, because `report_of` compares the names of the starts. All or
    none must set `data-seed`: otherwise the draws of some runs would be counted as others.
    """
    runs = [outcome.run for outcome in outcomes]
    if len({*runs}) < len(runs):
        raise SettingsError(f"the runs have {'; '.join(runs)}: name one run of each seed")
    every = [(one.about.get("defaults", {}), one.about.get("settings", {})) for one in outcomes]
    settings = pd.DataFrame([{**defaults, **chosen} for defaults, chosen in every])
    settings["data-seed"] = ["data-seed" in outcome.about for outcome in outcomes]
    differ = [name for name in settings if settings[name].astype(str).nunique(dropna=False) > 1]
    if others := ", ".join(str(name) for name in differ if name not in ("seed", "method")):
        raise SettingsError(f"the runs differ in {others}: name runs that differ only in the seed")


def _warnings(outcome: Outcome) -> list[str]:
    problems = [f"{start}: {line}." for start, line in outcome.problems.items()]
    return [*problems, *map(str, outcome.about.get("warnings", []))]


def _problems(start: str, outcomes: Sequence[Outcome]) -> list[str]:
    lines = [(outcome.run, outcome.problems.get(start)) for outcome in outcomes]
    return [f"{run}: {line}" if len(outcomes) > 1 else line for run, line in lines if line]


def result_row(
    start: str, outcomes: Sequence[Outcome], metrics: Sequence[str], values: pd.DataFrame
) -> ResultRow:
    """Return the row of a start with these metrics; `values` are those of all outcomes.

    Tasks are numbered on from study to study.
    """
    rows, rounds, before = [], [], 0
    for outcome in outcomes:
        of_clients = outcome.rows[outcome.rows["start"] == start]
        of_start = outcome.rounds[outcome.rounds["start"] == start]
        chained = of_start["round"].isin(outcome.about.get("chained", {}).get(start, []))
        of_start = of_start.assign(seed=outcome.run, **{CHAINED: chained})
        rows.append(of_clients.assign(task=of_clients["task"] + before))
        rounds.append(of_start.assign(task=of_start["task"] + before))
        before += len(outcome.units)
    every = pd.concat(rounds)
    of_training = every[every["phase"].isin(["pretraining", PERSONALISED])]
    curves = every[every["phase"] == DOWNSTREAM]
    of_metrics = values.loc[[start]].droplevel("start").reindex(columns=list(metrics))
    parts = of_metrics, pd.concat(rows), of_training, curves
    kept_by = of_training.get(KEPT_BY, pd.Series(dtype=str)).dropna()
    return ResultRow(start, "", *parts, kept_by=next(iter(kept_by), ""))
