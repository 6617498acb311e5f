"""`coprefl plan`: the runs and rounds of a recipe and what they cost, before they start.

The whole recipe is counted, also what is stored already. A stage that two rows need counts for the
first row. Before a searched value is chosen, the first value is counted as the reported one. Hours
are the rounds times the seconds of one round of each kind, which is run on this machine.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.machine import one_thread
from coprefl_flwr.federation.run import Hook
from coprefl_flwr.options import declared
from coprefl_flwr.recipes.execute import attempt
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.runs import PART, Run
from coprefl_flwr.recipes.search import TableRow, table_rows
from coprefl_flwr.report.formats import text
from coprefl_flwr.report.tables import NONE, simple
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.costs import cost
from coprefl_flwr.studies.method import START
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.provenance import machine
from coprefl_flwr.studies.settings import TaskDataSettings, TaskSettings
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import Store

WIDTH = 80

SAMPLES = 1000
"""Number of samples of a client in step sizes that do not depend on it."""

OF_TASKS = {
    option.name: option.default
    for group in (TaskDataSettings, TaskSettings)
    for option in declared(group).values()
}
"""The settings on which only tasks depend, with their defaults."""


@dataclass
class Row:
    """Runs and rounds of a row of the recipe's tables, summed over all tables.

    `step_sizes` are the summed step sizes of its pre-trainings. `rounds` has the number of rounds
    of each kind; a kind is a run whose first rounds are of it.
    """

    label: str
    runs: int = 0
    step_sizes: list[float] = field(default_factory=list)
    rounds: Counter[Run] = field(default_factory=Counter)


@dataclass
class Plan:
    """The rows of a recipe. `missing` is the error of data that are not there, or "".

    Without the data, some step sizes are nan.
    """

    rows: list[Row]
    missing: str
    counted: set[object] = field(default_factory=set)  # identities of stages

    def add(self, row: Row, run: Run, of_tasks: Run, *of_phases: Run) -> bool:
        """Add a run to a row; return whether it has stages that were not counted yet.

        `of_tasks` and `of_phases` are the kinds of the rounds of tasks and of each phase.
        """
        before, without_tasks = len(self.counted), replace(run.settings, **OF_TASKS)
        for stage in run.study.stages:
            identity = (without_tasks if stage.task is None else run.settings, stage.path)
            if identity in self.counted:
                continue
            self.counted.add(identity)
            if isinstance(stage, Pretraining):
                row.step_sizes.append(self._step_size(stage))
            if stage.task is not None:
                row.rounds[of_tasks] += stage.rounds
                continue
            for kind, phase in zip(of_phases, stage.phases, strict=False):
                row.rounds[kind] += phase.training.rounds
        return len(self.counted) > before

    def _step_size(self, stage: Pretraining) -> float:
        """Return the summed step size of a pre-training; nan if it depends on missing data."""
        by_data = any(
            phase.uses_server_data or phase.training.local_epochs is not None
            for phase in stage.phases
        )
        if by_data and self.missing:
            return math.nan
        return cost(stage, sizes=() if by_data else [SAMPLES]).step_size


def plan_of(recipe: Recipe) -> Plan:
    """Return the plan of a recipe, whose data need not be there."""
    # The classes of validation runs are drawn from the data, and change no cost.
    of_tables = [replace(row, of_choice=True) for row in table_rows(recipe)]
    rows = {row.label: Row(row.label) for row in recipe.rows}
    plan = Plan(list(rows.values()), _missing(of_tables))
    for of_table in of_tables:
        with recipe.placing(of_table.row):
            row, kinds = rows[of_table.label], _kinds(of_table)
            row.runs += sum([plan.add(row, run, *kinds) for run in _runs(of_table)])
    return plan


def _missing(rows: Sequence[TableRow]) -> str:
    """Return the error of data that are not there, or ""."""
    try:
        for row in rows:
            row.reported(row.trials()[0])[0].study.check()
    except SettingsError as error:
        return str(error)
    return ""


def _runs(row: TableRow) -> list[Run]:
    """Return the runs that choose a value, and the reported runs."""
    trials = row.trials()
    short = [run for trial in trials for run in row.short_runs(trial)]
    finalists = trials[: max(1, len(trials) // PART)] if short else trials
    whole = [] if row.is_decided(finalists) else finalists
    scored = [run for trial in whole for run in row.selection_runs(trial)]
    return short + scored + (row.reported(trials[0]) if row.validated else [])


def _kinds(row: TableRow) -> list[Run]:
    """Return a run for each kind of round of a row: of its tasks, and of each phase."""
    others = [f"{key}={row.combination[key]}" for key in row.recipe.compared]
    phases = row.trials()[0].method.trained
    methods = [("tasks", START), *((phase.without_folders, phase) for phase in phases)]
    return [
        replace(
            Run.of(row.combination, method, row.recipe.pairs[0]["seed"]),
            label=", ".join([label, *others]),
        )
        for label, method in methods
    ]


# ---- hours ---------------------------------------------------------------------------------------


class _MeasuredError(Exception):
    """Ends a run whose round is measured."""


def measured(run: Run) -> tuple[float, float]:
    """Return the seconds of a round, and the bytes that a deployment sends in it.

    It is the second round of a run, because the first one loads data. Raises a SettingsError if the
    run fails.
    """
    reports = list[RoundReport]()

    @contextmanager
    def followed(stage: Stage) -> Iterator[Sequence[Hook]]:
        def hook(report: RoundReport) -> None:
            reports.append(report)
            if report.round == min(2, stage.rounds):
                raise _MeasuredError

        yield [hook]

    one_thread()
    with TemporaryDirectory() as folder:
        problem = attempt(run, Store(Path(folder), checkpoints=False), followed)
    if not reports:
        raise SettingsError(f"{run.name}: {problem}")
    metrics = reports[-1].metrics
    return reports[-1].seconds, metrics["client-bytes-down"] + metrics["client-bytes-up"]


def hours(plan: Plan) -> Iterator[str]:
    """Measure a round of each kind; yield a line for each, and then a line with the sums.

    Without the data, yield only a line that says so.
    """
    if plan.missing:
        yield f"No seconds and megabytes: the data are not there, or do not fit: {plan.missing}"
        return
    yield f"A round, measured in one thread on {machine()}:"
    hours = megabytes = 0.0
    for kind, rounds in sum((row.rounds for row in plan.rows), Counter[Run]()).items():
        seconds, sent = measured(kind)
        hours, megabytes = hours + rounds * seconds / 3600, megabytes + rounds * sent / 1e6
        yield f"- {kind.name}: {seconds:.2g} seconds, {sent / 1e6:.2g} MB"
    sums = f"{hours:.2g} hours with one worker, {megabytes:,.1f} MB sent"
    yield f"All rounds: {sums}, without evaluations."


# ---- the plan as text --------------------------------------------------------------------------


def plan_text(recipe: Recipe, plan: Plan) -> str:
    """Return a plan as text, without hours."""
    cells = {
        "Runs": [f"{row.runs:,}" for row in plan.rows],
        "Rounds": [f"{row.rounds.total():,}" for row in plan.rows],
        "Step size": [_range(row.step_sizes) for row in plan.rows],
    }
    notes = (
        "Runs: with those that choose searched values. Rounds: of pre-trainings and tasks. Step "
        "size: the sum of the learning rates of a pre-training. A dash: it is not known."
    )
    table = simple("", "Method", cells, [row.label for row in plan.rows])
    heading = ", ".join(filter(None, [recipe.title, recipe.source, recipe.protocol]))
    lines = [textwrap.fill(heading, WIDTH), "", text(table, WIDTH), "", textwrap.fill(notes, WIDTH)]
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    """Return the smallest and the largest value; one number if they are equal."""
    if not values or math.isnan(math.fsum(values)):
        return NONE
    ends = dict.fromkeys(f"{value:.4g}" for value in (min(values), max(values)))
    return " to ".join(ends)
