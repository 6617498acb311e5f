"""`coprefl plan`: the costs of a recipe's runs, row by row, before the runs start.

Costs are counted by stage. A stage that two rows need counts for the first row. Stages that are in
the store are not counted. As long as no searched value is chosen, the best value so far is counted
as the reported one, or else the first value. Hours are the counts times seconds per gradient and
per output, from a client's round that is measured on this machine.
"""

import logging
import math
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data import Samples, TensorDataset
from coprefl_flwr.errors import one_line
from coprefl_flwr.federation.machine import one_thread
from coprefl_flwr.learning import EVALUATION_BATCH, LocalTraining, default_device
from coprefl_flwr.models import model_arrays
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import TableRow, choose, table_rows
from coprefl_flwr.report.formats import text
from coprefl_flwr.report.tables import NONE, simple
from coprefl_flwr.studies.costs import (
    Computing,
    Counts,
    computing_features,
    computing_of,
    counts_of,
    counts_of_features,
    total,
)
from coprefl_flwr.studies.personalised import PersonalStage
from coprefl_flwr.studies.provenance import machine
from coprefl_flwr.studies.store import Store

logger = logging.getLogger("flwr.coprefl")

WIDTH = 80

SECONDS = 0.5
"""Duration of the measured round and of the measured evaluation, at most (approximate)."""

CONFIG: dict[str, str | int | float | bool | bytes] = {
    "run": "", "population": "", "server-round": 1, "attempt": 0, "client": 0, "seed": 0,
}  # fmt: skip
"""Config of the message that a client gets in a round."""

Paces = Mapping[str, tuple[float, float]]
"""Seconds on one core per gradient and per output, by the name of the computing network."""


@dataclass
class Row:
    """Costs of a row of the recipe's tables, summed over all tables."""

    label: str
    deciding: int = 0  # number of unfinished runs that choose values
    reported: int = 0  # number of unfinished reported runs
    work: list[tuple[str, Counts]] = field(default_factory=list)  # (network's name, its counts)

    @property
    def counts(self) -> Counts:
        """The counts of all networks together."""
        return total(counts for _, counts in self.work)

    def seconds(self, paces: Paces) -> float:
        """Return the row's computing time on one core, in seconds."""
        parts = [(counts, *paces[name]) for name, counts in self.work]
        return math.fsum(counts.gradients * g + counts.outputs * o for counts, g, o in parts)


@dataclass
class Plan:
    """Costs of the runs of a recipe whose results are not in the store."""

    store: Store
    rows: list[Row]
    computing: dict[str, Computing] = field(default_factory=dict)  # by name
    counted: set[str] = field(default_factory=set)  # keys of stages and features
    done: set[str] = field(default_factory=set)  # keys of stages that are in the store

    @property
    def together(self) -> Row:
        """The sum of all rows."""
        return Row(
            "total",
            sum(row.deciding for row in self.rows),
            sum(row.reported for row in self.rows),
            [part for row in self.rows for part in row.work],
        )

    def add(self, row: Row, runs: Iterable[Run]) -> int:
        """Add the costs of runs; return the number of runs that are not finished."""
        return sum([self._add_run(row, run) for run in runs])

    def _add_run(self, row: Row, run: Run) -> bool:
        before = len(self.counted)
        for stage in run.study.stages:
            key = stage.key
            if self.store.has(stage):
                self.done.add(key)
                continue
            if key not in self.counted:
                self._count(row, key, computing_of(stage), counts_of(stage))
            if isinstance(stage, PersonalStage):
                key = f"features/{stage.features()}"
                if key not in self.counted and not self.store.shared(stage.features()).exists():
                    self._count(row, key, computing_features(stage), counts_of_features(stage))
        return len(self.counted) > before

    def _count(self, row: Row, key: str, computing: Computing, counts: Counts) -> None:
        self.counted.add(key)
        self.computing.setdefault(computing.name, computing)
        row.work.append((computing.name, counts))


def plan_of(recipe: Recipe, store: Store) -> Plan:
    """Return the costs of the runs of a recipe whose results are not in the store yet.

    Raises a SettingsError for a run with wrong settings, or a dataset that is missing.
    """
    plan = Plan(store, [Row(row.label) for row in recipe.rows])
    rows = {row.label: row for row in plan.rows}
    for table_row in table_rows(recipe):
        with recipe.placing(table_row.row):
            _add_row(plan, table_row, rows[table_row.label])
    return plan


def _add_row(plan: Plan, table_row: TableRow, row: Row) -> None:
    """Add the costs of one row of one table."""
    short = [run for trial in table_row.trials() for run in table_row.short_runs(trial)]
    row.deciding += plan.add(row, short)
    trials = table_row.expected(plan.store)
    if table_row.validated:
        if not table_row.is_decided(trials):
            runs = [run for trial in trials for run in table_row.selection_runs(trial)]
            row.deciding += plan.add(row, runs)
        trials = [choose(plan.store, table_row) or trials[0]]
    row.reported += plan.add(row, [run for trial in trials for run in table_row.reported(trial)])


# ---- hours ---------------------------------------------------------------------------------------


