"""A recipe: a comparison of the papers, or one's own, as a short YAML file.

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
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.experiments.methods import METHODS
from coprefl_flwr.experiments.report.columns import COLUMNS
from coprefl_flwr.experiments.report.comparison import FIGURES
from coprefl_flwr.experiments.scale import FULL, SMALL, cut
from coprefl_flwr.experiments.starts import RANDOM, own_settings, settings_of, task_phase
from coprefl_flwr.experiments.starts import start as read_start
from coprefl_flwr.experiments.yaml_file import Located, parse_yaml, read_yaml
from coprefl_flwr.settings import Settings, Value, checked, unknown

VALIDATION, TEST, ALL = "validation", "test", "all"
METRICS = tuple(COLUMNS)
KEYS = (
    "title",
    "source",
    "settings",
    "methods",
    "search",
    "select",
    "validation-tasks",
    "validation-seed",
    "reference",
    "seeds",
    "metrics",
    "figures",
    "small",
    "paper",
    "scale",
)
ELSEWHERE = {
    "seed": "seeds",
    "method": "methods",
    "run-name": "--out",
    "output-dir": "--out",
    "resume": "the same command again",
}
"""Settings that a recipe says in another way."""


@dataclass(frozen=True)
class Candidate:
    """A row with one value of everything that is searched.

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
class Row:
    """A row of the recipe's tables: a method with settings of its own.

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
    """

    label: str
    method: str
    options: Mapping[str, tuple[Value, ...]]
    place: str

    def candidates(self) -> list[Candidate]:
        """Return the row with each combination of the values that are searched."""
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
            has = METHODS[name].settings if name in METHODS else []
            added = [f"{key}={_shown(value)}" for key, value in given.items() if key in has]
            own = [options] if options else []
            phases.append(":".join([name, *([",".join(own + added)] if own + added else [])]))
        return "+".join(phases)


@dataclass(frozen=True)
class PaperTable:
    """What the paper printed for one combination of the compared settings.

    Parameters
    ----------
    rows : Mapping[str, Mapping[str, tuple[float, float | None]]]
        Label -> metric -> (mean, standard deviation).
    """

    table: str
    where: Mapping[str, Value]
    rows: Mapping[str, Mapping[str, tuple[float, float | None]]]


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
    rows: tuple[Row, ...]
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

    def placed(self, error: SettingsError, row: Row | None = None) -> SettingsError:
        """Return an error with the place of the setting that it names first, or else the row's."""
        words = re.findall(r"[a-z]+(?:-[a-z]+)*", str(error))
        named = [self.places[word] for word in words if word in self.places]
        place = named[0] if named else row.place if row else self.places["settings"]
        return SettingsError(f"{place}: {error}")

    def to_yaml(self) -> str:
        """Return the recipe as it was run, to be read again."""
        return yaml.safe_dump(dict(self.effective), sort_keys=False, allow_unicode=True)


def read_recipe(path: Path, changes: Sequence[str] = (), scale: str = FULL) -> Recipe:
    """Read and check a recipe.

    Parameters
    ----------
    changes : Sequence[str]
        "KEY=VALUE", a setting or a key of the recipe, with a value as in YAML; they come last.
    scale : str
        "full", or "small": rounds, clients, model and data cut to minutes on two cores.

    Raises
    ------
    SettingsError
        One line with the file and the line in it.
    """
    tree = dict(read_yaml(path).mapping("a recipe"))
    _known(tree, KEYS, "key")
    if scale == SMALL:
        tree = cut(tree, str(path))
    for change in changes:
        _change(tree, change)
    return _recipe(tree, str(path), changed=bool(changes) or scale == SMALL)


def _change(tree: dict[str, Located], change: str) -> None:
    """Set KEY=VALUE in a recipe."""
    key, equals, text = change.partition("=")
    if not equals:
        raise SettingsError(f"--set {change}: write KEY=VALUE")
    place = f"--set {change}"
    value = Located("", place) if not text else Located(parse_yaml(text, place).value, place)
    if key in KEYS:
        tree[key] = value
        return
    settings = dict(tree["settings"].mapping("settings")) if "settings" in tree else {}
    tree["settings"] = Located(settings | {key: value}, place)


