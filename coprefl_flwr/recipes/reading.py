"""Reading a recipe's file into a checked `Recipe`, with the line of whatever is wrong."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.methods import PRETRAINING, RANDOM, find_method, short_forms, with_role
from coprefl_flwr.options import Option
from coprefl_flwr.recipes import entries
from coprefl_flwr.recipes.entries import Choices, choices_of, values_of
from coprefl_flwr.recipes.lists import as_text, written_out
from coprefl_flwr.recipes.own import found, resolved, with_what_columns_need
from coprefl_flwr.recipes.protocols import PROTOCOL, PROTOCOLS, applied, chosen
from coprefl_flwr.recipes.recipe import ALL, EVERY, SEARCHES, TEST, VALIDATION, Entrant, Recipe
from coprefl_flwr.recipes.runs import ROLES, Run
from coprefl_flwr.recipes.sampling import check_installed
from coprefl_flwr.recipes.scale import FULL, SMALL, cut
from coprefl_flwr.recipes.yaml_file import Located, entries_of, parse_yaml, part_of, read_yaml
from coprefl_flwr.report.columns import BUDGETS, START_LOSS, STEP_SIZE, STOPPED
from coprefl_flwr.report.comparison import FIGURES
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.phases import (
    heeded_by,
    keys_of,
)
from coprefl_flwr.studies.settings import STARTS, Settings

DEFAULTS = {"select": VALIDATION, "search-by": EVERY, "search-trials": 10}
DEFAULTS |= {"validation-tasks": 2, "validation-seed": 100, "seeds": 0}
KEYS = (
    *("title", "source", "settings", "methods", "search", "reference", "metrics", "figures"),
    *("small", "paper", "scale", PROTOCOLS, PROTOCOL, *DEFAULTS),
)
MOST_RUNS = 100_000
"""Runs of a recipe: a list of them is made before the first begins."""
ELSEWHERE = {
    "seed": "seeds",
    "method": "methods",
    "run-name": "--out",
    "output-dir": "--out",
    "resume": "the same command again",
}
"""Settings that a recipe says in another way."""


def read_recipe(
    path: Path, changes: Sequence[str] = (), scale: str = FULL, protocol: str = ""
) -> Recipe:
    """Read and check a recipe.

    Parameters
    ----------
    changes : Sequence[str]
        "KEY=VALUE", a setting or a key of the recipe, with a value as in YAML; they come last.
    scale : str
        "full", or "small": rounds, clients, model and data cut to minutes on two cores.
    protocol : str
        Which of its protocols is applied, before anything is cut; "" is the first.

    Raises
    ------
    SettingsError
        One line with the file and the line in it.
    """
    tree = written_out(found(dict(read_yaml(path).mapping("a recipe", KEYS)), path.parent))
    before, tree = tree, applied(tree, protocol, path)
    new, tree = tree.get(PROTOCOL) is not before.get(PROTOCOL), written_out(tree)
    if scale == SMALL:
        tree = cut(tree, str(path))
    for change in changes:
        _change(tree, change)
    if any(change.startswith("methods=") for change in changes):
        _leave_out_unheeded(tree)
    return _recipe(tree, str(path), changed=bool(changes) or new or scale == SMALL)


def _change(tree: dict[str, Located], change: str) -> None:
    """Set KEY=VALUE in a recipe."""
    key, equals, text = change.partition("=")
    if not equals:
        raise SettingsError(f"--set {change}: write KEY=VALUE")
    place = f"--set {change}"
    value = Located(parse_yaml(text, place).value if text else "", place)
    value = resolved(value, Path.cwd())
    if key in (PROTOCOL, PROTOCOLS):
        raise SettingsError(f"--set {change}: use --protocol")
    if key in KEYS:
        tree[key] = value
    else:
        tree["settings"] = Located({**part_of(tree, "settings"), key: as_text(key, value)}, place)


def _leave_out_unheeded(tree: dict[str, Located]) -> None:
    """Take the options away that the recipe sets for methods which a change left out."""
    settings, role = choices_of(tree, "settings"), ROLES[entries.study_of(tree)]
    has = {key for one in _entrants(tree, role) for key in keys_of(one.method, one.role)}
    for task_method in settings.get("task-method", ("fedavg",)):
        has |= heeded_by({"task-method": task_method})
    for part in {"settings", "search"} & tree.keys():
        kept = {
            key: one
            for key, one in part_of(tree, part).items()
            if key in has or key not in short_forms() or one.place.startswith("--set")
        }
        tree[part] = tree[part].holding(kept)


def _recipe(tree: dict[str, Located], name: str, changed: bool) -> Recipe:
    for key in ("title", "settings", "methods"):
        if key not in tree:
            raise SettingsError(f"{name}: there is no '{key}'")
    for key, entry in part_of(tree, "settings").items():
        if key in ELSEWHERE:
            raise entry.error(f"'{key}' is not set here: use {ELSEWHERE[key]}")
    with_what_columns_need(tree)
    given = {key: Located(value, name) for key, value in DEFAULTS.items()} | tree
    settings, role = choices_of(tree, "settings"), ROLES[entries.study_of(tree)]
    select = given["select"].one_of("select", (VALIDATION, TEST, ALL))
    rows = _entrants(tree, role)
    seeds = _seeds(given["seeds"])
    _check_number(tree["settings"], settings, rows, seeds)
    names = _names(rows, select)
    reference = tree.get("reference", Located(names[-1], name)).one_of("reference", names)
    if changed and "paper" in tree:
        tree["paper"] = entries.without_others(tree["paper"], settings, names)
        if not tree["paper"].value:
            del tree["paper"]
    metrics = [entries.metric_of(one, "metric") for one in entries_of(tree, "metrics")]
    figures = _figures(tree, settings)
    protocol, because, equal = chosen(tree)
    recipe = Recipe(
        title=tree["title"].text("title"),
        source=tree["source"].text("source") if "source" in tree else "",
        settings=settings,
        entrants=rows,
        select=select,
        search_by=given["search-by"].one_of("search-by", SEARCHES),
        search_trials=given["search-trials"].whole("search-trials", 1),
        validation_tasks=given["validation-tasks"].whole("validation-tasks", 1),
        validation_seed=given["validation-seed"].whole("validation-seed", 0),
        reference=reference,
        seeds=seeds,
        metrics=_columns(metrics, settings, equal, rows),
        figures=figures,
        paper=entries.paper_tables(tree["paper"], settings, names) if "paper" in tree else (),
        notes=tuple(tree["scale"].text("scale").splitlines()) if "scale" in tree else (),
        protocol=protocol,
        because=because,
        equal=equal,
        effective={key: entry.plain() for key, entry in tree.items()},
        places={k: one.place for k, one in (tree | dict(part_of(tree, "settings"))).items()},
    )
    _check_searched(recipe)
    _check_heeded(recipe, tree)
    _check_equal(recipe)
    _check_studies(recipe)
    return recipe


# ---- the parts of a file ------------------------------------------------------------------------


def _entrants(tree: Mapping[str, Located], role: str) -> tuple[Entrant, ...]:
    """Read the list of methods."""
    methods = tree["methods"].listed("methods")
    chosen = [entries.named_method(one)[1].value for one in methods]
    own = {key: one for method in chosen for key, one in _own_options(method).items()}
    search = choices_of(tree, "search", own)
    found = [_entrant(one, search, role) for one in methods]
    labels = [one.label for one in found]
    for one in found:
        if one.number > MOST_RUNS:
            problem = f"{one.number} values to search, more than {MOST_RUNS}"
            raise SettingsError(f"{one.place}: '{one.label}' has {problem}")
        if labels.count(one.label) > 1:
            raise SettingsError(f"{one.place}: methods names '{one.label}' twice")
    return tuple(found)


def _entrant(entry: Located, search: Choices, role: str) -> Entrant:
    """Read one method: "NAME", or {LABEL: {method: NAME, SETTING: value or list}}."""
    label, named, options = entries.named_method(entry)
    method: Method = named.value
    known = [*([RANDOM] if role == PRETRAINING else []), *with_role(role)]
    try:
        made = role == PRETRAINING and method.is_made_elsewhere
        for name in [] if made else [phase.name for phase in method.phases]:
            if name != RANDOM or RANDOM not in known:
                find_method(name, role, known)
    except SettingsError as error:
        raise named.error(str(error)) from error
    has = keys_of(method, role)
    for key, value in options.items():
        if key not in has:
            raise value.error(f"{label}: {unknown('setting', key, sorted(has))}")
    has_own = _own_options(method)
    own = {key: values_of(key, value, has_own) for key, value in options.items()}
    searched = {key: values for key, values in search.items() if key in has and key not in own}
    return Entrant(label, method, own | searched, entry.place, role)


def _own_options(method: Method) -> dict[str, Option]:
    """Return the options of a user's own among the algorithms of a method, by key."""
    with contextlib.suppress(SettingsError):  # Which is reported where the method is read.
        own = [one for one in method.algorithms if one.text]
        return {key: option for one in own for key, option in one.options.items()}
    return {}


