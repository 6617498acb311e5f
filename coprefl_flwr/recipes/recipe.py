"""A recipe, read and checked: the comparison that a YAML file describes.

```yaml
title: CIFAR-100, non-IID, scenario I
source: CoPreFL, AAAI text, Table 1(a)
settings:                     # run-config keys; a list compares: one table per combination
  downstream-classes: 20      # number of classes; [[80, 81]] selects the classes 80 and 81
  dataset: CIFAR100
  participants: [15, 20]
methods:                      # the rows of a table; a list of values is searched
  - random
  - fedavg
  - q-FFL: {method: qffl, q: [1, 3, 5]}
  - coprefl: {gamma: [0, 0.5, 1]}
search: {learning-rate: [0.01, 0.001]}   # for every method that has it
select: validation            # or test (the papers' way), or all (each value is a row)
search-by: halving            # runs only the best quarter of the values for all rounds; or all
reference: coprefl            # the row that the other rows are tested against
margin: 1                     # the difference that matters, in points (default: 1) or units
seeds: [0, 1, 2]              # [2] is one seed; {data: 10, training: 2} are 20 pairs of seeds
choose: {draws: 12, budget: 30 minutes}  # the limits of `coprefl choose`
metrics: [accuracy, variance] # the columns
figures: [accuracies, curves] # the plots; this is the default; [] draws none
protocols:                    # overlays; `coprefl run --protocol ratio` applies one
  ratio: {because: rates that train this network, settings: {learning-rate: 0.1}}
  equal-budget: {because: equal step sizes, equal: step-size}
small:                        # the overlay of --scale small
  settings: {dataset: glyphs, rounds: 6, participants: [3, 4]}
paper:                        # numbers that the paper printed
  columns: [accuracy, variance]
  tables:
    - {table: 1(a), where: {participants: 20}, rows: {coprefl: 83.29±2.61 34.69±3.17}}
```

A recipe with `study: personalised` in `settings` compares personalised methods. An overlay is a
part of a recipe that changes other keys: mappings are merged key by key, and `methods` by label. An
empty value removes a key. Any other value replaces the recipe's value. `small` is merged last.

A protocol is an overlay with its reason, `because`. With `equal: step-size`, every row gets the
number of rounds with which its summed step size is nearest to the reference's.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ConfigDict, Field

from coprefl_flwr import plugins
from coprefl_flwr.data.splits import SERVER_RESERVE
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.keep import BEST, Keep
from coprefl_flwr.named import as_file_name, written_options
from coprefl_flwr.options import Value
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.recipes.schema import CrossedSeeds, RecipeFile
from coprefl_flwr.recipes.yaml_file import Places
from coprefl_flwr.report.columns import BUDGETS, DIAGNOSTICS, KEPT, START_LOSS, STEP_SIZE, STOPPED
from coprefl_flwr.report.comparison import Printed
from coprefl_flwr.studies.measurements import own_metric
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.settings import STARTS

VALIDATION, TEST, ALL = "validation", "test", "all"
"""How searched values are chosen: on validation tasks, on the reported tasks, or not at all.

