"""`evaluate_starts`: what starting models are worth in downstream tasks."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn

from coprefl_flwr import checksums
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, one_line, short, unknown
from coprefl_flwr.federation.robust import AGGREGATION
from coprefl_flwr.front.arguments import (
    check_module,
    check_tasks,
    checked_method,
    made_network,
    named,
)
from coprefl_flwr.front.figures import written
from coprefl_flwr.front.held import Tasks, as_arguments
from coprefl_flwr.front.pretraining import method_of, phase_of
from coprefl_flwr.front.running import (
    folder_for,
    hash_of_samples,
    outputs_of,
    run,
    shown,
)
from coprefl_flwr.methods import METHODS, RANDOM, TASK
from coprefl_flwr.models import check_weights, model_arrays, save_model, with_fresh_head
from coprefl_flwr.models.build import seeded
from coprefl_flwr.models.network import Network, last_linear
from coprefl_flwr.models.origin import FILE, arrays_from
from coprefl_flwr.options import declared
from coprefl_flwr.report import figures, results
from coprefl_flwr.report.forms import plain
from coprefl_flwr.report.starts import summary_table
from coprefl_flwr.strategies import RoundStrategy, Schedule, ServerRefined
from coprefl_flwr.studies import populations as of_studies
from coprefl_flwr.studies.client_metrics import ClientMetrics, Given
from coprefl_flwr.studies.method import FRESH, KEEP, START, Methods, folder_of
from coprefl_flwr.studies.phases import Phase, TrainingSettings, check_precisions
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.results import gather
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.starts import Starts
from coprefl_flwr.studies.study import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_TRAINING = ("task-learning-rate", "task-local-steps", "task-local-epochs")
OPTIONS = {
    **{key.removeprefix("task-").replace("-", "_"): key for key in OF_TRAINING},
    "evaluate_every": "task-evaluate-every",
    "diagnostics": "diagnostics",
    "batch_size": "batch-size",
    "precision": "precision",
}
"""What else `evaluate_starts` takes, and the settings that these are."""

ARGUMENTS = {key: name for name, key in OPTIONS.items()} | {
    "task-rounds": "rounds",
    "task-method": "method",
    "client-metrics": "client_metrics",
}
"""What settings are called in `evaluate_starts`, in messages."""

USAGE = "cp.evaluate_starts(starts, tasks)"

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class StartsResult:
    """What starting models came to in downstream tasks; printed, it is the table.

    `rows` has a row per start, task and client: its accuracy in percent, `correct` of `n` test
    samples, and the mean loss. `rounds` has a row per start, task and round.
    """

    rows: pd.DataFrame
    rounds: pd.DataFrame

    def summary(self) -> pd.DataFrame:
        """Return a row per start: mean over tasks, and sample deviation, of each metric.

        These are the clients' mean accuracy (%), the variance of their accuracies (%²), that
        beyond the sampling of test samples, and the mean accuracy of the worst 10, 20, 30 %.
        """
        return results.summary(self._counted).set_index("start")

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return how the clients' accuracies are spread, a panel per start; also written to `path`.

        The ending of `path` says the format, .png for example.
        """
        return written(figures.accuracy_figure(self._counted), path)

    def curves(self, path: str | Path | None = None) -> "Figure":
        """Return accuracy and loss over the rounds of the tasks; also written to `path`."""
        return written(figures.learning_figure(self.rounds), path)

    def __str__(self) -> str:
        return plain(summary_table(self._counted))

    __repr__ = __str__

    @property
    def _counted(self) -> pd.DataFrame:
        return self.rows.drop(columns="accuracy")


