"""The columns of a recipe's tables: metrics of the package, and of a user's own."""

from collections.abc import Sequence
from pathlib import Path

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.files import read_json
from coprefl_flwr.options import Value
from coprefl_flwr.plugins import METRIC, is_without_code
from coprefl_flwr.recipes.recipe import Choices, RecipeRow
from coprefl_flwr.report.columns import (
    BUDGETS,
    COLUMNS,
    DIAGNOSTICS,
    OWN_HEADINGS,
    START_LOSS,
    STEP_SIZE,
    STOPPED,
    Heading,
    is_column,
)
from coprefl_flwr.studies.client_metrics import own_metric
from coprefl_flwr.studies.settings import STARTS

OWN_COLUMNS: dict[str, tuple[str, str, str]] = {}
"""Name, title and better way of metrics of the user's own, by the places that a recipe names."""


def metric_of(what: str, metric: str) -> str:
    """Return the column of a metric that a report can show; `what` stands in an error's message."""
    if not metric.startswith(METRIC) and plugins.is_place("metric", metric):
        metric = own_column(metric)
    if not is_column(metric):
        raise SettingsError(f"{what}: {unknown('value', metric, list(COLUMNS))}")
    return metric


def own_column(place: str) -> str:
    """Return the column of a metric of the user's own, and remember how it is shown."""
    if not is_without_code():
        metric = own_metric(place)
        OWN_COLUMNS[place] = metric.name, metric.title, metric.better
    if place not in OWN_COLUMNS:
        raise SettingsError(f"{place}: `coprefl run` has not stored how this metric is shown")
    name, title, better = OWN_COLUMNS[place]
    OWN_HEADINGS[f"{METRIC}{name}"] = Heading(title, "lower" if better == "lower" else "higher")
    return f"{METRIC}{name}"


def read_own_columns(file: Path) -> None:
    """Know the user's own metrics that a run stored, if it did, for reports without their code."""
    stored = read_json(file) if file.exists() else {}
    for place, shown in stored.items() if isinstance(stored, dict) else ():
        if isinstance(shown, list) and len(shown) == 3 and all(isinstance(x, str) for x in shown):
            OWN_COLUMNS[place] = shown[0], shown[1], shown[2]


def with_needs_of_columns(settings: Choices, metrics: Sequence[str]) -> Choices:
    """Return settings that make the columns: diagnostics, losses, and metrics of the user's own."""
    needs: dict[str, tuple[Value, ...]] = {}
    if any(name in DIAGNOSTICS for name in metrics):
        needs["diagnostics"] = (True,)
    if START_LOSS in metrics:
        needs["start-loss"] = (True,)
    needs |= settings
    own = [n for n in metrics if not n.startswith(METRIC) and plugins.is_place("metric", n)]
    if own:
        (given,) = settings.get("client-metrics", ("",))
        needs["client-metrics"] = (" ".join(dict.fromkeys([*str(given).split(), *own])),)
    return {**settings, **needs}


def columns_of(
    metrics: Sequence[str], settings: Choices, equal: str, rows: Sequence[RecipeRow]
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


def _has_own_rounds(row: RecipeRow) -> bool:
    phases = row.method.phases
    return len(phases) > 1 or "rounds" in (*row.options, *dict(phases[0].options))


def _default_metrics(settings: Choices) -> tuple[str, ...]:
    if settings.get("tasks") == (0,):
        return ("final", "best", "best-round", "models")
    return ("accuracy", "variance", "variance-beyond", "worst-10%", "worst-20%", "worst-30%")
