"""`coprefl plan`: what the runs of a recipe take, row by row, before they are made.

Counted are stages, as the store keeps them: what two rows need is the first one's, and what is in
the store is not made again. Which searched value will be reported is not known before it is chosen:
until then the best so far is used for it, or else the first. Hours are counts times the seconds of
one client's round, which is measured on this machine.
"""

import logging
import math
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from coprefl_flwr import plugins
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data import Samples, TensorDataset
from coprefl_flwr.data.sources import SIZES
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
from coprefl_flwr.studies.store import Store, is_done

logger = logging.getLogger("flwr.coprefl")

WIDTH = 80

SECONDS = 1.0
"""About how long a measured round, and a measured evaluation, takes at most."""

CONFIG: dict[str, str | int | float | bool | bytes] = {
    "run": "", "population": "", "server-round": 1, "attempt": 0, "client": 0, "seed": 0,
}  # fmt: skip
"""What the message of a round says to a client."""

Paces = Mapping[str, tuple[float, float]]
"""By the name of what computes, seconds of one core for a gradient and for an output."""


@dataclass
class Row:
    """What a row of the recipe's tables takes, in all tables together."""

    label: str
    deciding: int = 0  # runs that choose values, and those that are reported: only new ones
    reported: int = 0
    work: dict[str, Counts] = field(default_factory=dict)  # by the name of what computes

    @property
    def counts(self) -> Counts:
        """What all networks compute."""
        return total(self.work.values())

    def add(self, name: str, counts: Counts) -> None:
        """Add what a network computes."""
        self.work[name] = total([counts, self.work.get(name, Counts())])

    def seconds(self, paces: Paces) -> float:
        """Return how long it takes on one core."""
        parts = [(counts, *paces[name]) for name, counts in self.work.items()]
        return math.fsum(counts.gradients * g + counts.outputs * o for counts, g, o in parts)


@dataclass
class Plan:
    """What a recipe takes that is not in the store."""

    store: Store
    rows: list[Row]
    computing: dict[str, Computing] = field(default_factory=dict)  # by name
    counted: set[str] = field(default_factory=set)  # keys of stages and features
    done: set[str] = field(default_factory=set)  # keys of stages that are in the store

    @property
    def together(self) -> Row:
        """All rows in one."""
        whole = Row("together")
        for row in self.rows:
            whole.deciding += row.deciding
            whole.reported += row.reported
            for name, counts in row.work.items():
                whole.add(name, counts)
        return whole

    def add(self, row: Row, runs: Iterable[Run]) -> int:
        """Add what runs take; return how many of them there is something to do for."""
        return sum([self._add_run(row, run) for run in runs])

    def _add_run(self, row: Row, run: Run) -> bool:
        before = len(self.counted)
        for stage in run.study.stages:
            key = stage.key
            if is_done(self.store.root / key):
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
        row.add(self.computing.setdefault(computing.name, computing).name, counts)


@plugins.unchanged()
def plan_of(recipe: Recipe, store: Store) -> Plan:
    """Return what a recipe takes that is not in the store yet.

    Datasets whose sizes are published need not be available. Raises a SettingsError for a run that
    cannot be as set, or another dataset that is not there.
    """
    folders = tuple(f"{SIZES}{folder}" for folder in recipe.settings.get("data-dir", ("",)))
    recipe = replace(recipe, settings={**recipe.settings, "data-dir": folders})
    plan = Plan(store, [Row(row.label) for row in recipe.rows])
    rows = {row.label: row for row in plan.rows}
    for table_row in table_rows(recipe):
        with recipe.placing(table_row.row):
            _add_row(plan, table_row, rows[table_row.label])
    return plan


def _add_row(plan: Plan, table_row: TableRow, row: Row) -> None:
    """Add what one row of one table takes."""
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
    """Return the seconds of one core for a gradient and for an output: a client's round, measured.

    It has five steps and an evaluation of a batch, or as many samples as take about a second.
    """
    one_thread()
    clock = time.process_time if default_device().type == "cpu" else time.perf_counter
    module, training = computing.network(), computing.training or LocalTraining()
    parameters = list(model_arrays(module).values())
    training = replace(training, local_epochs=1, local_steps=None, max_steps=None)

    def client(n: int) -> TorchClient:
        values = np.random.default_rng(0).standard_normal((n, *computing.shape), dtype=np.float32)
        labels = np.arange(n) % 2
        drawn = TensorDataset(torch.from_numpy(values), labels=labels, classes=("0", "1"))
        inputs = computing.text or drawn
        samples = Samples(inputs, np.arange(n) % len(inputs.labels), labels)
        return TorchClient(module, samples, test=samples, training=training)

    def of_a_sample(call: Callable[[TorchClient], object], most: int) -> float:
        def seconds(n: int) -> float:
            torch_client, ends = client(n), list[float]()
            for _ in range(4):
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


# ---- in words ----------------------------------------------------------------------------------


def plan_text(recipe: Recipe, plan: Plan, paces: Paces, workers: int = 1) -> str:
    """Return a plan as text."""
    rows = [*plan.rows, *([plan.together] if len(plan.rows) > 1 else [])]
    shown = [figures(row, paces) for row in rows]
    cells = {title: [texts[title] for texts in shown] for title in shown[0]}
    table = simple("", "Method", cells, [row.label for row in rows])
    hours = plan.together.seconds(paces) / 3600
    wall = f", {_hours(hours / workers)} with {workers} workers on as many cores"
    notes = [
        ", ".join(filter(None, [recipe.title, recipe.source, recipe.protocol])),
        "Runs: those that choose values + those that are reported. Gradients, and outputs without "
        "one (evaluations, losses, features), are counted by samples. Sent is what a deployment "
        "sends, evaluations left out. Of searched values, the first is counted instead of the "
        "value that will be chosen.",
        f"{len(plan.done):,} stages are in the store and are not counted." * bool(plan.done),
        "A dash: a method does not say how many gradients it computes." * math.isnan(hours),
        f"In all {_hours(hours)} core hours{wall * (workers > 1)}, by a measured round of one "
        f"client on {machine()}:" * bool(paces),
        *(f"- {name}: {g:.2g} s a gradient, {o:.2g} s an output" for name, (g, o) in paces.items()),
    ]
    first, *more = [textwrap.fill(note, WIDTH) for note in notes if note]
    return "\n".join([first, "", text(table, WIDTH), "", *more])


def figures(row: Row, paces: Paces) -> dict[str, str]:
    """Return what a row takes, as it is printed, by the title of a column."""
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
    """Return in one line what a recipe takes that is about to be run."""
    try:
        plan = plan_of(recipe, store)
    except Exception as error:  # It was checked: no sum of sizes keeps it from being run.
        logger.debug("the plan", exc_info=True)
        return f"what it takes is not known ({one_line(error)})"
    whole = plan.together
    gradients, outputs = _many(whole.counts.gradients), _many(whole.counts.outputs)
    done = f", {len(plan.done):,} stages done before" if plan.done else ""
    return f"{_runs(whole)} runs to make, {gradients} gradients, {outputs} evaluations{done}"


def _runs(row: Row) -> str:
    return f"{row.deciding} + {row.reported}" if row.deciding else f"{row.reported}"


def _many(number: float) -> str:
    """Return a number in three digits: "1.23 M"."""
    if math.isnan(number):
        return NONE
    number = float(f"{number:.3g}")  # First, as 999,700 is 1 M.
    power = min(int(math.log10(max(number, 1)) // 3), 5)
    return f"{number / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}".strip()


def _hours(hours: float) -> str:
    if math.isnan(hours):
        return NONE
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
