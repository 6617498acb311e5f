"""The results of a study: two DataFrames in a folder, and their report."""

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import read_json, write_atomically
from coprefl_flwr.report import columns, frames
from coprefl_flwr.report.columns import DIAGNOSTICS, MEASURED, START_LOSS
from coprefl_flwr.report.comparison import Comparison, Report, ResultRow
from coprefl_flwr.report.frames import pretraining_summary
from coprefl_flwr.report.page import FOLDER, write_report
from coprefl_flwr.report.training_checks import CHAINED, Problem, not_learnt

PERSONALISED = "personalised"
"""The phase of the rounds of personalised methods."""

ROWS, ROUNDS, ABOUT = "rows.jsonl", "rounds.jsonl", "about.json"

OF_TASKS = ("accuracy", "variance", "worst-10%", "worst-20%", "worst-30%")
# FedPCL's Tables 12 and 13 list these statistics of the clients' accuracies. Their "Variance" is
# about as large as the spread between the worst and the best, so it must be a standard deviation.
OF_CLIENTS = ("accuracy", "worst-10%", "worst-20%", "worst-40%", "best-10%", columns.STD_CLIENTS)
"""The columns of starting models and of personalised methods."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of a study: a row per client, a row per round, and more data for the report.

    `about` may have these keys: "title", "seed", "tasks" (number of tasks), "starts" (in order),
    "chained" ({start: rounds in which the model passed from client to client}), "costs" ({start:
    {column: number}}), "seconds" ({start: [median duration of a round, by task]}), "troubles"
    ({start: description of a problem}), "columns" ({user metric: [title, better]}), "warnings"
    (lines), "made" (provenance), "settings", "defaults" (the other settings that the study uses),
    and "command" (of `flwr run`, in the app's folder).
    """

    rows: pd.DataFrame
    rounds: pd.DataFrame
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Outcome":
        """Read the results in a folder; a SettingsError if they are missing or not JSON."""
        about = read_json(folder / ABOUT) if (folder / ABOUT).exists() else {}
        rows = frames.read_rows(folder / ROWS) if (folder / ROWS).exists() else pd.DataFrame()
        return cls(rows, frames.read_rounds(folder / ROUNDS), about)

    def write(self, folder: Path) -> Path:
        """Write the frames and their report into a folder; return the page's path."""
        frames.write_rounds(folder / ROUNDS, self.rounds)
        if not self.rows.empty:
            frames.write_rows(folder / ROWS, self.rows)
        text = json.dumps(dict(self.about), indent=1, default=str)
        write_atomically(folder / ABOUT, text.encode())
        return write_report(report_of([self]), folder / FOLDER)

    @property
    def starts(self) -> list[str]:
        """The starting models, or the personalised methods."""
        parts = [frame for frame in (self.rows, self.rounds) if not frame.empty]
        seen = [str(start) for frame in parts for start in frame["start"]]
        return list(dict.fromkeys([*self.about.get("starts", []), *seen]))

    @property
    def personalised(self) -> bool:
        """Whether every client has its own model."""
        return not self.rounds.empty and bool(self.rounds["phase"].eq(PERSONALISED).any())

    @property
    def tasks(self) -> list[int]:
        """The tasks that starts are trained for; a personalised method counts as one."""
        seen = [] if self.rows.empty else self.rows["task"].unique().tolist()
        return list(range(self.about["tasks"])) if "tasks" in self.about else sorted(seen)

    @functools.cached_property
    def not_learnt(self) -> dict[str, Problem]:
        """The problem of each start that did not learn, by start."""
        if self.rows.empty:
            return {}
        tasks = frames.task_metrics(self.rows)
        return not_learnt(tasks.pivot(index="task", columns="start", values="accuracy"))

    @property
    def problems(self) -> dict[str, Problem]:
        """The problem of each start whose training diverged, or that did not learn."""
        return {**self.not_learnt, **self.about.get("troubles", {})}

    @property
    def units(self) -> list[str]:
        """The unit of each value of a row of the table: "seed 0, task 0" or "seed 0"."""
        seed = f"seed {self.about.get('seed', 0)}"
        tasks = [] if self.personalised else self.tasks
        return [f"{seed}, task {task}" for task in tasks] or [seed]

    def values(self, metrics: Iterable[str] = ()) -> dict[str, list[dict[str, float]]]:
        """Return the numbers of each start, per unit: {start: [{column: number}, ...]}.

        The numbers of a pre-training are in the first unit. Columns that need further computation
        are included only if they are in `metrics`. Missing numbers are left out.
        """
        by_start: dict[str, list[dict[str, float]]] = {}
        rounds: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
        for row in frames.records(self.rounds):
            phase = row.get("phase", "")
            task = 0 if phase == PERSONALISED else row.get("task", -1)
            rounds.setdefault((phase, row["start"], task), []).append(row)
        clients = self.rows.reindex(columns=[*dict.fromkeys(["start", "task", *self.rows])])
        phase = PERSONALISED if self.personalised else "downstream"
        for start in self.starts:
            by_start[start] = [{} for _ in self.units]
            for unit, task in zip(by_start[start], self.tasks, strict=False):
                rows = clients[clients["start"].eq(start) & clients["task"].eq(task)]
                if not rows.empty:
                    unit |= frames.values_of_task(
                        rows, rounds.get((phase, start, task), []), metrics
                    )
                    if seconds := self.about.get("seconds", {}).get(start):
                        unit[columns.SECONDS] = seconds[self.tasks.index(task)]
                    for row in rounds.get(("diagnosis", start, task), []):
                        unit |= {key: row[key] for key in DIAGNOSTICS if key in row}
        for entry in pretraining_summary(self.rounds).to_dict("records"):
            start = entry.pop("start")
            by_start[start][0].update({str(key): float(value) for key, value in entry.items()})
        for start, costs in self.about.get("costs", {}).items():
            by_start[start][0].update(costs)
        for (phase, start, _), (row, *_) in rounds.items():
            if phase == START_LOSS and START_LOSS in row:
                by_start[start][0][START_LOSS] = row[START_LOSS]
            elif phase not in frames.PHASES:
                numbers = {key: value for key, value in row.items() if key not in frames.OF_A_ROUND}
                by_start[start][0] |= {f"{MEASURED}{key}": value for key, value in numbers.items()}
        return by_start


