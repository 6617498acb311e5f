"""A recipe: a comparison of the papers, or one's own, as a short YAML file.

```yaml
title: CIFAR-100, non-IID, scenario I
source: CoPreFL, AAAI text, Table 1(a)
settings:                     # run-config keys; a list compares: one table per combination
  dataset: CIFAR100
  participants: [15, 20]
methods:                      # the rows of a table; a list there is searched
  - random
  - fedavg
  - q-FFL: {method: qffl, q: [1, 3, 5]}
  - coprefl: {gamma: [0, 0.5, 1]}
search: {learning-rate: [0.01, 0.001]}   # for every method that has it
select: validation            # or test (the papers' way), or all (each value is a row)
reference: coprefl            # the row that the others are tested against
seeds: [0, 1, 2]
metrics: [accuracy, variance] # the columns
figures: [accuracies, curves]
small: {task-classes: 4}      # what --scale small sets besides its own cuts
paper:                        # what the paper printed
  columns: [accuracy, variance]
  tables:
    - {table: 1(a), where: {participants: 20}, rows: {coprefl: 83.29±2.61 34.69±3.17}}
```

`settings` with `study: personalised` make it a recipe of personalised methods.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.printed import PaperTable
from coprefl_flwr.studies.phases import keys_of
from coprefl_flwr.studies.settings import STARTS

VALIDATION, TEST, ALL = "validation", "test", "all"
"""How a value is chosen: on validation tasks, on the reported tasks, or not: each is a row."""


@dataclass(frozen=True)
class Candidate:
    """A method of a recipe with one value of everything that is searched.

    Parameters
    ----------
    start : str
        As the setting `method` takes it: "coprefl:gamma=0.5".
    chosen : str
        The values of what is searched: "gamma=0.5,learning-rate=0.1"; "" if nothing is.
    """

    start: str
    chosen: str


@dataclass(frozen=True)
class Entrant:
    """A method of a recipe with settings of its own: a row of each table.

    Parameters
    ----------
    label : str
        The row's name.
    method : str
        As the setting `method` takes it.
    options : Mapping[str, tuple[Value, ...]]
        Settings of its own; several values are searched.
    place : str
        Where it stands.
    role : str
        Of the methods that the recipe compares.
    """

    label: str
    method: str
    options: Mapping[str, tuple[Value, ...]]
    place: str
    role: str

    def candidates(self) -> list[Candidate]:
        """Return it with each combination of the values that are searched."""
        found = []
        for values in itertools.product(*self.options.values()):
            given = dict(zip(self.options, values, strict=True))
            searched = [f"{k}={_shown(v)}" for k, v in given.items() if len(self.options[k]) > 1]
            found.append(Candidate(self._start(given), ",".join(searched)))
        return found

    def _start(self, given: Mapping[str, Value]) -> str:
        """Return the method with the settings given to each of its phases that has them."""
        phases = []
        for phase in self.method.split("+"):
            name, _, options = phase.partition(":")
            has = keys_of(name, self.role)
            added = [f"{key}={_shown(value)}" for key, value in given.items() if key in has]
            own = [options] if options else []
            phases.append(":".join([name, *([",".join(own + added)] if own + added else [])]))
        return "+".join(phases)


@dataclass(frozen=True)
class Recipe:
    """A checked recipe; the module's docstring shows the file.

    Parameters
    ----------
    settings : Mapping[str, tuple[Value, ...]]
        Run-config keys; several values are compared.
    effective : Mapping[str, Any]
        The file after `--scale` and `--set`, as it is kept beside the results.
    places : Mapping[str, str]
        Where each setting stands, and each key of the recipe.
    """

    title: str
    source: str
    settings: Mapping[str, tuple[Value, ...]]
    entrants: tuple[Entrant, ...]
    select: str
    validation_tasks: int
    validation_seed: int
    reference: str
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    figures: tuple[str, ...]
    paper: tuple[PaperTable, ...]
    notes: tuple[str, ...]
    effective: Mapping[str, Any] = field(repr=False)
    places: Mapping[str, str] = field(repr=False)

    @property
    def study(self) -> str:
        """The kind of study that its runs are."""
        return str(self.settings.get("study", (STARTS,))[0])

    @property
    def compared(self) -> tuple[str, ...]:
        """The settings with several values."""
        return tuple(key for key, values in self.settings.items() if len(values) > 1)

    def combinations(self) -> list[dict[str, Value]]:
        """Return every combination of the settings' values: one per table."""
        return [
            dict(zip(self.settings, values, strict=True))
            for values in itertools.product(*self.settings.values())
        ]

    def paper_table(self, combination: Mapping[str, Value]) -> PaperTable | None:
        """Return what the paper printed for a combination, if it did."""
        for table in self.paper:
            if all(combination[key] == value for key, value in table.where.items()):
                return table
        return None

    def placed(self, error: SettingsError, entrant: Entrant | None = None) -> SettingsError:
        """Return an error with the place of the setting that it is about, or else the row's."""
        places = [self.places[key] for key in error.keys if key in self.places]
        places.append(entrant.place if entrant else self.places["settings"])
        return SettingsError(f"{places[0]}: {error}", *error.keys)

    def to_yaml(self) -> str:
        """Return the recipe as it was run, to be read again."""
        return yaml.safe_dump(dict(self.effective), sort_keys=False, allow_unicode=True)


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
