"""Metrics of a user's own, which every client computes on its test samples."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from coprefl_flwr import places
from coprefl_flwr.allowed import is_without_code
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.learning import Metric
from coprefl_flwr.learning.measures import number_of
from coprefl_flwr.studies.identity import contents

BETTER = ("higher", "lower")


def metric_at(place: str) -> Metric:
    """Return the metric at a place: a `Metric`, or a function of (logits, labels).

    A function's name, its attribute `title` and its attribute `better` ("higher" if it has none)
    are the metric's; options behind the place are keyword arguments.

    Raises a SettingsError if it is neither, or does not say which way is better.
    """
    found = places.find("metric", place)
    if not isinstance(found, Metric):
        if not callable(found):
            raise SettingsError(f"{place}: a metric is a function of (logits, labels)")
        name = getattr(found, "__name__", type(found).__name__)
        found = Metric(
            name, getattr(found, "title", name), getattr(found, "better", "higher"), found
        )
    if found.better not in BETTER:
        raise SettingsError(f"{place}: better: {unknown('value', str(found.better), BETTER)}")
    return found


def _measured(place: str, fn: Callable[..., float], logits: Tensor, labels: Tensor) -> float:
    """Return what a metric gives, with the options that follow its place."""
    found: float = places.call(place, fn, (logits, labels))
    return found


class ClientMetrics:
    """The metrics that the setting `client-metrics` names, by their places."""

    def __init__(self, text: str) -> None:
        self.places = text.split()
        if not is_without_code():
            _ = self.functions  # Better now than in the last round.

    @functools.cached_property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return what each metric's name calls; raises a SettingsError for one that cannot be."""
        found = [(place, metric_at(place)) for place in self.places]
        functions = {
            metric.name: functools.partial(_measured, place, metric.fn) for place, metric in found
        }
        if len(functions) < len(found):
            names = [metric.name for _, metric in found]
            twice = next(name for name in names if names.count(name) > 1)
            raise SettingsError(f"client-metrics: two are called '{twice}'", "client-metrics")
        logits, labels = torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 1, 0])
        for name, fn in functions.items():
            number_of(name, fn(logits, labels))
        return functions

    def identity(self) -> dict[str, Any]:
        """Return what rows depend on where there are metrics."""
        return {"client-metrics": [self.places, contents(self.places)]} if self.places else {}