def evaluate_starts(
    starts: Mapping[str, nn.Module | str | Path],
    tasks: Tasks,
    rounds: int = 50,
    *,
    method: str | RoundStrategy | type[RoundStrategy] = "fedavg",
    head: str = str(FRESH),
    network: Callable[[int], nn.Module] | None = None,
    client_metrics: Given | Sequence[Given] = (),
    checkpoint: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    **options: Any,
) -> StartsResult:
    """Run the same tasks from every starting model, and compare what clients end with.

    Parameters
    ----------
    starts : mapping of name to module, or to a file or folder of weights
        All of one architecture; `.safetensors`, a state_dict, or a folder that this package wrote.
    tasks : Tasks
        As `tasks` makes them.
    rounds : int
        Rounds R of a task, in which all its clients take part.
    method : str, RoundStrategy or a class of such
        Algorithm of the tasks, as "fedprox:mu=0.1", `FedProx(mu=0.1)` or a class of your own whose
        `roles` have "task". All clients of a task take part, with the seed of the tasks.
    head : str
        "fresh": a task begins under a new last layer, the same for every start; "keep": under the
        start's own; "ncm", "ridge": under one computed from the clients' features.
    network : function of the number of classes, optional
        Makes the architecture for a task, where its outputs do not come from an `nn.Linear` that is
        called last; not set: that layer is replaced.
    client_metrics : function, place, or a list of such, optional
        Metrics of your own: functions of (logits (n, C), labels (n,)) that return a number, which
        every client computes on its test samples; C is the task's number of classes. They are
        columns of `rows`, of `summary()` ("metric:NAME") and of the printed table.
    checkpoint, resume, quiet
        As in `pretrain`, but with the same `rounds`.
    **options
        Training of the tasks: `learning_rate`, `local_steps` or `local_epochs`, `batch_size`,
        `precision` ("float32", "bf16" or "tf32"); `evaluate_every` (rounds between evaluations,
        0: after the last only), `diagnostics`; and options of the client of a method that is given
        as a strategy.

    Raises
    ------
    SettingsError
        Before any work, for what cannot be.
    """
    check_tasks(tasks, USAGE)
    with shown([], quiet), as_arguments(ARGUMENTS):
        study = _Study(starts, tasks, rounds, method, head, network, client_metrics, options)
    with folder_for(checkpoint, resume, study.about()) as folder:
        store = run(study, study.stages, folder, quiet=quiet)
        rows, found = gather(study, store)
    return StartsResult(results.accuracies(rows), found)


