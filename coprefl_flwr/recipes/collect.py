"""From the store to a report: what a recipe's runs came to, table by table."""

import functools
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coprefl_flwr.recipes.around import loss_around
from coprefl_flwr.recipes.recipe import VALIDATION, Candidate, Recipe
from coprefl_flwr.recipes.runs import ModelStore, Run
from coprefl_flwr.recipes.sweep import Contest, Failures, contests
from coprefl_flwr.report import Comparison, Measured, Report
from coprefl_flwr.report.columns import ACCURACY_OF, SENT, STD_CLIENTS
from coprefl_flwr.report.figures import Similarity
from coprefl_flwr.report.figures.similarity import LOCAL, similarity
from coprefl_flwr.report.results import accuracies, frame, task_metrics
from coprefl_flwr.report.starts import pretraining_summary
from coprefl_flwr.studies.stage import Stage


def collect(recipe: Recipe, store: ModelStore, failed: Failures) -> Report:
    """Return the report of the results in the store; it names the runs that are missing."""
    grouped = itertools.groupby(contests(recipe), key=lambda contest: contest.combination)
    tables = [_Table(recipe, store, failed, list(group)) for _, group in grouped]
    return Report(
        title=recipe.title,
        source=recipe.source,
        notes=[*recipe.notes, *_notes(recipe)],
        comparisons=[table.comparison() for table in tables],
        figures=recipe.figures,
        settings={
            key: values[0] if len(values) == 1 else list(values)
            for key, values in recipe.settings.items()
            if key != "data-dir"
        },
    )


def _notes(recipe: Recipe) -> list[str]:
    """Return how searched values were chosen, if there are any."""
    if not any(contest.searched for contest in contests(recipe)):
        return []
    if recipe.select == VALIDATION:
        return [
            f"Searched values were chosen by the mean accuracy on {recipe.validation_tasks} "
            f"validation tasks of a pre-training of their own (seed {recipe.validation_seed}), "
            "whose classes no reported task has; each row says which."
        ]
    return [
        "Searched values were chosen on the very results that are reported (select: test), which "
        "favours the rows that search more."
    ]


