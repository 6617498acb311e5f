"""Read and check a recipe's file. Errors name the line that is wrong."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.methods import PRETRAINING, RANDOM, find_class
from coprefl_flwr.named import with_options
from coprefl_flwr.options import COUNT, NUMBERS, WORDS, Option, Value, declared
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.recipes.overlays import CHANGES, Tree, read_tree
from coprefl_flwr.recipes.recipe import (
    ALL,
    EVERY,
    FULL,
    TEST,
    VALIDATION,
    Choices,
    OwnMetrics,
    PaperTable,
    Recipe,
    RecipeRow,
    columns_of,
    methods_by_name,
    own_metrics,
    table_name,
    with_needs,
)
from coprefl_flwr.recipes.runs import ROLES, Run
from coprefl_flwr.recipes.schema import ELSEWHERE, Paper, RecipeFile, validated
from coprefl_flwr.recipes.search import check_installed
from coprefl_flwr.recipes.yaml_file import Keys, Places
from coprefl_flwr.report.columns import COLUMNS, STEP_SIZE, is_column
from coprefl_flwr.report.comparison import Printed
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import with_role
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.settings import STARTS, Settings, checked


def read_recipe(
    path: Path,
    changes: Sequence[str] = (),
    scale: str = FULL,
    protocol: str = "",
    stored: OwnMetrics = MappingProxyType({}),
) -> Recipe:
    """Read and check a recipe.

    Parameters
    ----------
    changes : Sequence[str]
        "KEY=VALUE" each: a setting or a key of the recipe, and a value as in YAML. They are applied
        after the protocol and the scale.
    scale : str
        "full", or "small": the recipe's overlay `small` is applied.
    protocol : str
        Name of the protocol that is applied, before `small`; "" is the recipe's first protocol.
    stored : OwnMetrics
        The titles of user metrics that a run has stored, whose code is then not loaded.

    Raises
    ------
    SettingsError
        If the recipe is wrong. The message is one line, which names the file and the line.
    """
    tree, places = read_tree(path, changes, scale, protocol)
    file = validated(tree, places)
    for key in ELSEWHERE.keys() & tree["settings"].keys():
        with places.at("settings", key):
            raise SettingsError(f"'{key}' is no setting of a recipe: use {ELSEWHERE[key]}")
    settings: Choices = _choices(tree["settings"], {}, ("settings",), places)
    study, *others = settings.get("study", (STARTS,))
    with places.at("settings", "study"):
        if others:
            raise SettingsError("study: name one kind of study, not a list of several")
    role = ROLES[str(study)]
    rows = _rows(tree, role, places)
    trained = {key for row in rows for key in row.method.keys(row.role)}
    unused = [key for key in tree.get("search", {}) if key not in trained]
    if any(change.startswith("methods=") for change in changes):
        tree, unused = _without(tree, unused, places)
    methods = methods_by_name(rows, file.select)
    reference = file.reference or list(methods)[-1]
    with places.at("reference"):
        if reference not in methods:
            raise SettingsError(f"reference: {unknown('value', reference, methods)}")
    about = file.protocols[file.protocol] if file.protocol else None
    equal = (about and about.equal) or ""
    with places.at("metrics"):
        own = own_metrics(file.metrics, stored)
    metrics = _columns("metric", file.metrics, ("metrics",), places, own)
    settings = with_needs(settings, file.metrics, rows)
    changed = bool(changes or file.protocol)
    paper = _paper(file.paper, settings, list(methods), places, changed, own) if file.paper else []
    recipe = Recipe(
        title=file.title,
        source=file.source or "",
        settings=settings,
        rows=rows,
        select=file.select,
        search_by=file.search_by,
        search_trials=file.search_trials,
        validation_tasks=file.validation_tasks,
        validation_seed=file.validation_seed,
        reference=reference,
        reference_method=methods[reference],
        seeds=tuple(file.seeds),
        metrics=columns_of(metrics, settings, equal, rows),
        figures=_figures(file, settings),
        paper=tuple(table for table, _ in paper),
        notes=tuple((file.scale or "").splitlines()),
        protocol=file.protocol or "",
        because=about.because if about else "",
        equal=equal,
        own_metrics=own,
        effective=_effective(tree, file.paper, [text for _, text in paper]),
        places=places,
    )
    _check_searched(recipe)
    for key in unused:
        with places.at("search", key):
            near = unknown("setting", key, sorted(trained))
            raise SettingsError(f"search: {key}: no method of the recipe has this: {near}")
    _check_equal(recipe)
    _check_tables(recipe)
    _check_studies(recipe)
    return recipe


# ---- settings and methods ------------------------------------------------------------------------


def _choices(
    part: Mapping[str, Any], own: Mapping[str, Option], keys: Keys, places: Places
) -> dict[str, tuple[Value, ...]]:
    """Read {setting: value or list of values}; `own` has the options of a row's method."""
    return {key: _values(key, value, own, (*keys, key), places) for key, value in part.items()}