class _Study(Starts):
    """Tasks and starting models that are given."""

    def __init__(
        self,
        starts: Mapping[str, nn.Module | str | Path],
        tasks: Tasks,
        rounds: int,
        method: str | RoundStrategy | type[RoundStrategy],
        head: str,
        network: Callable[[int], nn.Module] | None,
        metrics: Given | Sequence[Given],
        options: Mapping[str, Any],
    ) -> None:
        self.method = _of_tasks(method)
        of_client = (
            () if isinstance(self.method, str) else declared(method_of(self.method).client_class)
        )
        own = {one.replace("-", "_"): one for one in of_client}
        for name in options:
            if name not in {**OPTIONS, **own}:
                raise SettingsError(unknown("option", name, {**OPTIONS, **own}))
        self.of_client = {own[name]: options[name] for name in options if name not in OPTIONS}
        options = {name: options[name] for name in options if name in OPTIONS}
        _check_starts(starts)
        self.given, self.drawn, self.factory = starts, tasks, network
        of_tasks = tasks.populations.tasks
        settings = Settings.from_config(
            {
                "method": RANDOM,
                "tasks": len(tasks),
                "task-classes": tasks.classes,
                "task-clients": of_tasks.task_clients,
                "task-partition": of_tasks.task_partition,
                "task-rounds": rounds,
                **({"task-method": method} if isinstance(method, str) else {}),
                "head": head,
                "seed": tasks.populations.seed,
                **{OPTIONS[name]: "" if one is None else one for name, one in options.items()},
            }
        )
        self.base = self._base()
        super().__init__(settings)
        self.metrics = ClientMetrics(metrics)
        self.metrics.check(tasks.classes)
        check_precisions([self.task_phase])
        if network is not None and not self.head and self.tasks.head != KEEP:
            more = f"network({tasks.classes}) and network({tasks.classes + 1})"
            problem = f"{more} are alike: the number of classes is to be that of its outputs"
            raise SettingsError(f"{problem}; head='keep' leaves a network as it is")
        for start in self.starts.values():
            assert isinstance(start, _Start)
            start.check()

    def _base(self) -> nn.Module:
        """Return the architecture: what the function makes, or the first module that is given."""
        if self.factory is not None:
            return self._made_by_caller()
        modules = [one for one in self.given.values() if isinstance(one, nn.Module)]
        if not modules:
            raise SettingsError("starts are files alone: give network=, which makes the module")
        return copy.deepcopy(modules[0]).cpu()

    def _made_by_caller(self) -> nn.Module:
        """Return what the caller's function makes, or raise a SettingsError if it is no use."""
        classes, sample = self.drawn.classes, self.drawn[0].clients[0].train
        made, what = made_network(self.factory, classes), f"what network({classes}) makes"
        outputs = outputs_of(made, what, sample).shape[1]
        if outputs < classes:
            raise SettingsError(f"{what} gives {outputs} numbers for a sample, not {classes}")
        return made

    def made_populations(self) -> of_studies.Populations:
        return self.drawn.populations

    def made_starts(self, methods: Methods) -> Mapping[str, Pretraining]:
        return {name: _Start(self, name, given) for name, given in self.given.items()}

    @property
    def num_classes(self) -> int:
        return self.drawn.classes

    def made_task_phase(self, training: TrainingSettings) -> Phase:
        if isinstance(self.method, str):
            return super().made_task_phase(training)
        return phase_of(self.method, TASK, training, self.of_client)

    def task_strategy(self, **run: Any) -> RoundStrategy:
        if isinstance(self.method, str):
            return super().task_strategy(**run)
        made = copy.deepcopy(self.method)
        for name, value in run.items():
            setattr(made, name, value)
        return made

    @functools.cached_property
    def layer(self) -> str:
        """The name of the layer that a task replaces."""
        sample = self.drawn[0].clients[0].train
        outputs, inputs = (
            outputs_of(self.base, "a start", sample),
            sample.batch(slice(0, 2), CPU)[0],
        )
        named = last_linear(self.base, inputs)
        if _linear(self.base, named).out_features != outputs.shape[1]:
            line = f"its outputs do not come from {named}, the nn.Linear that it calls last"
            raise SettingsError(f"a start: {line}; give network=, which makes it for a task")
        return named

    @functools.cached_property
    def head(self) -> frozenset[str]:
        if self.factory is not None:
            shapes, others = (
                {name: one.shape for name, one in self.factory(n).state_dict().items()}
                for n in (self.num_classes, self.num_classes + 1)
            )
            return frozenset(name for name in shapes if shapes[name] != others.get(name))
        layer = _linear(self.base, self.layer)
        return frozenset(f"{self.layer}.{name}" for name in layer.state_dict())

    def network(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        """Return the architecture with a new last layer for so many classes, drawn by `key`."""
        classes, seed_key = num_classes or self.num_classes, (self.run.seed, *(key or ("model",)))
        with seeded(seed_key):
            if self.factory is not None:
                return self.factory(classes)
            made = copy.deepcopy(self.base)
            old = _linear(made, self.layer)
            new = nn.Linear(old.in_features, classes, old.bias is not None, dtype=old.weight.dtype)
        made.set_submodule(self.layer, new)
        return made

    def about(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with this."""
        held = [client for task in range(len(self.drawn)) for client in self.drawn[task].clients]
        samples = [part for one in held for part in (one.train, one.test) if part is not None]
        free = {"run-name", "output-dir", "checkpoint-every"}
        return {
            "settings": {key: one for key, one in self.config.items() if key not in free},
            "starts": {
                name: checksums.of_arrays(one.weights()) for name, one in self.starts.items()
            },
            "tasks": hash_of_samples(samples),
            "method": self.task_phase.identity(),
            "metrics": self.metrics.identity(),
        }


class _Start(Pretraining):
    """A starting model that is given."""

    def __init__(self, study: _Study, name: str, given: nn.Module | str | Path) -> None:
        self.front, self.given = study, given
        super().__init__(study, START)
        self.name = self.start = name
        self.title = f"starting model {name}"
        self.path = f"starts/{folder_of(name)}"

    @functools.cached_property
    def _weights(self) -> Arrays:
        if isinstance(self.given, nn.Module):
            return model_arrays(self.given)
        front = self.front
        network = Network("starts", front.base, front.num_classes, front.input_shape, front.head)
        return arrays_from(f"{FILE}{self.given}", network, front.run.seed)

    def weights(self) -> Arrays:
        return self._weights

    def check(self) -> None:
        """Raise a SettingsError if the weights are not the network's, its last layer aside."""
        front = self.front
        try:
            if front.tasks.head == KEEP:
                network = front.base
                with_fresh_head(self.weights(), network, frozenset())
            else:
                with_fresh_head(self.weights(), front.network(), front.head)
        except SettingsError as error:
            raise SettingsError(f"start {self.start!r}: {error}") from error

    def keep(self, folder: Path, arrays: Arrays, strategy: Any) -> dict[str, Any]:
        save_model(folder, arrays, {"start": self.start, "versions": versions()})
        return {}


def _of_tasks(
    given: str | RoundStrategy | type[RoundStrategy],
) -> str | RoundStrategy:
    """Return the method of the tasks: a text, or a strategy, made of the class if one is given.

    Raises a SettingsError if it cannot run tasks, or sets what the tasks say.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, type) and issubclass(given, RoundStrategy):
        kind = given
        try:
            given = kind()
        except TypeError as error:
            problem = f"method = {kind.__name__}: {one_line(error)}"
            raise SettingsError(f"{problem}; give a strategy that is made of it") from error
    given = checked_method(given, f"{USAGE[:-1]}, method=cp.FedProx(mu=0.1))")
    assert isinstance(given, RoundStrategy)
    used, name = method_of(given), type(given).__name__
    if isinstance(given, Schedule | ServerRefined) or TASK not in used.roles:
        others = ", ".join(one for one, other in METHODS.items() if TASK in other.roles)
        roles = f"its roles are {', '.join(used.roles)}"
        problem = f"method = {name}: it does not run tasks ({roles})"
        raise SettingsError(f"{problem}; those that do: {others}")
    for one in declared(RoundStrategy).values():
        value = getattr(given, one.name)
        if one.name not in AGGREGATION and value != one.default:
            says = "all clients of a task take part, and it has the seed of cp.tasks"
            raise SettingsError(
                f"method = {name}: {one.name} = {value!r} holds for no task: {says}"
            )
    return given


def _linear(model: nn.Module, name: str) -> nn.Linear:
    """Return a linear layer by its name."""
    found = model.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found


def _check_starts(starts: Mapping[str, Any]) -> None:
    """Raise a SettingsError for no starts, something else than models, or names that clash."""
    if not isinstance(starts, Mapping) or not starts:
        needed = 'needed is a mapping such as {"random": Net(), "coprefl": start}'
        given = "an empty mapping" if isinstance(starts, Mapping) else named(starts)
        raise SettingsError(f"starts is {given}; {needed}: {USAGE}")
    for name, given in starts.items():
        if not isinstance(name, str):
            raise SettingsError(f"start {short(repr(name))}: the name of a start must be a text")
        if not isinstance(given, str | Path):
            check_module(given, f"start {name!r}", ", or the path of a file or folder")
            check_weights(given, f"start {name!r}")
    folders = [folder_of(name) for name in starts]
    for name, folder in zip(starts, folders, strict=True):
        if not folder.strip("-") or folders.count(folder) > 1:
            raise SettingsError(f"start {name!r}: names must differ in letters and digits")