def _recipe(tree: dict[str, Located], name: str, changed: bool) -> Recipe:
    for key in ("title", "settings", "methods"):
        if key not in tree:
            raise SettingsError(f"{name}: there is no '{key}'")
    settings = _settings(tree["settings"])
    select = _one_of(tree.get("select"), VALIDATION, (VALIDATION, TEST, ALL), "select")
    rows = _rows(tree["methods"], _options(tree["search"], "search") if "search" in tree else {})
    names = _names(rows, select)
    reference = _one_of(tree.get("reference"), names[-1], names, "reference")
    if changed and "paper" in tree:
        tree |= {"paper": _without_others(tree["paper"], settings, names)}
        if not tree["paper"].value:
            del tree["paper"]
    recipe = Recipe(
        title=tree["title"].text("title"),
        source=tree["source"].text("source") if "source" in tree else "",
        settings=settings,
        rows=rows,
        select=select,
        validation_tasks=_whole(tree.get("validation-tasks"), 2, 1, "validation-tasks"),
        validation_seed=_whole(tree.get("validation-seed"), 100, 0, "validation-seed"),
        reference=reference,
        seeds=_seeds(tree.get("seeds")),
        metrics=_chosen(tree.get("metrics"), METRICS, "metric") or _default_metrics(settings),
        figures=_chosen(tree.get("figures"), FIGURES, "figure"),
        paper=_paper(tree["paper"], settings, names) if "paper" in tree else (),
        notes=_notes(tree),
        effective={key: entry.plain() for key, entry in tree.items()},
        places=_places(tree),
    )
    _check_searched(recipe)
    _check_heeded(recipe, tree)
    _check_starts(recipe)
    return recipe


# ---- the parts of a file ------------------------------------------------------------------------


def _known(mapping: Mapping[str, Located], known: Iterable[str], what: str) -> None:
    """Raise a SettingsError with the line of the first key that is not known."""
    for key, entry in mapping.items():
        if key not in known:
            raise entry.error(unknown(what, key, list(known)))


def _settings(entry: Located) -> dict[str, tuple[Value, ...]]:
    """Read {setting: value or list of values to compare}."""
    for key, value in entry.mapping("settings").items():
        if key in ELSEWHERE:
            raise value.error(f"'{key}' is not set here: use {ELSEWHERE[key]}")
    return _options(entry, "settings")


def _options(entry: Located, what: str) -> dict[str, tuple[Value, ...]]:
    """Read {setting: value or list of values}."""
    return {key: _values(key, value) for key, value in entry.mapping(what).items()}


def _values(key: str, entry: Located) -> tuple[Value, ...]:
    """Read a setting's value, or the list of them."""
    found: list[Value] = []
    for value in entry.listed(key):
        if isinstance(value.value, dict | list) or value.value is None:
            raise value.error(f"{key}: must be a plain value")
        try:
            found.append(checked(key, value.value))
        except SettingsError as error:
            raise value.error(str(error)) from error
        if found.count(found[-1]) > 1:
            raise value.error(f"{key} names {found[-1]} twice")
    return tuple(found)


def _rows(entry: Located, search: Mapping[str, tuple[Value, ...]]) -> tuple[Row, ...]:
    """Read the list of methods."""
    rows = [_row(one, search) for one in entry.listed("methods")]
    labels = [row.label for row in rows]
    for row in rows:
        if labels.count(row.label) > 1:
            raise SettingsError(f"{row.place}: methods names '{row.label}' twice")
    return tuple(rows)