def _values(
    key: str, entry: Any, own: Mapping[str, Option], keys: Keys, places: Places
) -> tuple[Value, ...]:
    """Return the list of a setting's values; a single value becomes a list of one value."""
    values = entry if isinstance(entry, list) else [entry]
    takes = declared(Settings)[key].takes if key in declared(Settings) else ()
    read = own[key].read if key in own else functools.partial(checked, key)
    with places.at(*keys):
        if not values:
            raise SettingsError(f"{key} is an empty list: name at least one value")
        if isinstance(entry, list) and COUNT in takes:
            _check_counts(key, entry)
    result: list[Value] = []
    for at, value in enumerate(values):
        with places.at(*keys, at):
            if isinstance(value, dict) and "method" in value:  # A method within a method.
                options = {name: option for name, option in value.items() if name != "method"}
                value = with_options(str(value["method"]), options.items())
            if isinstance(value, list) and value and isinstance(entry, list):
                value = _as_text(value, takes)
            if isinstance(value, dict | list) or value is None:
                raise SettingsError(f"{key}: must be a text, a number, true or false")
            value = read(value)
            value = "" if value is None else value
            if value in result:
                raise SettingsError(f"{key} contains {value} twice")
            result.append(value)
    return tuple(result)


def _as_text(value: list[Any], takes: Sequence[str]) -> Any:
    """Return a nested list as the setting's text, if the setting accepts a nested list."""
    if NUMBERS in takes and all(type(number) is int for number in value):
        return "list:" + ",".join(map(str, value))
    if WORDS in takes and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value


def _check_counts(key: str, values: Sequence[Any]) -> None:
    """Raise a SettingsError for a list of integers that could be classes or class counts."""
    numbers = [value for value in values if type(value) is int]
    if len(numbers) > 1:
        listed = ", ".join(map(str, numbers))
        counts = ", ".join(f"'{number}'" for number in numbers)
        write = f"write [[{listed}]] for these classes, or [{counts}] to compare these numbers"
        raise SettingsError(f"{key} = [{listed}]: {write}")


def _rows(tree: Tree, role: str, places: Places) -> tuple[RecipeRow, ...]:
    """Read the methods, each with its options and the values searched for all methods."""
    search, rows = tree.get("search", {}), []
    for label, options in tree["methods"].items():
        keys, method = ("methods", label), options["method"]
        with places.at(*keys, "method"):
            own = _own_options(method, role)
        settings = {key: value for key, value in options.items() if key != "method"}
        has = method.keys(role)
        for key in settings.keys() - has:
            with places.at(*keys, key):
                raise SettingsError(f"{label}: {unknown('setting', key, sorted(has))}")
        chosen = _choices(settings, own, keys, places)
        unset = {
            key for phase in method.phases for key in phase.keys(role) - dict(phase.options).keys()
        }
        shared = frozenset((search.keys() & unset) - chosen.keys())
        searched = {key: entry for key, entry in search.items() if key in shared}
        chosen |= _choices(searched, own, ("search",), places)
        rows.append(RecipeRow(label, method, chosen, role, shared))
    return tuple(rows)