If no value is chosen, each value is a row.
"""

HALVING = "halving"
"""The search that runs only the best values to the end, after a quarter of the rounds of all."""

FULL, SMALL = "full", "small"

Choices = Mapping[str, tuple[Value, ...]]
"""Settings with their values. Several values of a setting are compared or searched."""


OwnMetrics = Mapping[str, Sequence[str]]
"""Name, title and better direction of each user metric, by its place: FILE.py:NAME, for example."""


@dataclass(frozen=True)
class Trial:
    """A method of a recipe with one value of each setting that is searched."""

    method: Method
    chosen: str  # values of searched settings, "gamma=0.5,learning-rate=0.1"; "" if there are none


@dataclass(frozen=True)
class RecipeRow:
    """A method of a recipe with its own settings: a row of each table."""

    label: str  # the row's name
    method: Method
    options: Choices  # the method's options; several values of an option are searched
    role: str  # role of the recipe's methods: pre-training or personalised
    searched_by_all: frozenset[str] = frozenset()  # options of the recipe's key `search`

    def trials(self) -> list[Trial]:
        """Return the method with each combination of the values that are searched."""
        searched = [key for key, values in self.options.items() if len(values) > 1]
        return [
            Trial(self._with(chosen), written_options((key, chosen[key]) for key in searched))
            for chosen in combinations(self.options)
        ]

    def _with(self, options: Mapping[str, Value]) -> Method:
        """Return the method with the options set in each phase that has these options.

        An option of `search` is not set in a phase that sets it in the method's text.
        """

        def added(phase: Method) -> Method:
            own = self.searched_by_all & dict(phase.options).keys()
            has = phase.keys(self.role) - own
            return phase.having({key: value for key, value in options.items() if key in has})

        return self.method.changed(added) if options else self.method


def methods_by_name(rows: Sequence[RecipeRow], select: str) -> Mapping[str, Method | None]:
    """Return {possible name of a row: its method}; None if the row has no chosen value yet.

    The names are the labels. With `select: all` they are also the labels with each value, and a
    label without a value then means the row's first value.
    """
    trials = [(row.label, row.trials()) for row in rows]
    if select != ALL:
        return {label: None if len(of_row) > 1 else of_row[0].method for label, of_row in trials}
    by_label = {label: of_row[0].method for label, of_row in trials}
    chosen = [(label, trial) for label, of_row in trials for trial in of_row if trial.chosen]
    return by_label | {f"{label}:{trial.chosen}": trial.method for label, trial in chosen}


@dataclass(frozen=True)
class PaperTable:
    """Table of the paper for one combination of the compared settings, by row label."""

    table: str
    where: Mapping[str, Value]
    rows: Mapping[str, Printed]


class Recipe(RecipeFile):
    """A checked recipe: the keys of its file, and all that follows from several of them."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    rows: tuple[RecipeRow, ...]
    reference_method: Method | None  # None if the reference row is searched
    source: str
    reference: str
    paper: tuple[PaperTable, ...]  # type: ignore[assignment]
    because: str  # the reason of the applied protocol, and the quantity it makes equal; or ""
    equal: str
    own_metrics: OwnMetrics
    effective: Mapping[str, Any] = Field(repr=False)  # the file with overlays and `--set` applied
    places: Places = Field(repr=False)

    @property
    def study(self) -> str:
        """The kind of study of all runs."""
        return str(self.settings.get("study", (STARTS,))[0])

    @property
    def pairs(self) -> list[dict[str, int]]:
        """The settings `seed`, and `data-seed` if it is set, of each reported run of a method."""
        if not isinstance(self.seeds, CrossedSeeds):
            return [{"seed": seed} for seed in self.seeds]
        pairs = itertools.product(self.seeds.data, self.seeds.training)
        return [{"data-seed": draw, "seed": seed} for draw, seed in pairs]

    @property
    def compared(self) -> tuple[str, ...]:
        """The settings with several values."""
        return tuple(key for key, values in self.settings.items() if len(values) > 1)

    @property
    def headings(self) -> OwnMetrics:
        """The titles and better directions of the user's metrics, by column."""
        return {f"{METRIC}{name}": text for name, *text in self.own_metrics.values()}

    def combinations(self) -> list[dict[str, Value]]:
        """Return every combination of the settings' values. The report has a table for each."""
        return combinations(self.settings)

    def paper_table(self, combination: Mapping[str, Value]) -> PaperTable | None:
        """Return the paper's table for a combination of settings; None if there is no table."""
        tables = (table for table in self.paper if table.where.items() <= combination.items())
        return next(tables, None)

    @contextmanager
    def placing(self, row: RecipeRow | None = None) -> Iterator[None]:
        """Prefix an error of the block with the place of its setting, or else of the row."""
        try:
            yield
        except SettingsError as error:
            place = self.places.of("methods", row.label) if row else self.places.of("settings")
            of_keys = filter(None, map(self.places.of_setting, error.keys))
            raise SettingsError(f"{next(of_keys, place)}: {error}", *error.keys) from error

    def to_yaml(self) -> str:
        """Return the recipe with all changes applied, as YAML that `read_recipe` reads."""
        return yaml.safe_dump(dict(self.effective), sort_keys=False, allow_unicode=True)


