"""Read and check a recipe's file. Errors name the line that is wrong."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.methods import PRETRAINING, RANDOM, find_class
from coprefl_flwr.options import Option, Value, declared
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.recipes.overlays import ABOUT, CHANGES, Tree, read_tree
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
from coprefl_flwr.recipes.schema import Paper, RecipeFile, choices_type, validated
from coprefl_flwr.recipes.yaml_file import Places
from coprefl_flwr.report.columns import COLUMNS, STEP_SIZE, is_column
from coprefl_flwr.report.comparison import Printed
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import with_role
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.settings import STARTS, Settings


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
    file: RecipeFile = validated(RecipeFile, tree, places)
    settings: Choices = {key: file.settings[key] for key in tree["settings"]}
    study, *others = settings.get("study", (STARTS,))
    with places.at("settings", "study"):
        if others:
            raise SettingsError("study: name one kind of study, not a list of several")
    role = ROLES[str(study)]
    rows = _rows(tree, role, places)
    trained = {key for row in rows for key in row.method.keys(row.role)}
    unused = [key for key in tree.get("search", {}) if key not in trained]
    if any(change.startswith("methods=") for change in changes):
        # The file's options of methods that are left out go; options of a change are refused.
        kept = [key for key in unused if places.of("search", key).startswith(CHANGES)]
        search = tree.get("search", {}).items()
        tree = {**tree, "search": {k: v for k, v in search if k in trained or k in kept}}
        unused = kept
    for key in unused:
        with places.at("search", key):
            near = unknown("setting", key, sorted(trained))
            raise SettingsError(f"search: {key}: no method of the recipe has this: {near}")
    methods = methods_by_name(rows, file.select)
    reference = file.reference or list(methods)[-1]
    with places.at("reference"):
        if reference not in methods:
            raise SettingsError(f"reference: {unknown('value', reference, methods)}")
    protocol_file = file.protocols.get(file.protocol)
    equal = (protocol_file and protocol_file.equal) or ""
    with places.at("metrics"):
        own = own_metrics(file.metrics, stored)
    metrics = _columns(file.metrics, own, places, "metrics")
    settings = with_needs(settings, file.metrics, rows)
    changed = bool(changes or file.protocol)
    paper = _paper(file.paper, settings, list(methods), places, changed, own) if file.paper else {}
    derived = {
        "source": file.source or "",
        "settings": settings,
        "rows": rows,
        "reference": reference,
        "reference_method": methods[reference],
        "metrics": columns_of(metrics, settings, equal, rows),
        "figures": _figures(file, settings),
        "paper": tuple(paper.values()),
        "because": protocol_file.because if protocol_file else "",
        "equal": equal,
        "own_metrics": own,
        "effective": _effective(tree, paper),
        "places": places,
    }
    recipe = Recipe.model_construct(**(dict(file) | derived))
    _check_searched(recipe)
    _check_compared(recipe)
    _check_studies(recipe)
    return recipe


# ---- methods -------------------------------------------------------------------------------------


def _rows(tree: Tree, role: str, places: Places) -> tuple[RecipeRow, ...]:
    """Read the methods, each with its options and the values searched for all methods."""
    search, rows = tree.get("search", {}), []
    for label, entry in tree["methods"].items():
        options = {key: value for key, value in entry.items() if key != "method"}
        with places.at("methods", label, "method"):
            method = Method.parse(str(entry.get("method") or label).replace(" ", ""))
            known = _options(method, role)
        unset = {
            key for phase in method.phases for key in phase.keys(role) - dict(phase.options).keys()
        }
        searched = {k: v for k, v in search.items() if k in unset and k not in options}
        kind = choices_type(known)
        chosen: dict[str, tuple[Value, ...]] = {}
        for keys, part in {("methods", label): options, ("search",): searched}.items():
            values = validated(kind, part, places, keys)
            chosen |= {key: values[key] for key in part}
        rows.append(RecipeRow(label, method, chosen, role, frozenset(searched)))
    return tuple(rows)


def _options(method: Method, role: str) -> dict[str, Option]:
    """Return the options that a method has in a role, by key.

    Raises a SettingsError for an unknown method, or a method without this role.
    """
    untrained = [RANDOM] if role == PRETRAINING else []
    if untrained and method.is_external:
        return {}
    phases = [phase for phase in method.phases if phase.name not in untrained]
    for phase in phases:
        find_class(phase.name, role, [*untrained, *with_role(role)])
    own = {key: option for phase in phases for key, option in phase.declared_options.items()}
    return {key: own.get(key) or declared(Settings)[key] for key in sorted(method.keys(role))}


# ---- figures, and the paper's tables -----------------------------------------------------


def _figures(file: RecipeFile, settings: Choices) -> tuple[str, ...]:
    """Return the kinds of figures: the named kinds, or by default kinds that always have data."""
    if "figures" in file.model_fields_set:  # An empty list means no figures.
        return tuple(file.figures)
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
) -> dict[int, PaperTable]:
    """Read the paper's tables, by number, for a recipe with these settings and names of rows.

    If the recipe was changed, tables and rows that the recipe no longer has are left out.
    """
    columns = _columns(paper.columns, own, places, "paper", "columns")
    tables = {}
    for at, table in enumerate(paper.tables):
        keys = ("paper", "tables", at)
        where = {key: value for key, (value, *_) in table.where.items()}
        other = [key for key, value in where.items() if value not in settings.get(key, ())]
        rows = {name: row for name, row in table.rows.items() if name in names or not changed}
        if changed and (other or not rows):
            continue
        for key in other:
            with places.at(*keys, "where", key):
                has = ", ".join(map(str, settings.get(key, ()))) or "not set"
                raise SettingsError(f"where: {key} = {where[key]}, but the settings have {has}")
        printed = {}
        for name, row in rows.items():
            with places.at(*keys, "rows", name):
                if name not in names:
                    raise SettingsError(unknown("row", name, names))
                printed[name] = _printed(str(row), columns)
        tables[at] = PaperTable(str(table.table), where, printed)
    return tables


def _columns(metrics: Sequence[str], own: OwnMetrics, places: Places, *keys: str) -> list[str]:
    """Return the columns of the metrics at `keys`; `own` are the user's metrics."""
    columns = []
    for at, metric in enumerate(metrics):
        column = f"{METRIC}{own[metric][0]}" if metric in own else metric
        if not is_column(column):
            with places.at(*keys, at):
                raise SettingsError(f"{keys[-1]}: {unknown('value', column, list(COLUMNS))}")
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