def _row(entry: Located, search: Mapping[str, tuple[Value, ...]]) -> Row:
    """Read one method: "NAME", or {LABEL: {method: NAME, SETTING: value or list}}."""
    if isinstance(entry.value, str):
        label, options = entry.value, dict[str, Located]()
    else:
        given = entry.mapping("a method")
        if len(given) > 1:
            raise entry.error("a method is one LABEL: {settings}")
        label, inner = next(iter(given.items()))
        options = {} if inner.value in ({}, None) else dict(inner.mapping(label))
    named = options.pop("method", Located(label, entry.place))
    method = named.text("method").replace(" ", "")
    own = {key: _values(key, value) for key, value in options.items()}
    for phase in method.split("+"):
        if phase.partition(":")[0] not in (RANDOM, *METHODS):
            raise named.error(unknown("method", phase.partition(":")[0], [RANDOM, *METHODS]))
    has = settings_of(method)
    for key, value in options.items():
        if key not in has:
            raise value.error(f"{label}: {unknown('setting', key, sorted(has))}")
    searched = {key: values for key, values in search.items() if key in has and key not in own}
    return Row(label, method, own | searched, entry.place)


def _names(rows: Sequence[Row], select: str) -> list[str]:
    """Return what the rows can be called: their labels, and with a value each where all are shown.

    A row that is searched is called by its label even then, for the first of its values.
    """
    labels = [row.label for row in rows]
    if select != ALL:
        return labels
    return labels + [
        f"{row.label}:{candidate.chosen}"
        for row in rows
        for candidate in row.candidates()
        if candidate.chosen
    ]


def _seeds(entry: Located | None) -> tuple[int, ...]:
    if entry is None:
        return (0,)
    found = [_whole(one, 0, 0, "seeds") for one in entry.listed("seeds")]
    if len(set(found)) < len(found):
        raise entry.error("seeds names one twice")
    return tuple(found)


def _whole(entry: Located | None, default: int, minimum: int, what: str) -> int:
    if entry is None:
        return default
    if not isinstance(entry.value, int) or isinstance(entry.value, bool) or entry.value < minimum:
        raise entry.error(f"{what} = {entry.value}: must be a whole number, at least {minimum}")
    return entry.value


def _one_of(entry: Located | None, default: str, allowed: Sequence[str], what: str) -> str:
    if entry is None:
        return default
    if entry.value not in allowed:
        raise entry.error(f"{what}: {unknown('value', str(entry.value), list(allowed))}")
    return str(entry.value)


def _chosen(entry: Located | None, allowed: Sequence[str], what: str) -> tuple[str, ...]:
    if entry is None:
        return ()
    found = [_one_of(one, "", allowed, what) for one in entry.listed(f"{what}s")]
    return tuple(dict.fromkeys(found))


def _default_metrics(settings: Mapping[str, tuple[Value, ...]]) -> tuple[str, ...]:
    if settings.get("tasks") == (0,):
        return ("final", "best", "best-round", "models")
    return ("accuracy", "variance", "worst-10%", "worst-20%", "worst-30%")


def _places(tree: Mapping[str, Located]) -> dict[str, str]:
    """Return where the recipe's keys and its settings stand."""
    entries = {**tree, **tree["settings"].mapping("settings")}
    return {key: entry.place for key, entry in entries.items()}


def _notes(tree: Mapping[str, Located]) -> tuple[str, ...]:
    return tuple(tree["scale"].text("scale").splitlines()) if "scale" in tree else ()


# ---- what the paper printed ---------------------------------------------------------------------


def _without_others(
    entry: Located, settings: Mapping[str, tuple[Value, ...]], names: Sequence[str]
) -> Located:
    """Return what the paper printed for the tables and rows that a changed recipe still has."""
    given = dict(entry.mapping("paper"))
    if "tables" not in given:
        return entry
    tables = []
    for table in given["tables"].listed("tables"):
        parts = dict(table.mapping("a table"))
        where = parts["where"].mapping("where") if "where" in parts else {}
        rows = parts["rows"].mapping("rows") if "rows" in parts else {}
        left = {name: row for name, row in rows.items() if name in names}
        if left and all(_values(k, v)[0] in settings.get(k, ()) for k, v in where.items()):
            parts["rows"] = replace(parts["rows"], value=left)
            tables.append(replace(table, value=parts))
    given["tables"] = replace(given["tables"], value=tables)
    return replace(entry, value=given if tables else {})