def _own_options(method: Method, role: str) -> dict[str, Option]:
    """Return the options of all phases of a method, by key.

    Raises a SettingsError for an unknown method, or a method without this role.
    """
    untrained = [RANDOM] if role == PRETRAINING else []
    if untrained and method.is_external:
        return {}
    known = [*untrained, *with_role(role)]
    phases = [phase for phase in method.phases if phase.name not in untrained]
    for phase in phases:
        find_class(phase.name, role, known)
    return {key: option for phase in phases for key, option in phase.declared_options.items()}


def _without(tree: Tree, unused: Sequence[str], places: Places) -> tuple[Tree, list[str]]:
    """Return a recipe whose `search` has no unused options, and the unused options that were kept.

    Options are unused if a change leaves their methods out. Options set by a change are kept.
    """
    kept = [key for key in unused if places.of("search", key).startswith(CHANGES)]
    search = {k: v for k, v in tree.get("search", {}).items() if k not in unused or k in kept}
    return tree | ({"search": search} if "search" in tree else {}), kept


# ---- figures, and the paper's tables -----------------------------------------------------


def _figures(file: RecipeFile, settings: Choices) -> tuple[str, ...]:
    """Return the kinds of figures: the named kinds, or by default kinds that always have data."""
    if "figures" in file.model_fields_set:  # An empty list means no figures.
        return tuple(dict.fromkeys(file.figures))
    if settings.get("study", (STARTS,)) != (STARTS,):
        return ("accuracies",)  # Losses of different personalised methods cannot be compared.
    return ("curves",) if settings.get("tasks") == (0,) else ("accuracies", "curves")


def _paper(
    paper: Paper,
    settings: Choices,
    names: Sequence[str],
    places: Places,
    changed: bool,
    own: OwnMetrics,
) -> list[tuple[PaperTable, dict[str, Any]]]:
    """Read the paper's tables for a recipe with these settings and these names of rows.

    Each table is returned with its part of the file. If the recipe was changed, tables and rows
    that the recipe no longer has are left out.
    """
    columns = _columns("column", paper.columns, ("paper", "columns"), places, own)
    tables: list[tuple[PaperTable, dict[str, Any]]] = []
    for at, table in enumerate(paper.tables):
        keys = ("paper", "tables", at)
        where = {
            key: _values(key, entry, {}, (*keys, "where", key), places)[0]
            for key, entry in table.where.items()
        }
        other = [key for key, value in where.items() if value not in settings.get(key, ())]
        rows = {name: row for name, row in table.rows.items() if name in names}
        if changed and (other or not rows):
            continue
        for key in other:
            with places.at(*keys, "where", key):
                has = ", ".join(map(str, settings.get(key, ()))) or "not set"
                raise SettingsError(f"where: {key} = {where[key]}, but the settings have {has}")
        printed = {}
        for name, row in (rows if changed else table.rows).items():
            with places.at(*keys, "rows", name):
                if name not in names:
                    raise SettingsError(unknown("row", name, names))
                printed[name] = _printed(str(row), columns)
        text = {"table": table.table, "where": where, "rows": rows}
        tables.append((PaperTable(str(table.table), where, printed), text))
    return tables


def _columns(
    what: str, metrics: Sequence[str], keys: Keys, places: Places, own: OwnMetrics
) -> list[str]:
    """Return the columns of metrics; errors call each metric `what`."""
    columns = []
    for at, metric in enumerate(metrics):
        with places.at(*keys, at):
            column = f"{METRIC}{own[metric][0]}" if metric in own else metric
            if not is_column(column):
                raise SettingsError(f"{what}: {unknown('value', column, list(COLUMNS))}")
            columns.append(column)
    return columns