def _effective(tree: Tree, paper: Mapping[int, PaperTable]) -> Tree:
    """Return the recipe with all changes applied, in the form of its file.

    It has the tables of `paper`, and no overlays but those that can still be applied.
    """
    rows: list[Any] = []
    for label, options in tree["methods"].items():
        own = {k: v for k, v in options.items() if (k, v) != ("method", label)}
        rows.append({label: own} if own else label)
    applied = ["small"] if "scale" in tree else []
    effective = {key: value for key, value in tree.items() if key not in ("paper", *applied)}
    effective["methods"] = rows
    if name := tree.get("protocol"):
        about = tree["protocols"].get(name, {}).items()
        kept = {key: value for key, value in about if key in ABOUT and key not in applied}
        effective["protocols"] = {name: kept}
    if paper:
        every = tree["paper"]["tables"]
        tables = [
            {**every[at], "rows": {name: every[at]["rows"][name] for name in table.rows}}
            for at, table in paper.items()
        ]
        effective["paper"] = {**tree["paper"], "tables": tables}
    return effective


# ---- checks between the parts --------------------------------------------------------------------


def _check_searched(recipe: Recipe) -> None:
    """Raise a SettingsError if no searched value can be chosen, or if no value is searched."""
    searched = [row for row in recipe.rows if row.number > 1]
    with recipe.placing():
        if recipe.search_by != EVERY and (not searched or recipe.select == ALL):
            why = "select: all reports every value" if searched else "no setting has several values"
            problem = f"search-by: {recipe.search_by}: no value is searched, because {why}"
            raise SettingsError(f"{problem}; set search-by: {EVERY}", "search-by")
        if searched and recipe.select == VALIDATION and recipe.validation_seed in recipe.seeds:
            problem = f"validation-seed = {recipe.validation_seed} is also in `seeds`: change one"
            raise SettingsError(problem, "validation-seed")
    without_tasks = recipe.study != STARTS or 0 in recipe.settings.get("tasks", ())
    if searched and recipe.select == VALIDATION and without_tasks:
        personal = "a personalised study has no validation tasks"
        why = "tasks = 0" if recipe.study == STARTS else personal
        problem = f"'{searched[0].label}' has searched values, but {why}"
        with recipe.placing(searched[0]):
            raise SettingsError(f"{problem}: set select: {ALL} or {TEST}")


def _check_compared(recipe: Recipe) -> None:
    """Raise a SettingsError for an `equal` that rows cannot have, or for two tables of one name."""
    with recipe.placing():
        if recipe.equal and recipe.study != STARTS:
            problem = f"equal: {recipe.equal} compares pre-trainings: set study: {STARTS}"
            raise SettingsError(problem, "protocol")
        if recipe.equal == STEP_SIZE and recipe.reference_method is None:
            problem = f"equal: {STEP_SIZE}: the reference, {recipe.reference}, has searched values"
            raise SettingsError(f"{problem}: name another method", "reference", "protocol")
        compared = [{key: one[key] for key in recipe.compared} for one in recipe.combinations()]
        names = [table_name(one).lower() for one in compared]  # Some file systems ignore case.
        for name in names:
            if names.count(name) > 1:
                problem = f"two tables would have the same name in the report, {name}"
                raise SettingsError(f"{problem}: rename a value", *recipe.compared)


def _check_studies(recipe: Recipe) -> None:
    """Raise a SettingsError if a combination of settings cannot be run. Data are not checked."""
    for combination in recipe.combinations():
        with recipe.placing():
            Settings.from_config(combination)
        for row in recipe.rows:
            with recipe.placing(row):
                for trial in row.trials():
                    build(Run.of(combination, trial.method, 0).settings)