def pace(computing: Computing) -> tuple[float, float]:
    """Measure a client's round; return the seconds on one core per gradient and per output.

    The round has five steps and an evaluation of one batch, or fewer samples if these would take
    more than about half a second.
    """
    one_thread()
    clock = time.process_time if default_device().type == "cpu" else time.perf_counter
    module, training = computing.network(), computing.training or LocalTraining()
    parameters = list(model_arrays(module).values())
    training = replace(training, local_epochs=1, local_steps=None, max_local_steps=None)

    def client(n: int) -> TorchClient:
        values = np.random.default_rng(0).standard_normal((n, *computing.shape), dtype=np.float32)
        labels = np.arange(n) % 2
        drawn = TensorDataset(torch.from_numpy(values), labels=labels, classes=("0", "1"))
        inputs = computing.text or drawn
        samples = Samples(inputs, np.arange(n) % len(inputs.labels), labels)
        return TorchClient(module, samples, test=samples, training=training)

    def of_a_sample(call: Callable[[TorchClient], object], most: int) -> float:
        def seconds(n: int) -> float:
            torch_client, ends = client(n), [clock()]
            while len(ends) < 5 and ends[-1] - ends[0] < SECONDS:
                call(torch_client)
                ends.append(clock())
            return min(np.diff(ends))

        n = int(np.clip(2 * SECONDS / max(seconds(2), 1e-9), 2, most))  # BatchNorm needs two.
        return seconds(n) / n

    output = of_a_sample(lambda trained: trained.evaluate(parameters, CONFIG), EVALUATION_BATCH)
    most = 5 * training.samples_per_step
    if not computing.training:
        return 0.0, output
    return of_a_sample(lambda trained: trained.fit(parameters, CONFIG), most), output


# ---- the plan as text --------------------------------------------------------------------------


def plan_text(recipe: Recipe, plan: Plan, paces: Paces, workers: int = 1) -> str:
    """Return a plan as text."""
    rows = [*plan.rows, *([plan.together] if len(plan.rows) > 1 else [])]
    shown = [figures(row, paces) for row in rows]
    cells = {title: [texts[title] for texts in shown] for title in shown[0]}
    table = simple("", "Method", cells, [row.label for row in rows])
    hours = plan.together.seconds(paces) / 3600
    wall = f" ({_hours(hours / workers)} h with {workers} workers on {workers} cores)"
    notes = [
        ", ".join(filter(None, [recipe.title, recipe.source, recipe.protocol])),
        "Runs: runs that choose searched values + reported runs. Steps: of SGD or Adam. Gradients: "
        "of one sample's loss each. Outputs: samples in evaluations, losses and features. Sent: by "
        "a deployment, without evaluations. Before a searched value is chosen, the best one so "
        "far is counted, or else the first.",
        f"{len(plan.done):,} stages are finished and not counted." * bool(plan.done),
        "A dash: a method does not state how many gradients it computes." * math.isnan(hours),
        f"Total: {_hours(hours)} core hours{wall * (workers > 1)}, estimated from a measured round "
        f"of one client on {machine()}:" * bool(paces),
        *(f"- {n}: {g:.2g} s per gradient, {o:.2g} s per output" for n, (g, o) in paces.items()),
    ]
    first, *more = [textwrap.fill(note, WIDTH) for note in notes if note]
    return "\n".join([first, "", text(table, WIDTH), "", *more])


def figures(row: Row, paces: Paces) -> dict[str, str]:
    """Return the printed costs of a row, by the title of the column."""
    counts = row.counts
    return {
        "Runs": _runs(row),
        "Steps": _many(counts.steps),
        "Gradients": _many(counts.gradients),
        "Outputs": _many(counts.outputs),
        "Sent": f"{_many(counts.sent)}B",
        "Disk": f"{_many(counts.disk)}B",
        "Core h": _hours(row.seconds(paces) / 3600),
    }


def totals(recipe: Recipe, store: Store) -> str:
    """Return one line with the costs of a recipe, for the log before its runs."""
    try:
        plan = plan_of(recipe, store)
    except Exception as error:  # The recipe was checked: it is run even if costs are unknown.
        logger.debug("the plan", exc_info=True)
        return f"the costs are not known ({one_line(error)})"
    whole = plan.together
    gradients, outputs = _many(whole.counts.gradients), _many(whole.counts.outputs)
    done = f", {len(plan.done):,} stages are already done" if plan.done else ""
    return f"{_runs(whole)} runs to execute, {gradients} gradients, {outputs} evaluations{done}"


def _runs(row: Row) -> str:
    return f"{row.deciding} + {row.reported}" if row.deciding else f"{row.reported}"


def _many(number: float) -> str:
    """Return a number rounded to three digits, with its prefix: "1.23 M"."""
    if math.isnan(number):
        return NONE
    number = float(f"{number:.3g}")  # Rounded before the prefix is chosen: 999,700 is 1 M.
    power = min(int(math.log10(max(number, 1)) // 3), 5)
    return f"{number / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}".strip()


def _hours(hours: float) -> str:
    if math.isnan(hours):
        return NONE
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