def _names(rows: Sequence[Entrant], select: str) -> list[str]:
    """Return what the rows can be called: their labels, and with a value each where all are shown.

    A row that is searched is called by its label even then, for the first of its values.
    """
    labels = [row.label for row in rows]
    valued = [f"{row.label}:{one.chosen}" for row in rows for one in row.candidates() if one.chosen]
    return labels + valued if select == ALL else labels


def _seeds(entry: Located) -> tuple[int, ...]:
    found = [one.whole("seeds", 0) for one in entry.listed("seeds")]
    if found[0] and not isinstance(entry.value, list):  # A number of seeds, or a seed?
        number, first = found[0], list(range(min(found[0], 10)))
        many = (
            f"{first} for {number} seeds" if number <= 10 else "a list such as [0, 1] for several"
        )
        raise entry.error(f"seeds = {number}: write {many}, [{number}] for the seed {number}")
    if len(set(found)) < len(found):
        raise entry.error("seeds names one twice")
    return tuple(found)


def _columns(
    metrics: Sequence[str], settings: Choices, equal: str, rows: Sequence[Entrant]
) -> tuple[str, ...]:
    """Return the columns: those that are named, and of starts what their pre-training costs."""
    of_starts = settings.get("study", (STARTS,)) == (STARTS,)
    besides = list(BUDGETS) if of_starts else []
    # cyclic:rounds=5+fedavg trains 25 rounds where rounds = 20, and the others 20.
    if equal == STEP_SIZE or (of_starts and any(map(_has_own_rounds, rows))):
        besides.insert(0, "rounds")
    if settings.get("stop-at-loss", ("",)) != ("",):
        besides.insert(0, STOPPED)
    if settings.get("start-loss", (False,)) != (False,):
        besides.insert(0, START_LOSS)
    return tuple(dict.fromkeys([*(metrics or _default_metrics(settings)), *besides]))


