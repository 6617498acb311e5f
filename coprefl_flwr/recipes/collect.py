"""Collect a recipe's results from the store into a report, table by table."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from coprefl_flwr.options import Value
from coprefl_flwr.recipes import notes
from coprefl_flwr.recipes.execute import Failures
from coprefl_flwr.recipes.figure_data import loss_around, similarity
from coprefl_flwr.recipes.recipe import Recipe, Trial, table_name
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import TableRow, mean_score
from coprefl_flwr.report import Comparison, Report, ResultRow
from coprefl_flwr.report.columns import ACCURACY, ColumnSpec, of_measure
from coprefl_flwr.report.comparison import SearchEntry
from coprefl_flwr.report.outcome import Outcome, result_row
from coprefl_flwr.studies.personalised import LOCAL
from coprefl_flwr.studies.results import outcome_of, result_or_none, without_folders
from coprefl_flwr.studies.settings import STARTS, Settings
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import Store


def collect(recipe: Recipe, store: Store, failed: Failures) -> Report:
    """Return a report of the recipe's results in the store. The report names the missing runs."""
    tables = [_Table(recipe, store, failed, combination) for combination in recipe.combinations()]
    return Report(
        title=recipe.title,
        source=recipe.source,
        command="coprefl run FOLDER/recipe.yaml",
        notes=notes.how(recipe, tables[0].measure.name),
        warnings=list(dict.fromkeys(line for table in tables for line in table.warnings())),
        comparisons=[table.comparison for table in tables],
        figures=recipe.figures,
        settings=notes.set_here(recipe),
        defaults=notes.left_alone(recipe),
        methods={name: text for table in tables for name, text in table.methods().items()},
        provenance=notes.provenance(recipe, store, [run for of in tables for run in of.runs()]),
    )


def _gamma(stage: Stage) -> float:
    """Return gamma, the weight of the meta objective's first term; nan if a method has none."""
    gammas = [phase.values["gamma"] for phase in stage.phases if "gamma" in phase.values]
    return float(gammas[-1]) if gammas else math.nan