def combinations(choices: Choices) -> list[dict[str, Value]]:
    """Return every combination of the settings' values."""
    values = itertools.product(*choices.values())
    return [dict(zip(choices, chosen, strict=True)) for chosen in values]


LONGEST_NAME = 100
"""Maximum number of bytes of a table's name, without the hash at its end."""


def table_name(compared: Mapping[str, Value]) -> str:
    """Return the name of the table for these values of the compared settings.

    Names of the table's files contain this name. A long name ends with a hash of the values.
    """
    text = "_".join(f"{key}={value}" for key, value in compared.items())
    name = as_file_name(text, ".=+_-").strip("-_") or "table"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    short = name.encode()[:LONGEST_NAME].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# ---- the columns of its tables ------------------------------------------------------------------


def own_metrics(metrics: Iterable[str], known: OwnMetrics) -> OwnMetrics:
    """Return the user metrics among `metrics`; the code of those in `known` is not loaded."""
    loaded = {place: own_metric(place) for place in places_in(metrics) if place not in known}
    return {**known, **{place: (m.name, m.title, m.better) for place, m in loaded.items()}}


def places_in(metrics: Iterable[str]) -> list[str]:
    """Return the places of user metrics among `metrics`."""
    return [m for m in metrics if not m.startswith(METRIC) and plugins.is_place("metric", m)]


def with_needs(settings: Choices, metrics: Sequence[str], rows: Sequence[RecipeRow]) -> Choices:
    """Return `settings` with the settings that the columns and the rows of a table need.

    Examples are diagnostics, and samples at the server: all rows have the same clients, also rows
    whose methods do not use the server's data.
    """
    needs: dict[str, tuple[Value, ...]] = {}
    if any(phase.uses_server_data for row in rows for phase in row.method.trained):
        needs["server-reserve"] = (SERVER_RESERVE,)
    if any(name in DIAGNOSTICS for name in metrics):
        needs["diagnostics"] = (True,)
    if START_LOSS in metrics:
        needs["start-loss"] = (True,)
    needs |= settings
    if own := places_in(metrics):
        named = [str(places).split() for places in settings.get("client-metrics", ("",))]
        needs["client-metrics"] = tuple(" ".join(dict.fromkeys([*of, *own])) for of in named)
    return {**settings, **needs}


def columns_of(
    metrics: Sequence[str], settings: Choices, equal: str, rows: Sequence[RecipeRow]
) -> tuple[str, ...]:
    """Return the columns: the named metrics and, for starting models, pre-training costs."""
    of_starts = settings.get("study", (STARTS,)) == (STARTS,)
    besides = list(BUDGETS) if of_starts else []
    # With rounds = 20, cyclic:rounds=5+fedavg trains 25 rounds, and other methods train 20.
    if equal == STEP_SIZE or (of_starts and any(map(_has_own_rounds, rows))):
        besides.insert(0, "rounds")
    for keep in filter(None, settings.get("keep", ())):
        besides.insert(0, KEPT if Keep.read(keep).model == BEST else STOPPED)
    if settings.get("start-loss", (False,)) != (False,):
        besides.insert(0, START_LOSS)
    return tuple(dict.fromkeys([*(metrics or _default_metrics(settings)), *besides]))


def _has_own_rounds(row: RecipeRow) -> bool:
    phases = row.method.phases
    return len(phases) > 1 or "rounds" in (*row.options, *dict(phases[0].options))


def _default_metrics(settings: Choices) -> tuple[str, ...]:
    if settings.get("tasks") == (0,):
        return ("final", "best", "best-round", "models")
    return ("accuracy", "variance", "variance-beyond", "worst-10%", "worst-20%", "worst-30%")