def _has_own_rounds(row: Entrant) -> bool:
    phases = row.method.phases
    return len(phases) > 1 or "rounds" in (*row.options, *dict(phases[0].options))


def _default_metrics(settings: Choices) -> tuple[str, ...]:
    if settings.get("tasks") == (0,):
        return ("final", "best", "best-round", "models")
    return ("accuracy", "variance", "variance-beyond", "worst-10%", "worst-20%", "worst-30%")


def _figures(tree: Mapping[str, Located], settings: Choices) -> tuple[str, ...]:
    """Return the kinds of figures: those that are named, or what every study has data for."""
    if "figures" in tree:  # [] is none.
        named = [one.one_of("figure", FIGURES) for one in tree["figures"].items()]
        return tuple(dict.fromkeys(named))
    if settings.get("study", (STARTS,)) != (STARTS,):
        return ("accuracies",)  # The methods' losses are not of one kind.
    return ("curves",) if settings.get("tasks") == (0,) else ("accuracies", "curves")


def _check_number(
    entry: Located, settings: Choices, rows: Sequence[Entrant], seeds: Sequence[int]
) -> None:
    """Raise a SettingsError for more runs than can be listed, before they are."""
    tables, values = math.prod(map(len, settings.values())), sum(row.number for row in rows)
    if tables * values * len(seeds) > MOST_RUNS:
        parts = f"{tables} combinations of settings x {values} rows and values x {len(seeds)} seeds"
        raise entry.error(f"{parts} are more than {MOST_RUNS} runs")


