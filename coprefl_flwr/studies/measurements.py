"""Metrics that every client computes, and measurements of a starting model.

Users can write their own metrics and their own measurements.
"""

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.data import Samples, pooled
from coprefl_flwr.errors import SettingsError, about_settings, check_name
from coprefl_flwr.federation.run import Hook
from coprefl_flwr.learning.evaluation import Metric, are_classes
from coprefl_flwr.models import load_saved_model, outputs_of
from coprefl_flwr.models.precision import computing
from coprefl_flwr.named import folder_of, parse
from coprefl_flwr.object_code import code_hash, is_users
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.studies.hashes import content_hashes, hash_of
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import Store, write_result

# ---- metrics of every client ---------------------------------------------------------------------


BETTER = ("higher", "lower")

MetricLike = str | Callable[..., Any]
"""The place of a metric (module:NAME), or a function of (outputs, targets), or a class of these."""


def own_metric(chosen: MetricLike) -> Metric:
    """Return a Metric from a place or a function.

    The metric of a function has the function's name. The function's attributes `title` and `better`
    are the metric's title and direction; they default to the name and to "higher". Options after a
    place are keyword arguments of the function, except `better`, which is the direction.

    A class, such as those of torchmetrics, is called with the options for each client, and the
    object is called with (outputs, targets). If its attribute `higher_is_better` is False, lower is
    better.

    Raises a SettingsError if `chosen` is no metric, has no name, or if `better` is neither "higher"
    nor "lower".
    """
    what = _metric_name(chosen)
    fn = plugins.find("metric", chosen) if isinstance(chosen, str) else chosen
    name = _metric_name(fn)
    if name == "<lambda>":
        raise SettingsError("a metric needs a name: define it with def, not lambda")
    default = "lower" if getattr(fn, "higher_is_better", None) is False else "higher"
    chosen_better = str(parse(what)[1].get("better", getattr(fn, "better", default)))
    check_name("value", chosen_better, BETTER, f"{what}: `better`")

    def of_client(*of: Tensor, **options: Any) -> float:
        options.pop("better", None)
        return float(fn(**options)(*of) if isinstance(fn, type) else fn(*of, **options))

    title = getattr(fn, "title", name)
    return Metric(name, title, chosen_better, lambda *of: plugins.call(what, of_client, of))


@torch.no_grad()
def example_of(network: nn.Module, samples: Samples, classes: int) -> tuple[Tensor, Tensor]:
    """Return outputs and targets of some samples, on which metrics are checked.

    If the targets are classes, these are logits of all classes instead.
    """
    inputs, targets = samples.batch(slice(8), next(network.parameters()).device)
    if are_classes(targets):
        return logits_of(classes)
    with computing(network):
        return outputs_of(network.eval(), inputs).cpu(), targets.cpu()


def logits_of(classes: int) -> tuple[Tensor, Tensor]:
    """Return logits (2 x classes, classes) and labels, on which metrics are checked."""
    numbers = torch.arange(classes)
    return torch.eye(classes).repeat(2, 1), torch.cat([numbers, numbers.roll(1)])


def _metric_name(metric: Any) -> str:
    """Return the place of a metric, or the name of a function."""
    if isinstance(metric, str):
        return metric
    return str(getattr(metric, "__name__", type(metric).__name__))