@dataclass(frozen=True)
class _Table:
    """The rows of one combination of the compared settings, and where their results lie."""

    recipe: Recipe
    store: ModelStore
    failed: Failures
    contests: Sequence[Contest]

    def comparison(self) -> Comparison:
        """Return the table."""
        recipe, combination = self.recipe, self.contests[0].combination
        printed, compared = recipe.paper_table(combination), recipe.compared
        name = "_".join(f"{key}={combination[key]}" for key in compared)
        paper = recipe.source.rpartition(", Table")[0] or recipe.source
        source = f"{paper}, Table {printed.table}" if printed and printed.table else recipe.source
        return Comparison(
            name=re.sub(r"[^A-Za-z0-9.=+_-]+", "-", name).strip("-_") or "table",
            title=", ".join(f"{key} = {combination[key]}" for key in compared) or recipe.title,
            metrics=recipe.metrics,
            units=_units(self.contests[0]),
            measured=[row for contest in self.contests for row in self._rows(contest)],
            reference=recipe.reference,
            paper=printed.rows if printed else {},
            source=source if printed else "",
            failed=self._lost(),
        )

    @functools.cached_property
    def _shown(self) -> list[tuple[Contest, Candidate]]:
        """A pair per row: the contest, and the candidate that it shows."""
        return [(contest, one) for contest in self.contests for one in contest.shown(self.store)]

    def _lost(self) -> list[str]:
        """Return a line for whatever is missing."""
        chosen = [contest for contest, _ in self._shown]
        found = [
            f"{contest.entrant.label}: no value could be chosen"
            for contest in self.contests
            if contest not in chosen
        ]
        deciding = [
            (run, "on validation tasks")
            for contest in self.contests
            if contest.searched and self.recipe.select == VALIDATION
            for one in contest.entrant.candidates()
            for run in contest.deciding(one)
        ]
        reported = [
            (run, f"seed {run.settings.seed}")
            for contest, one in self._shown
            for run in contest.reported(one)
        ]
        return found + [
            f"{run.name}, {which}: {self.failed.get(run.key, 'not run yet')}"
            for run, which in deciding + reported
            if not self.store.done(run)
        ]

    def _rows(self, contest: Contest) -> list[Measured]:
        """Return a contest's rows; where no value could be chosen, one without any number."""
        missing = dict.fromkeys(self.recipe.metrics, [math.nan] * len(_units(contest)))
        found = [self._measured(of, one) for of, one in self._shown if of is contest]
        return found or [Measured(contest.entrant.label, "", missing)]

    def _measured(self, contest: Contest, chosen: Candidate) -> Measured:
        runs, label = contest.reported(chosen), contest.entrant.label
        of_seeds = [
            frame([{**row, "seed": run.settings.seed} for row in self._pretraining(run)])
            for run in runs
        ]
        landscape = "landscape" in self.recipe.figures and self.store.done(runs[0])
        return Measured(
            label=label,
            chosen=chosen.chosen,
            values=self._values(runs, chosen.start),
            rows=self._of_tasks(runs, label, "rows"),
            rounds=pd.concat(of_seeds, ignore_index=True),
            curves=self._of_tasks(runs, label, "rounds"),
            switch=runs[0].switch,
            landscape=loss_around(self.store, runs[0]) if landscape else None,
            similarity=self._similarity(contest, chosen),
        )

    def _pretraining(self, run: Run) -> list[dict[str, Any]]:
        """Return the rounds of a run's first stage."""
        return self.store.result(run.main)["rounds"]

    def _of_tasks(self, runs: Sequence[Run], label: str, what: str) -> pd.DataFrame:
        """Return the rows or the rounds of all tasks, which are numbered on from seed to seed."""
        stages = [stage for run in runs for stage in run.measured]
        return frame(
            [
                row | {"start": label, "task": number}
                for number, stage in enumerate(stages)
                for row in self.store.result(stage)[what]
            ]
        )

    def _values(self, runs: Sequence[Run], start: str) -> dict[str, list[float]]:
        """Return metric -> a value per unit: per task of a seed, or per seed."""
        found: dict[str, list[float]] = {metric: [] for metric in self.recipe.metrics}
        for run, of_starts in zip(runs, self._of_seeds, strict=True):
            units = [self._of_stage(stage) for stage in run.measured] or [{}]
            units[0] |= of_starts.get(start, {})  # One figure a seed stands at its first task.
            for metric, values in found.items():
                values += [unit.get(metric, math.nan) for unit in units]
        return found

    def _of_stage(self, stage: Stage) -> dict[str, float]:
        """Return the metrics of a task, or of a personalised method; none if it is not there."""
        if not self.store.has(stage):
            return {}
        result = self.store.result(stage)
        rows, last = frame(result["rows"]), result["rounds"][-1]
        (found,) = _numbers(task_metrics(rows).drop(columns="task")).values()
        found[STD_CLIENTS] = math.sqrt(found["variance"])
        if "domain" in rows:
            of_domains = accuracies(rows).groupby("domain")["accuracy"]
            found |= {f"{ACCURACY_OF}{name}": float(np.mean(part)) for name, part in of_domains}
        return found | {key: last[key] for key in SENT if key in last}

    @functools.cached_property
    def _of_seeds(self) -> list[dict[str, dict[str, float]]]:
        """Per seed, the metrics of each starting model's pre-training, by name."""
        found = []
        for position, _ in enumerate(self.recipe.seeds):
            # Two rows may be the same start under two labels.
            runs = {one.start: contest.reported(one)[position] for contest, one in self._shown}
            rows = [
                {**row, "start": start}
                for start, run in runs.items()
                for row in self._pretraining(run)
            ]
            found.append(_numbers(pretraining_summary(frame(rows))))
        return found

    def _similarity(self, contest: Contest, chosen: Candidate) -> Similarity | None:
        """Return the heat map of a row with several backbones, if each was run alone too."""
        names = str(contest.combination.get("backbones", "")).split()
        if "similarity" not in self.recipe.figures or len(names) < 2:
            return None
        combinations = [{**contest.combination, "backbones": one} for one in names]
        alone = [replace(contest, combination=one) for one in combinations]
        runs = [one.reported(chosen)[0] for one in [*alone, contest]]
        folders = [self.store.folder(run.main) for run in runs]
        if not all(map(self.store.done, runs)) or not all((f / LOCAL).exists() for f in folders):
            return None
        clients = [row.get("domain", "") for row in self.store.result(runs[-1].main)["rows"]]
        backbones = [Path(one.partition("=")[2] or one).stem for one in names]
        return similarity(folders, backbones, clients)


def _units(contest: Contest) -> list[str]:
    runs = contest.reported(contest.entrant.candidates()[0])
    return [unit for run in runs for unit in run.units]


def _numbers(entries: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the numbers of each start's entry, without what is missing."""
    return {
        str(entry.pop("start")): {str(k): float(v) for k, v in entry.items() if not pd.isna(v)}
        for entry in entries.to_dict("records")
    }
