"""`evaluate_starts`: what starting models are worth in downstream tasks."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn

from coprefl_flwr.arrays import checksum_of
from coprefl_flwr.clients import client_app
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
from coprefl_flwr.front.held import check
from coprefl_flwr.front.pretraining import method_of, phase_of
from coprefl_flwr.front.running import (
    outputs_of,
    shown,
    store_for,
)
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import HEAD, METHODS, TASK
from coprefl_flwr.models import check_weights, model_arrays
from coprefl_flwr.models.heads import last_linear
from coprefl_flwr.models.networks import seeded
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.options import declared
from coprefl_flwr.report import figures, results
from coprefl_flwr.report.forms import plain
from coprefl_flwr.report.starts import summary_table
from coprefl_flwr.strategies import RoundStrategy, Schedule, ServerRefined
from coprefl_flwr.studies.architecture import Architecture
from coprefl_flwr.studies.client_metrics import ClientMetrics, Given
from coprefl_flwr.studies.method import FRESH, KEEP, NO_METHODS, Method, folder_of
from coprefl_flwr.studies.phases import (
    TrainingSettings,
    check_precisions,
    one_phase,
    read_phase,
)
from coprefl_flwr.studies.populations import Tasks
from coprefl_flwr.studies.pretraining import Pretraining, Start
from coprefl_flwr.studies.results import gather
from coprefl_flwr.studies.stage import RunSettings
from coprefl_flwr.studies.starts import comparison
from coprefl_flwr.studies.store import Layout
from coprefl_flwr.studies.study import Study, run
from coprefl_flwr.studies.task_settings import TASK_RATE
from coprefl_flwr.studies.tasks import Downstream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_TRAINING = ("learning_rate", "local_steps", "local_epochs", "batch_size", "precision")
OPTIONS = (*OF_TRAINING, "evaluate_every", "diagnostics")
"""What else `evaluate_starts` takes."""

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
    checkpoint, quiet
        As in `pretrain`; tasks of another number of `rounds` begin anew.
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
    with shown([], quiet):
        study = _study(starts, tasks, rounds, method, head, network, client_metrics, options)
    with store_for(checkpoint, Layout.PATH) as store:
        study.root = store.base
        with shown(study.stages, quiet) as progress:
            run(study, LocalGrid(client_app(study.client), 1), store, progress)
        rows, found = gather(study, store)
    return StartsResult(results.accuracies(rows), found)


class _Replaced(Architecture):
    """The starts' own network, whose last linear layer is replaced."""

    def __init__(self, base: nn.Module, tasks: Tasks) -> None:
        super().__init__("starts", tasks.source, tasks.seed)
        self.base, self.tasks = base, tasks

    @property
    def num_classes(self) -> int:
        """Classes of a task."""
        return self.tasks.classes

    @functools.cached_property
    def layer(self) -> str:
        """The name of the layer that a task replaces."""
        sample = self.tasks[0].clients[0].train
        outputs = outputs_of(self.base, "a start", sample)
        named = last_linear(self.base, sample.batch(slice(0, 2), CPU)[0])
        if _linear(self.base, named).out_features != outputs.shape[1]:
            line = f"its outputs do not come from {named}, the nn.Linear that it calls last"
            raise SettingsError(f"a start: {line}; give network=, which makes it for a task")
        return named

    @functools.cached_property
    def head(self) -> frozenset[str]:
        """Names of that layer's arrays."""
        layer = _linear(self.base, self.layer)
        return frozenset(f"{self.layer}.{name}" for name in layer.state_dict())

    def identity(self) -> Mapping[str, Any]:
        """Return the layer: all else is in the starts' weights."""
        return {"layer": self.layer}

    def make(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        """Return the network with a new last layer for so many classes, drawn by `key`."""
        made = copy.deepcopy(self.base)
        old = _linear(made, self.layer)
        with seeded((self.seed, *(key or ("model",)))):
            new = nn.Linear(
                old.in_features,
                num_classes or self.num_classes,
                old.bias is not None,
                dtype=old.weight.dtype,
            )
        made.set_submodule(self.layer, new)
        return made


class _Made(Architecture):
    """A network that the caller's function makes for a number of classes."""

    def __init__(self, factory: Callable[[int], nn.Module], tasks: Tasks, keeps_head: bool) -> None:
        super().__init__("starts", tasks.source, tasks.seed)
        self.factory, self.tasks = factory, tasks
        classes, sample = tasks.classes, tasks[0].clients[0].train
        made, what = made_network(factory, classes), f"what network({classes}) makes"
        outputs = outputs_of(made, what, sample).shape[1]
        if outputs < classes:
            raise SettingsError(f"{what} gives {outputs} numbers for a sample, not {classes}")
        if not (self.head or keeps_head):
            both = f"network({classes}) and network({classes + 1})"
            problem = f"{both} are alike: the number of classes is to be that of its outputs"
            raise SettingsError(f"{problem}; head='keep' leaves a network as it is")

    @property
    def num_classes(self) -> int:
        """Classes of a task."""
        return self.tasks.classes

    @functools.cached_property
    def head(self) -> frozenset[str]:
        """Names of the arrays that have another shape for one class more."""
        shapes, others = (
            {name: one.shape for name, one in self.factory(n).state_dict().items()}
            for n in (self.num_classes, self.num_classes + 1)
        )
        return frozenset(name for name in shapes if shapes[name] != others.get(name))

    def identity(self) -> Mapping[str, Any]:
        """Return a hash of the weights that it draws for a task."""
        return {"weights": checksum_of(model_arrays(self.make()))}

    def make(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        """Return what the function makes for so many classes; its random numbers are of `key`."""
        with seeded((self.seed, *(key or ("model",)))):
            return self.factory(num_classes or self.num_classes)


def _study(
    starts: Mapping[str, nn.Module | str | Path],
    tasks: Tasks,
    rounds: int,
    method: str | RoundStrategy | type[RoundStrategy],
    head: str,
    network: Callable[[int], nn.Module] | None,
    metrics: Given | Sequence[Given],
    options: Mapping[str, Any],
) -> Study:
    """Return the study of tasks and starting models that are given."""
    given = _of_tasks(method)
    of_client = {} if isinstance(given, str) else declared(method_of(given).client_class)
    own = {key.replace("-", "_"): key for key in of_client}
    for name in options:
        if name not in (*OPTIONS, *own):
            raise SettingsError(unknown("option", name, [*OPTIONS, *own]))
    _check_starts(starts)
    check("task-rounds", rounds, "rounds")
    chosen_head = Method.parse(head)
    if not rounds and chosen_head in NO_METHODS:
        problem = f"rounds = 0: head = {head} needs rounds; ncm and ridge do not"
        raise SettingsError(problem)
    of_tasks = declared(TrainingSettings)
    training = TrainingSettings(
        rounds=max(rounds, 1),
        participants=len(tasks[0].clients),
        **{"learning_rate": TASK_RATE}
        | {
            name: of_tasks[name.replace("_", "-")].checked(one, name)
            for name, one in options.items()
            if name in OF_TRAINING
        },
    )
    if isinstance(given, str):
        chosen = one_phase("method", Method.parse(given))
        phase = read_phase("method", chosen, TASK, training, {})
    else:
        told = {own[name]: one for name, one in options.items() if name in own}
        phase = replace(phase_of(given, TASK, training, told), given=given)
    phase.check_aggregation("method", training.participants)
    keeps_head, head_phase = chosen_head == KEEP, None
    if chosen_head not in NO_METHODS:
        head_phase = read_phase("head", one_phase("head", chosen_head), HEAD, training, {})
    every = check("task-evaluate-every", options.get("evaluate_every", 1), "evaluate_every")
    how = Downstream(
        phase,
        rounds,
        head_phase,
        keeps_head=keeps_head,
        evaluate_every=every,
        diagnostics=check("diagnostics", options.get("diagnostics", False), "diagnostics"),
        metrics=ClientMetrics(metrics),
    )
    architecture = (
        _Replaced(_base(starts), tasks) if network is None else _Made(network, tasks, keeps_head)
    )
    made = [
        Pretraining(
            Start(name, name, given=one if isinstance(one, nn.Module) else f"{FILE}{one}"),
            None,
            architecture,
            RunSettings(seed=tasks.seed),
            keeps_head=keeps_head,
        )
        for name, one in starts.items()
    ]
    for start in made:
        start.check_weights()
    study = Study(comparison(made, tasks, how))
    check_precisions([phase])
    return study


def _base(starts: Mapping[str, Any]) -> nn.Module:
    """Return the architecture: the first module that is given."""
    modules = [one for one in starts.values() if isinstance(one, nn.Module)]
    if not modules:
        raise SettingsError("starts are files alone: give network=, which makes the module")
    return copy.deepcopy(modules[0]).cpu()


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