class ClientMetrics:
    """Your own metrics, which clients compute: one metric, a sequence, or a string of places.

    The string separates the places (module:NAME) by spaces.
    """

    def __init__(self, metrics: MetricLike | Sequence[MetricLike]) -> None:
        several = metrics.split() if isinstance(metrics, str) else metrics
        self.metrics = several if isinstance(several, Sequence) else [several]

    @functools.cached_property
    def loaded(self) -> Sequence[Metric]:
        """The metrics; a SettingsError if one is invalid."""
        return list(map(own_metric, self.metrics))

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """A mapping from each metric's name to its function."""
        return {metric.name: metric.fn for metric in self.loaded}

    @property
    def headings(self) -> Mapping[str, tuple[str, str]]:
        """A mapping from each metric's column to its title and its better direction."""
        return {f"{METRIC}{metric.name}": (metric.title, metric.better) for metric in self.loaded}

    @about_settings("client-metrics")
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise a SettingsError if a metric fails on these outputs and targets of a network."""
        for fn in self.functions.values():  # An error now is better than in the last round.
            fn(outputs, targets)

    def identity(self) -> dict[str, Any]:
        """Return the names of the metrics and hashes of their code; empty without metrics."""
        if not self.metrics:
            return {}
        named = [metric for metric in self.metrics if isinstance(metric, str)]
        own = {_metric_name(m): code_hash(m) for m in self.metrics if not isinstance(m, str)}
        parts = [list(map(_metric_name, self.metrics)), content_hashes(named)]
        return {"client-metrics": [*parts, own] if own else parts}


# ---- measurements of a starting model ------------------------------------------------------------


MEASUREMENT = "measurement"
"""The kind of plugin for your own measurements."""

StageOf = Callable[[Pretraining], Stage]
"""A function that makes the stage of measurement for the model of a pre-training."""


class Measurement(Stage):
    """A stage that measures a few numbers of a starting model, in the server's process."""

    @abstractmethod
    def measure(self, store: Store) -> Mapping[str, float | None]:
        """Return the measured numbers by name; None for a number that is not known."""

    def make(self, grid: Grid, store: Store, hooks: Sequence[Hook]) -> None:
        """Measure, and write the numbers as the only row of `rounds` in the result.

        A value of another type, such as a tensor of one element, becomes a float.
        """
        about = {"phase": self.phase, "start": self.start, "task": self.task, "round": 0}
        numbers = {
            name: value if isinstance(value, int | float | None) else float(value)
            for name, value in self.measure(store).items()
        }
        write_result(store.folder(self), [], [{**about, **numbers, **about}])


class StartMeasurement(Measurement):
    """A measurement of one starting model.

    A subclass sets `phase`, the name of the measurement in rows and folders, and defines `measure`.
    If the model or the code of the subclass changes, the measurement runs again:

    ```python
    class WorstClient(StartMeasurement):
        phase = "worst-client"

        def measure(self, store):
            arrays, clients = self.model(store), self.pretraining.clients.samples
            losses = [self.pretraining.evaluate(arrays, client)["loss"] for client in clients]
            return {"worst-loss": max(losses)}
    ```

    With the setting `measurements: "worst.py:WorstClient"` the report of `flwr run` has a column
    `measured:worst-loss`. In a recipe the key `metrics` must list this column. A result has one
    row: for one number per client, return the names "loss-0", "loss-1" and so on. Override `check`
    to refuse settings that do not fit, before any work begins.

    Parameters
    ----------
    pretraining : Pretraining
        The stage that makes the starting model.
    """

    def __init__(self, pretraining: Pretraining) -> None:
        title, folder = f"{self.phase} of {pretraining.name}", folder_of(pretraining.name)
        super().__init__(title, f"{self.phase}/{folder}", pretraining.start)
        self.pretraining = pretraining

    def model(self, store: Store) -> Arrays:
        """Return the arrays of the starting model."""
        return load_saved_model(store.folder(self.pretraining))[0]

    def identity(self) -> Mapping[str, Any]:
        """Return the identity of the model, and a hash of the code of your own class."""
        code = code_hash(type(self)) if is_users(type(self)) else ""
        return {"start": hash_of(self.pretraining.identity()), "text": hash_of({"text": code})}

    @property
    def key(self) -> str:
        """Return the starting model's key, the measurement's name and a hash of the identity."""
        return f"{self.pretraining.key}/{self.phase}-{hash_of(self.identity())}"


class StartLoss(StartMeasurement):
    """The mean loss of a starting model, with its trained head, over all pre-training clients.

    Every training sample of every client counts once, in eval mode. The server's process computes
    the loss from the clients' data. An experimenter can do so; the server of a real federation has
    no access to the clients' data. Clients report a different loss in rounds: the loss
    of models that have just been trained on the client's data.
    """

    phase = START_LOSS

    def measure(self, store: Store) -> Mapping[str, Any]:
        """Return the mean loss, by its name."""
        # Also those of validation, so that all starts are measured on the same samples.
        samples = pooled(self.pretraining.clients.samples)
        return {START_LOSS: self.pretraining.evaluate(self.model(store), samples)["loss"]}


@about_settings("measurements")
def own_measurements(text: str) -> Sequence[StageOf]:
    """Return your own measurements from a string of places (module:NAME), separated by spaces.

    Raises a SettingsError if a place names no subclass of Stage.
    """
    kinds: list[StageOf] = []
    for place in text.split():
        kind = plugins.find(MEASUREMENT, place)
        if not (isinstance(kind, type) and issubclass(kind, Stage)):
            raise SettingsError(f"measurements: {place} must be a subclass of StartMeasurement")
        kinds.append(kind)
    return kinds