def report_of(outcomes: Sequence[Outcome]) -> Report:
    """Return the report of one study, or of several studies with different seeds.

    Raises a SettingsError if starts, clients or settings of the studies differ, or if two studies
    have the same seed.
    """
    first = outcomes[0]
    for other in outcomes:
        if other.starts != first.starts or _clients(other) != _clients(first):
            raise SettingsError("the runs must have the same methods, datasets and clients")
    _check_seeds_and_settings([outcome.about for outcome in outcomes])
    seeds = [str(outcome.about["seed"]) for outcome in outcomes if "seed" in outcome.about]
    of_each = [outcome.values() for outcome in outcomes]
    values = {start: [u for values in of_each for u in values[start]] for start in first.starts}
    domains = list(dict.fromkeys(map(str, first.rows.get("domain", []))))
    wanted = [*(OF_CLIENTS if first.personalised else OF_TASKS), *frames.own_metrics(first.rows)]
    wanted += [f"{columns.ACCURACY_OF}{domain}" for domain in domains] if len(domains) > 1 else []
    wanted += [START_LOSS, *frames.PRETRAINING, *columns.BUDGETS, *columns.SENT, *DIAGNOSTICS]
    numbers = pd.DataFrame([unit for of_start in values.values() for unit in of_start])
    known = [str(name) for name in numbers.dropna(axis="columns", how="all")]
    wanted += [name for name in known if name.startswith(MEASURED)]
    metrics = [name for name in dict.fromkeys(wanted) if name in known] or ["rounds"]
    title = first.about.get("title", "Starting models")
    comparison = Comparison(
        name="table",
        title=title,
        metrics=metrics,
        units=[unit for outcome in outcomes for unit in outcome.units],
        rows=[
            replace(
                result_row(start, outcomes),
                values={m: [unit.get(m, math.nan) for unit in units] for m in metrics},
                problems=_problems(start, outcomes),
            )
            for start, units in values.items()
        ],
        reference=first.starts[0],
        headings=first.about.get("columns", {}),
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


def _check_seeds_and_settings(abouts: Sequence[Mapping[str, Any]]) -> None:
    """Raise a SettingsError if two studies have the same seed, or different settings.

    The methods are not compared here, because `report_of` compares the names of the starts.
    """
    seeds = [about.get("seed", 0) for about in abouts]
    if len({*seeds}) < len(seeds):
        raise SettingsError(f"the runs have the seeds {seeds}: name one run of each seed")
    settings = [{**about.get("defaults", {}), **about.get("settings", {})} for about in abouts]
    for key in sorted({key for of_run in settings for key in of_run} - {"seed", "method"}):
        values = [of_run.get(key, "not set") for of_run in settings]
        if values.count(values[0]) < len(values):
            shown = " and ".join(map(str, values))
            problem = f"the runs have different settings: {key} = {shown}"
            raise SettingsError(f"{problem}; name runs that differ only in the seed")


def _clients(outcome: Outcome) -> list[tuple[Any, ...]]:
    """Return the clients on which each start was measured."""
    keys = [key for key in ("start", "task", "client", "domain") if key in outcome.rows]
    return sorted(outcome.rows[keys].itertuples(index=False, name=None))


def _warnings(outcome: Outcome) -> list[str]:
    problems = [f"{start}: {line}." for start, line in outcome.problems.items()]
    return [*problems, *map(str, outcome.about.get("warnings", []))]


def _problems(start: str, outcomes: Sequence[Outcome]) -> list[str]:
    lines = [(outcome.about.get("seed", 0), outcome.problems.get(start)) for outcome in outcomes]
    return [f"seed {seed}: {line}" if len(outcomes) > 1 else line for seed, line in lines if line]


def result_row(start: str, outcomes: Sequence[Outcome]) -> ResultRow:
    """Return a row with DataFrames but no values. Tasks are numbered on from study to study."""
    parts: dict[str, list[pd.DataFrame]] = {"rows": [], "rounds": [], "curves": []}
    before = 0
    for outcome in outcomes:
        seed = outcome.about.get("seed", 0)
        chained = outcome.about.get("chained", {}).get(start, [])
        if not outcome.rows.empty:
            rows = outcome.rows[outcome.rows["start"] == start]
            parts["rows"].append(rows.assign(task=rows["task"] + before))
        if not outcome.rounds.empty:
            rounds = outcome.rounds[outcome.rounds["start"] == start]
            rounds = rounds.assign(seed=seed, **{CHAINED: rounds["round"].isin(chained)})
            curves = rounds[rounds["phase"] == "downstream"]
            parts["curves"].append(curves.assign(task=curves["task"] + before))
            parts["rounds"].append(rounds[rounds["phase"].isin(["pretraining", PERSONALISED])])
        before += len(outcome.tasks)
    rows, rounds, curves = (pd.concat(part) if part else pd.DataFrame() for part in parts.values())
    return ResultRow(start, "", {}, rows, rounds, curves)