@dataclass(frozen=True)
class _Table:
    """The table of one combination of the compared settings, and the store of its results."""

    recipe: Recipe
    store: Store
    failed: Failures
    combination: Mapping[str, Value]

    @functools.cached_property
    def comparison(self) -> Comparison:
        """The table's data: its rows with their results."""
        recipe, printed = self.recipe, self.recipe.paper_table(self.combination)
        compared = {key: self.combination[key] for key in recipe.compared}
        titles = [f"{key} = {without_folders(value)}" for key, value in compared.items()]
        paper = recipe.source.rpartition(", Table")[0] or recipe.source
        of_table = f"Table {printed.table}" if printed and printed.table else ""
        source = ", ".join(filter(None, [paper, of_table])) if of_table else recipe.source
        return Comparison(
            name=table_name(compared),
            title=", ".join(titles) or recipe.title,
            metrics=self._metrics,
            units=self._units,
            rows=[self._measured(*line) for line in self._rows],
            reference=recipe.reference,
            paper=printed.rows if printed else {},
            source=source if printed else "",
            failed=self._lost(),
            search_entries=[entry for entry, _ in self._searched],
            headings=recipe.headings,
            measure=self.measure,
            margin=recipe.margin,
        )

    @functools.cached_property
    def _rows(self) -> list[tuple[TableRow, Trial | None, list[Run]]]:
        """Per line of the table: row, shown trial (None if no trial is chosen yet), and runs."""
        rows = [TableRow(self.recipe, self.combination, row) for row in self.recipe.rows]
        shown = [(row, trial) for row in rows for trial in row.shown(self.store)]
        return [(row, trial, row.reported(trial) if trial else []) for row, trial in shown]

    @functools.cached_property
    def _searched(self) -> list[tuple[SearchEntry, list[Run]]]:
        """Every value that is searched, and the runs that decide whether it is chosen."""
        return [
            self._entry(row, trial, runs, trial == chosen)
            for row, chosen, _ in self._rows
            if row.searched
            for trial, runs in row.runs_by_trial(self.store).items()
        ]

    def _entry(
        self, row: TableRow, trial: Trial, runs: list[Run], is_chosen: bool
    ) -> tuple[SearchEntry, list[Run]]:
        short = row.short_runs(trial)
        deciding = short + runs
        headings = self.recipe.headings
        entry = SearchEntry(
            row.label,
            trial.chosen,
            mean_score(self.store, runs, headings)[0],
            chosen=is_chosen,
            problem="; ".join(notes.problems(self.store, deciding)),
            short_score=mean_score(self.store, short, headings)[0],
            dropped=not (runs or is_chosen),
        )
        return entry, deciding

    def _lost(self) -> list[str]:
        """Return a line for each missing run, and for each row of which no value is chosen yet."""
        lines = [f"{row.label}: no value has a score" for row, trial, _ in self._rows if not trial]
        for run in self.runs():
            if not self.store.done(run.study.stages):
                why = self.failed.get(run.identity, "not run yet")
                lines.append(f"{run.name}, {run.seeds}: {why}")
        return list(dict.fromkeys(lines))

    def runs(self) -> list[Run]:
        """Return every run of the table, including the runs that choose a value."""
        deciding = [run for _, of_entry in self._searched for run in of_entry]
        return [*deciding, *(run for *_, runs in self._rows for run in runs)]

    def methods(self) -> dict[str, str]:
        """Return {row: a text with the method and the settings of each phase}."""
        lines = zip(self.comparison.rows, self._rows, strict=True)
        return {shown.name: notes.phases(runs[0].main) for shown, (*_, runs) in lines if runs}

    def warnings(self) -> list[str]:
        """Return a line for each training that diverged or did not learn, or ignored replies."""
        return [
            f"{shown.name}, {line}."
            for shown, (*_, runs) in zip(self.comparison.rows, self._rows, strict=True)
            for line in [*shown.problems, *notes.lost_replies(self.store, runs)]
        ]

    def _problems(self, trial: Trial, runs: Sequence[Run]) -> list[str]:
        """Return a line for each training that diverged, and each seed's start that did not learn.

        A start is compared with `random`, if the table has this row.
        """
        both, start = zip(runs, self._outcomes, strict=True), str(trial.method)
        idle = [(run.seeds, outcome.not_learnt.get(start)) for run, outcome in both]
        return notes.problems(self.store, runs) + [f"{one}: {line}" for one, line in idle if line]

    def _measured(self, row: TableRow, chosen: Trial | None, runs: Sequence[Run]) -> ResultRow:
        label, unfinished = row.label, self._of_seeds(runs)
        if chosen is None:
            nothing = pd.DataFrame(math.nan, self._units, self._metrics)
            return ResultRow(label, "", nothing, unfinished=unfinished)
        landscape = None
        if "landscape" in self.recipe.figures and self.store.done(runs[0].study.stages):
            landscape = result_or_none(f"figure of {label}", loss_around, self.store, runs[0])
        result = result_row(str(chosen.method), self._outcomes, self._metrics, self._values)
        return replace(
            result,
            label=label,
            chosen=chosen.chosen,
            client_rows=result.client_rows.assign(start=label),
            curves=result.curves.assign(start=label),
            switch=runs[0].main.phase_switch,
            landscape=landscape,
            similarity=self._similarity(row, chosen),
            gamma=_gamma(runs[0].main),
            unfinished=unfinished,
            problems=self._problems(chosen, runs),
        )

    def _of_seeds(self, runs: Sequence[Run]) -> str:
        """Return the number of finished seeds of a row, "1 of 3 seeds"; "" if all are finished."""
        done, seeds = sum(self.store.done(run.study.stages) for run in runs), len(self.recipe.pairs)
        return f"{done} of {seeds} seed{'s' * (seeds != 1)}" if done < seeds else ""

    @property
    def _units(self) -> list[str]:
        return [unit for outcome in self._outcomes for unit in outcome.units]

    @functools.cached_property
    def _outcomes(self) -> list[Outcome]:
        """The results of all starts, per run. Two rows may have one start under two labels."""
        settings = Settings.from_config(self.combination)
        tasks = settings.tasks if settings.study == STARTS else 0
        about = {"tasks": tasks, "columns": self.recipe.headings}
        rows = [(str(trial.method), runs) for _, trial, runs in self._rows if trial]
        return [
            outcome_of({start: runs[at].study for start, runs in rows}, self.store, pair | about)
            for at, pair in enumerate(self.recipe.pairs)
        ]

    @functools.cached_property
    def _values(self) -> pd.DataFrame:
        """The values of every start and unit."""
        return pd.concat([outcome.values(self._metrics) for outcome in self._outcomes])

    @functools.cached_property
    def measure(self) -> ColumnSpec:
        """The column of the measure; the accuracy if there are no results yet."""
        measures = [outcome.measure for outcome in self._outcomes]
        return next((measure for measure in measures if measure != ACCURACY), ACCURACY)

    @property
    def _metrics(self) -> list[str]:
        return of_measure(self.recipe.metrics, self.measure.metric)

    def _similarity(self, row: TableRow, chosen: Trial) -> pd.DataFrame | None:
        """Return the heat map of a row with several backbones, if each was also run alone."""
        names = str(self.combination.get("backbones", "")).split()
        if "similarity" not in self.recipe.figures or len(names) < 2:
            return None
        alone = [replace(row, combination={**self.combination, "backbones": n}) for n in names]
        runs = [table_row.reported(chosen)[0] for table_row in [*alone, row]]
        folders = [self.store.folder(run.main) for run in runs]
        done = all(self.store.done(run.study.stages) for run in runs)
        if not done or not all((folder / LOCAL).exists() for folder in folders):
            return None
        clients = [row.get("domain", "") for row in self.store.result(runs[-1].main)["rows"]]
        backbones = [Path(backbone.partition("=")[2] or backbone).stem for backbone in names]
        return similarity(folders, backbones, clients)