# ---- checks between the parts -------------------------------------------------------------------


def _check_searched(recipe: Recipe) -> None:
    """Raise a SettingsError if something is searched that nothing can choose, or the reverse."""
    searched = [one for one in recipe.entrants if len(one.candidates()) > 1]
    if recipe.search_by != EVERY and (not searched or recipe.select == ALL):
        why = "with select: all every value is shown" if searched else "no method has two values"
        by = recipe.search_by
        problem = f"search-by: {by}: nothing is searched, as {why}; set search-by: {EVERY}"
        raise SettingsError(f"{recipe.places['search-by']}: {problem}", "search-by")
    with recipe.placing():
        check_installed(recipe.search_by)
    if not searched or recipe.select != VALIDATION:
        return
    first = f"'{searched[0].label}' is searched"
    with recipe.placing(searched[0]):
        if recipe.study != STARTS:
            problem = f"{first}, and a personalised study has no validation tasks; set select: "
            raise SettingsError(f"{problem}{TEST}, or {ALL}", "select")
        if 0 in recipe.settings.get("tasks", ()):
            problem = f"{first} on validation tasks, and tasks = 0; set select: {ALL}, or {TEST}"
            raise SettingsError(problem)
    with recipe.placing():
        if recipe.validation_seed in recipe.seeds:
            problem = f"validation-seed = {recipe.validation_seed} is one of the seeds"
            raise SettingsError(problem, "validation-seed")


def _check_heeded(recipe: Recipe, tree: Mapping[str, Located]) -> None:
    """Raise a SettingsError for a method's option that no method here has."""
    trained = {key for one in recipe.entrants for key in keys_of(one.method, one.role)}
    has = trained | {key for config in recipe.combinations() for key in heeded_by(config)}
    for key, entry in part_of(tree, "settings").items():
        if key in short_forms() and key not in has:
            raise entry.error(f"{key}: no method here has this setting")
    for key, entry in part_of(tree, "search").items():
        if key not in trained:
            raise entry.error(f"search: {key}: no method here has this setting")


def _check_equal(recipe: Recipe) -> None:
    """Raise a SettingsError if rows cannot be made equal to the reference's."""
    if not recipe.equal:
        return
    with recipe.placing():
        if recipe.study != STARTS:
            raise SettingsError(f"equal: {recipe.equal}: only starts have that", PROTOCOL)
        if recipe.equal == STEP_SIZE and recipe.reference_start is None:
            problem = f"the reference, {recipe.reference}, is searched: name a row of one value"
            raise SettingsError(f"equal: {STEP_SIZE}: {problem}", "reference", PROTOCOL)


def _check_studies(recipe: Recipe) -> None:
    """Raise a SettingsError if some combination cannot be run as set, data aside."""
    for combination in recipe.combinations():
        with recipe.placing():
            Settings.from_config(combination)
        for entrant in recipe.entrants:
            with recipe.placing(entrant):
                for candidate in entrant.candidates():
                    build(Run.of(combination, candidate.start, 0).settings)