def _paper(
    entry: Located, settings: Mapping[str, tuple[Value, ...]], names: Sequence[str]
) -> tuple[PaperTable, ...]:
    given = entry.mapping("paper")
    _known(given, ("columns", "tables"), "key")
    if "columns" not in given or "tables" not in given:
        raise entry.error("paper needs 'columns' and 'tables'")
    columns = [_one_of(one, "", METRICS, "column") for one in given["columns"].listed("columns")]
    return tuple(
        _paper_table(one, columns, settings, names) for one in given["tables"].listed("tables")
    )


def _paper_table(
    entry: Located,
    columns: Sequence[str],
    settings: Mapping[str, tuple[Value, ...]],
    names: Sequence[str],
) -> PaperTable:
    given = entry.mapping("a table")
    _known(given, ("table", "where", "rows"), "key")
    where: dict[str, Value] = {}
    asked = given["where"].mapping("where") if "where" in given else {}
    for key, value in asked.items():
        where[key] = _values(key, value)[0]
        if where[key] not in settings.get(key, ()):
            values = ", ".join(map(str, settings.get(key, ()))) or "not set"
            raise value.error(f"where: {key} = {where[key]}; in the settings it is {values}")
    if "rows" not in given:
        raise entry.error("a table of the paper needs 'rows'")
    rows = given["rows"].mapping("rows")
    _known(rows, names, "row")
    printed = {name: _printed(row, columns) for name, row in rows.items()}
    return PaperTable(str(given["table"].value) if "table" in given else "", where, printed)


_NUMBER = r"-?\d+(?:\.\d+)?"


def _printed(entry: Located, columns: Sequence[str]) -> dict[str, tuple[float, float | None]]:
    """Read "83.29±2.61 34.69 -": mean and standard deviation, a mean alone, or nothing."""
    words = str(entry.value).replace(" ± ", "±").split()
    if len(words) != len(columns):
        raise entry.error(f"{len(words)} figures for {len(columns)} columns")
    found: dict[str, tuple[float, float | None]] = {}
    for metric, word in zip(columns, words, strict=True):
        match = re.fullmatch(rf"({_NUMBER})(?:±({_NUMBER}))?", word)
        if match:
            found[metric] = (float(match[1]), float(match[2]) if match[2] else None)
        elif word != "-":
            raise entry.error(f"'{word}' is no figure; write 83.29±2.61, 83.29 or -")
    return found


# ---- checks between the parts -------------------------------------------------------------------


def _check_searched(recipe: Recipe) -> None:
    """Raise a SettingsError if something is searched that nothing can choose."""
    searched = [row for row in recipe.rows if len(row.candidates()) > 1]
    if searched and recipe.select == VALIDATION and 0 in recipe.settings.get("tasks", ()):
        raise SettingsError(
            f"{searched[0].place}: '{searched[0].label}' is searched on validation tasks, and "
            "tasks = 0; set select: all, or test"
        )
    if recipe.validation_seed in recipe.seeds and searched and recipe.select == VALIDATION:
        problem = f"validation-seed = {recipe.validation_seed} is one of the seeds"
        raise recipe.placed(SettingsError(problem))


def _check_heeded(recipe: Recipe, tree: Mapping[str, Located]) -> None:
    """Raise a SettingsError for a method's setting that no method here has."""
    tasks = recipe.settings.get("task-method", ("fedavg",))
    names = [*(row.method for row in recipe.rows), *map(str, tasks)]
    has = {key for name in names for key in settings_of(name)}
    for key, entry in tree["settings"].mapping("settings").items():
        if key in own_settings() and key not in has:
            raise entry.error(f"{key}: no method here has this setting")
    trained = {key for row in recipe.rows for key in settings_of(row.method)}
    for key, entry in tree["search"].mapping("search").items() if "search" in tree else ():
        if key not in trained:
            raise entry.error(f"search: {key}: no method here has this setting")


def _check_starts(recipe: Recipe) -> None:
    """Raise a SettingsError if some combination cannot be run as set."""
    for combination in recipe.combinations():
        try:
            settings = Settings.from_config(combination)
            task_phase(settings)
        except SettingsError as error:
            raise recipe.placed(error) from error
        for row in recipe.rows:
            for candidate in row.candidates():
                try:
                    read_start(settings, candidate.start)
                except SettingsError as error:
                    raise SettingsError(f"{row.place}: {error}") from error


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
