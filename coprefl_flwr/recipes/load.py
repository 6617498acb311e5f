"""Read and check a recipe's file. Errors name the line that is wrong."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coprefl_flwr.errors import SettingsError, check_name, unknown
from coprefl_flwr.options import Option, Value, declared
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.recipes.overlays import ABOUT, Tree, read_tree
from coprefl_flwr.recipes.recipe import (
    ALL,
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
    with_needs,
)
from coprefl_flwr.recipes.runs import ROLES
from coprefl_flwr.recipes.schema import Paper, RecipeFile, choices_type, validated
from coprefl_flwr.recipes.yaml_file import Places
from coprefl_flwr.report.columns import STEP_SIZE, column
from coprefl_flwr.report.comparison import Printed
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
    role = ROLES[str(settings.get("study", (STARTS,))[0])]
    rows, search = _rows(tree, role, places), tree.get("search", {})
    trained = {key for row in rows for key in row.method.keys(row.role)}
    if changes and search:  # They may leave out the methods that have an option.
        tree = {**tree, "search": {key: search[key] for key in search if key in trained}}
    for key in tree.get("search", {}):
        if key not in trained:
            with places.at("search", key):
                near = unknown("setting", key, sorted(trained))
                raise SettingsError(f"search: {key}: no method of the recipe has this: {near}")
    methods = methods_by_name(rows, file.select)
    reference = file.reference or list(methods)[-1]
    with places.at("reference"):
        check_name("value", reference, methods, "reference")
    protocol_file = file.protocols.get(file.protocol)
    equal = (protocol_file and protocol_file.equal) or ""
    with places.at("metrics"):
        in_settings = [w for text in settings.get("client-metrics", ()) for w in str(text).split()]
        own = own_metrics([*in_settings, *file.metrics], stored)
    metrics = _columns(file.metrics, own, places, "metrics")
    settings = with_needs(settings, file.metrics, rows)
    paper = _paper(file.paper, settings, list(methods), places, own) if file.paper else []
    derived = {
        "source": file.source or "",
        "settings": settings,
        "rows": rows,
        "reference": reference,
        "reference_method": methods[reference],
        "metrics": columns_of(metrics, settings, equal, rows),
        "figures": _figures(file, settings),
        "paper": tuple(paper),
        "because": protocol_file.because if protocol_file else "",
        "equal": equal,
        "own_metrics": own,
        "effective": _effective(tree),
        "places": places,
    }
    recipe = Recipe.model_construct(**(dict(file) | derived))
    _check_searched(recipe)
    _check_equal(recipe)
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
        kind, chosen = choices_type(known), dict[str, tuple[Value, ...]]()
        for keys, part in {("methods", label): options, ("search",): searched}.items():
            values = validated(kind, part, places, keys)
            chosen |= {key: values[key] for key in part}
        rows.append(RecipeRow(label, method, chosen, role, frozenset(searched)))
    return tuple(rows)


def _options(method: Method, role: str) -> dict[str, Option]:
    """Return the options that a method has in a role, by key; a SettingsError if it is unknown."""
    options = dict(declared(Settings))
    for phase in method.trained:
        options |= phase.declared_options
    return {key: options[key] for key in sorted(method.keys(role))}


# ---- figures, and the paper's tables -----------------------------------------------------


def _figures(file: RecipeFile, settings: Choices) -> tuple[str, ...]:
    """Return the kinds of figures: the named kinds, or by default kinds that always have data."""
    if "figures" in file.model_fields_set:  # An empty list means no figures.
        return tuple(file.figures)
    if settings.get("study", (STARTS,)) != (STARTS,):
        return ("accuracies",)  # Losses of different personalised methods cannot be compared.
    return ("curves",) if settings.get("tasks") == (0,) else ("accuracies", "curves")


def _paper(
    paper: Paper, settings: Choices, names: Sequence[str], places: Places, own: OwnMetrics
) -> list[PaperTable]:
    """Read the paper's tables for a recipe with these settings and names of rows.

    Tables and rows that the recipe does not have are left out.
    """
    columns, tables = _columns(paper.columns, own, places, "paper", "columns"), []
    for at, table in enumerate(paper.tables):
        where = {key: value for key, (value, *_) in table.where.items()}
        printed = {}
        for name in [name for name in table.rows if name in names]:
            with places.at("paper", "tables", at, "rows", name):
                printed[name] = _printed(str(table.rows[name]), columns)
        if printed and all(value in settings.get(key, ()) for key, value in where.items()):
            tables.append(PaperTable(str(table.table), where, printed))
    return tables


def _columns(metrics: Sequence[str], own: OwnMetrics, places: Places, *keys: str) -> list[str]:
    """Return the columns of the metrics at `keys`; `own` are the user's metrics."""
    columns = [f"{METRIC}{own[metric][0]}" if metric in own else metric for metric in metrics]
    for at, name in enumerate(columns):
        with places.at(*keys, at):
            column(name)
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


def _effective(tree: Tree) -> Tree:
    """Return the recipe with all changes applied, in the form of its file.

    It has no overlays but those that can still be applied.
    """
    rows: list[Any] = []
    for label, options in tree["methods"].items():
        own = {k: v for k, v in options.items() if (k, v) != ("method", label)}
        rows.append({label: own} if own else label)
    applied = ["small"] if "scale" in tree else []
    effective = {key: value for key, value in tree.items() if key not in applied}
    effective["methods"] = rows
    if name := tree.get("protocol"):
        about = tree["protocols"].get(name, {}).items()
        kept = {key: value for key, value in about if key in ABOUT and key not in applied}
        effective["protocols"] = {name: kept}
    return effective


# ---- checks between the parts --------------------------------------------------------------------


def _check_searched(recipe: Recipe) -> None:
    """Raise a SettingsError if searched values cannot be chosen on validation tasks."""
    searched = [row for row in recipe.rows if len(row.trials()) > 1]
    if not searched or recipe.select != VALIDATION:
        return
    with recipe.placing():
        reported = {seed for pair in recipe.pairs for seed in pair.values()}
        for seed in reported & {*recipe.validation_seed}:
            problem = f"validation-seed = {seed} is also in `seeds`: change one"
            raise SettingsError(problem, "validation-seed", "seeds")
    if recipe.study != STARTS or 0 in recipe.settings.get("tasks", ()):
        problem = f"'{searched[0].label}' has searched values, but there are no validation tasks"
        with recipe.placing(searched[0]):
            raise SettingsError(f"{problem}: set select: {ALL} or {TEST}")


def _check_equal(recipe: Recipe) -> None:
    """Raise a SettingsError if the reference of equal step sizes is searched."""
    with recipe.placing():
        if recipe.equal == STEP_SIZE and recipe.reference_method is None:
            problem = f"equal: {STEP_SIZE}: the reference, {recipe.reference}, has searched values"
            raise SettingsError(f"{problem}: name another method", "reference", "protocol")
