"""Metrics of a user's own, which every client computes on its test samples."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError, concerning, unknown
from coprefl_flwr.learning import Metric
from coprefl_flwr.learning.evaluation import number_of
from coprefl_flwr.plugins import METRIC, is_without_code
from coprefl_flwr.report.columns import OWN_HEADINGS, Better, Heading
from coprefl_flwr.studies.identity import contents

BETTER = ("higher", "lower")

Given = str | Metric | Callable[..., float]
"""A place of a metric, or the metric itself."""


def own_metric(given: Given) -> Metric:
    """Return a metric, a `Metric` or a function of (logits, labels), and remember its heading.

    A function's name, its attribute `title` and its attribute `better` ("higher" if it has none)
    are the metric's; options behind a place are keyword arguments.

    Raises a SettingsError if it is neither, has no name, or does not say which way is better.
    """
    what = _name(given)
    found = plugins.find("metric", given) if isinstance(given, str) else given
    if not isinstance(found, Metric):
        if not callable(found) or isinstance(found, type):
            raise SettingsError(f"{what}: a metric is a function of (logits, labels)")
        name = _name(found)
        if name == "<lambda>":
            raise SettingsError("a metric is a lambda, which has no name: write it with def")
        found = Metric(
            name, getattr(found, "title", name), getattr(found, "better", "higher"), found
        )
    if found.better not in BETTER:
        raise SettingsError(f"{what}: better: {unknown('value', str(found.better), BETTER)}")
    better: Better = "lower" if found.better == "lower" else "higher"
    OWN_HEADINGS[f"{METRIC}{found.name}"] = Heading(found.title, better)
    return found


def _name(given: Any) -> str:
    """Return a place as it is, and the name of a metric that is given itself."""
    if isinstance(given, str):
        return given
    if isinstance(given, Metric):
        return given.name
    return str(getattr(given, "__name__", type(given).__name__))


def _measured(place: str, fn: Callable[..., float], logits: Tensor, labels: Tensor) -> float:
    """Return what a metric gives, with the options that follow its place."""
    found: float = plugins.call(place, fn, (logits, labels))
    return found


class ClientMetrics:
    """Metrics that clients compute: one or several; a text has places, separated by spaces."""

    def __init__(self, given: Given | Sequence[Given]) -> None:
        several = given.split() if isinstance(given, str) else given
        self.given = several if isinstance(several, Sequence) else [several]
        if not is_without_code():
            _ = self.functions  # Better now than in the last round.

    @functools.cached_property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return what each metric's name calls; raises a SettingsError for one that cannot be."""
        found = [(_name(one), own_metric(one)) for one in self.given]
        functions = {
            metric.name: functools.partial(_measured, place, metric.fn) for place, metric in found
        }
        if len(functions) < len(found):
            names = [metric.name for _, metric in found]
            twice = next(name for name in names if names.count(name) > 1)
            raise SettingsError(f"client-metrics: two are called '{twice}'", "client-metrics")
        return functions

    @concerning("client-metrics")
    def check(self, classes: int) -> None:
        """Raise a SettingsError if one fails on logits of this many classes, each seen twice."""
        if is_without_code():
            return
        logits, numbers = torch.eye(classes).repeat(2, 1), torch.arange(classes)
        labels = torch.cat([numbers, numbers.roll(1)])
        for name, fn in self.functions.items():  # Better now than in the last round.
            number_of(name, fn(logits, labels))

    def identity(self) -> dict[str, Any]:
        """Return what rows depend on where there are metrics."""
        if not self.given:
            return {}
        named = [one for one in self.given if isinstance(one, str)]
        own = {_name(one): _text(one) for one in self.given if not isinstance(one, str)}
        return {
            "client-metrics": [list(map(_name, self.given)), contents(named), *filter(None, [own])]
        }


def _text(given: Metric | Callable[..., float]) -> str:
    """Return the text of a metric's function, "" where it is not to be found."""
    try:
        return inspect.getsource(given.fn if isinstance(given, Metric) else given)
    except (OSError, TypeError):
        return ""
