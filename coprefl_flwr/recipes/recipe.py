"""A recipe: a comparison of the papers, or one's own, as a short YAML file.

```yaml
title: CIFAR-100, non-IID, scenario I
source: CoPreFL, AAAI text, Table 1(a)
settings:                     # run-config keys; a list compares: one table per combination
  downstream-classes: 20      # how many; [[80, 81]], a list in a list, is these
  dataset: CIFAR100
  participants: [15, 20]
methods:                      # the rows of a table; a list there is searched
  - random
  - fedavg
  - q-FFL: {method: qffl, q: [1, 3, 5]}
  - coprefl: {gamma: [0, 0.5, 1]}
search: {learning-rate: [0.01, 0.001]}   # for every method that has it
select: validation            # or test (the papers' way), or all (each value is a row)
search-by: halving            # only the best quarter of the values is run to the end; or all, or
                              # optuna: of each row `search-trials`, 10 if that is not set
reference: coprefl            # the row that the others are tested against
seeds: [0, 1, 2]              # each seed is named: [2] is one, [0, 1] are two
metrics: [accuracy, variance] # the columns
figures: [accuracies, curves] # the plots; this is the default, and [] is none
protocols:                    # see `recipes.protocols`; `coprefl run --protocol ratio`
  ratio: {because: rates that train this network, rates: 100}
small: {task-classes: 4}      # what --scale small sets besides its own cuts
paper:                        # what the paper printed
  columns: [accuracy, variance]
  tables:
    - {table: 1(a), where: {participants: 20}, rows: {coprefl: 83.29±2.61 34.69±3.17}}
```

`settings` with `study: personalised` make it a recipe of personalised methods.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.named import Named, written
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.entries import Choices, PaperTable
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.phases import keys_of
from coprefl_flwr.studies.settings import STARTS

VALIDATION, TEST, ALL = "validation", "test", "all"
"""How a value is chosen: on validation tasks, on the reported tasks, or not: each is a row."""

SEARCHES = EVERY, HALVING, OPTUNA = "all", "halving", "optuna"
"""What is searched by: every value is run to the end, or only those that lead after a quarter, or
those that Optuna asks for."""


@dataclass(frozen=True)
class Candidate:
    """A method of a recipe with one value of everything that is searched."""

    start: Method
    chosen: str  # the values of what is searched, "gamma=0.5,learning-rate=0.1"; "" if nothing is


@dataclass(frozen=True)
class Entrant:
    """A method of a recipe with settings of its own: a row of each table."""

    label: str  # the row's name
    method: Method
    options: Choices  # settings of its own; several values are searched
    place: str  # where it stands
    role: str  # of the methods that the recipe compares

    def candidates(self) -> list[Candidate]:
        """Return it with each combination of the values that are searched."""
        found = []
        for given in _combinations(self.options):
            searched = [pair for pair in given.items() if len(self.options[pair[0]]) > 1]
            found.append(Candidate(self._start(given), written(searched)))
        return found

    @property
    def number(self) -> int:
        """How many candidates it has."""
        return math.prod(map(len, self.options.values()))

    def _start(self, given: Mapping[str, Value]) -> Method:
        """Return the method with the settings given to each of its phases that has them."""

        def added(phase: Named) -> Named:
            has = keys_of(Method((phase,)), self.role)
            return phase.having({key: value for key, value in given.items() if key in has})

        return self.method.changed(added) if given else self.method


@dataclass(frozen=True)
class Recipe:
    """A checked recipe; the module's docstring shows the file."""

    title: str
    source: str
    settings: Choices  # several values are compared
    entrants: tuple[Entrant, ...]
    select: str
    search_by: str
    search_trials: int
    validation_tasks: int
    validation_seed: int
    reference: str
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    figures: tuple[str, ...]
    paper: tuple[PaperTable, ...]
    notes: tuple[str, ...]
    protocol: str  # the protocol that it is of, why there is such, and what that makes equal; or ""
    because: str
    equal: str
    effective: Mapping[str, Any] = field(repr=False)  # the file after `--scale` and `--set`
    places: Mapping[str, str] = field(repr=False)  # of each setting and each key of the recipe

    @property
    def study(self) -> str:
        """The kind of study that its runs are."""
        return str(self.settings.get("study", (STARTS,))[0])

    @property
    def reference_start(self) -> Method | None:
        """The reference's method; None if it is yet to be chosen."""
        for one in self.entrants:
            candidates = one.candidates()
            names = {f"{one.label}:{found.chosen}": found.start for found in candidates}
            if self.reference in names:
                return names[self.reference]
            if self.reference == one.label:
                open_ = len(candidates) > 1 and self.select != ALL
                return None if open_ else candidates[0].start
        return None

    @property
    def compared(self) -> tuple[str, ...]:
        """The settings with several values."""
        return tuple(key for key, values in self.settings.items() if len(values) > 1)

    def combinations(self) -> list[dict[str, Value]]:
        """Return every combination of the settings' values: one per table."""
        return _combinations(self.settings)

    def paper_table(self, combination: Mapping[str, Value]) -> PaperTable | None:
        """Return what the paper printed for a combination, if it did."""
        for table in self.paper:
            if table.where.items() <= combination.items():
                return table
        return None

    @contextmanager
    def placing(self, entrant: Entrant | None = None) -> Iterator[None]:
        """Give an error raised inside the place of the setting it is about, or else the row's."""
        try:
            yield
        except SettingsError as error:
            places = [self.places[key] for key in error.keys if key in self.places]
            places.append(entrant.place if entrant else self.places["settings"])
            raise SettingsError(f"{places[0]}: {error}", *error.keys) from error

    def to_yaml(self) -> str:
        """Return the recipe as it was run, to be read again."""
        return yaml.safe_dump(dict(self.effective), sort_keys=False, allow_unicode=True)


def _combinations(choices: Choices) -> list[dict[str, Value]]:
    values = itertools.product(*choices.values())
    return [dict(zip(choices, chosen, strict=True)) for chosen in values]