def _printed(row: str, columns: Sequence[str]) -> Printed:
    """Read a paper's row, "83.29±2.61 34.69 -": mean and standard deviation, mean, or no value."""
    words = row.replace(" ± ", "±").split()
    if len(words) != len(columns):
        raise SettingsError(f"{len(words)} values for {len(columns)} columns: write - for no value")
    figures: dict[str, tuple[float, float | None]] = {}
    for metric, word in zip(columns, words, strict=True):
        match = re.fullmatch(r"(-?\d+(?:\.\d+)?)(?:±(-?\d+(?:\.\d+)?))?", word)
        if match:
            figures[metric] = (float(match[1]), float(match[2]) if match[2] else None)
        elif word != "-":
            raise SettingsError(f"'{word}' is not a number: write 83.29±2.61, 83.29 or -")
    return figures


def _effective(
    tree: Tree, paper: Paper | None, tables: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the recipe with all changes applied, in the form of its file."""
    rows: list[Any] = []
    for label, options in tree["methods"].items():
        text = str(options["method"])
        others = {key: value for key, value in options.items() if key != "method"}
        named = others if text == label else {"method": text, **others}
        rows.append({label: named} if named else label)
    effective = {key: value for key, value in tree.items() if key != "paper"} | {"methods": rows}
    if paper and tables:
        effective["paper"] = {"columns": paper.columns, "tables": [*tables]}
    return effective


# ---- checks between the parts --------------------------------------------------------------------


def _check_searched(recipe: Recipe) -> None:
    """Raise a SettingsError if no searched value can be chosen, or if no value is searched."""
    searched = [row for row in recipe.rows if len(row.trials()) > 1]
    with recipe.placing():
        if recipe.search_by != EVERY and (not searched or recipe.select == ALL):
            why = "select: all reports every value" if searched else "no setting has several values"
            problem = f"search-by: {recipe.search_by}: no value is searched, because {why}"
            raise SettingsError(f"{problem}; set search-by: {EVERY}", "search-by")
        check_installed(recipe.search_by)
    if not searched or recipe.select != VALIDATION:
        return
    first = f"'{searched[0].label}' has searched values"
    with recipe.placing(searched[0]):
        if recipe.study != STARTS:
            problem = f"{first}, but a personalised study has no validation tasks: set select: "
            raise SettingsError(f"{problem}{TEST} or {ALL}", "select")
        if 0 in recipe.settings.get("tasks", ()):
            problem = f"{first}, but tasks = 0: no task can validate; set select: {ALL} or {TEST}"
            raise SettingsError(problem)
    with recipe.placing():
        if recipe.validation_seed in recipe.seeds:
            problem = f"validation-seed = {recipe.validation_seed} is also in `seeds`: change one"
            raise SettingsError(problem, "validation-seed")


def _check_equal(recipe: Recipe) -> None:
    """Raise a SettingsError if the rows cannot be compared at the quantity that `equal` names."""
    with recipe.placing():
        if recipe.equal and recipe.study != STARTS:
            problem = f"equal: {recipe.equal} compares pre-trainings: set study: {STARTS}"
            raise SettingsError(problem, "protocol")
        if recipe.equal == STEP_SIZE and recipe.reference_method is None:
            problem = f"equal: {STEP_SIZE}: the reference, {recipe.reference}, has searched values"
            why = "so it is several runs: name another method as reference"
            raise SettingsError(f"{problem}, {why}", "reference", "protocol")


def _check_tables(recipe: Recipe) -> None:
    """Raise a SettingsError if two tables would write the same files."""
    known: dict[str, dict[str, Value]] = {}
    for combination in recipe.combinations():
        values = {key: combination[key] for key in recipe.compared}
        name = table_name(values).lower()  # Some file systems ignore case.
        other = known.setdefault(name, values)
        for key in values:
            if values[key] != other[key]:
                both = f"{key}: {other[key]} and {values[key]}"
                problem = "would have the same names of files in the report; rename one of them"
                with recipe.places.at("settings", key):
                    raise SettingsError(f"{both} {problem}")


def _check_studies(recipe: Recipe) -> None:
    """Raise a SettingsError if a combination of settings cannot be run. Data are not checked."""
    for combination in recipe.combinations():
        with recipe.placing():
            Settings.from_config(combination)
        for row in recipe.rows:
            with recipe.placing(row):
                for trial in row.trials():
                    build(Run.of(combination, trial.method, 0).settings)
