"""The costs of stages, counted before a run: computation, traffic and disk space.

Each strategy states the computation and the traffic of one round (see `federation.budget`).
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coprefl_flwr.clients import StatefulClient
from coprefl_flwr.data import ClientData, TextDataset
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import RoundStrategy, Work
from coprefl_flwr.federation.communication import serialised
from coprefl_flwr.learning import LocalTraining, ServerData
from coprefl_flwr.learning.diagnostics import HESSIAN_SAMPLES, POINTS
from coprefl_flwr.models import build_model, model_arrays
from coprefl_flwr.models.backbones import Backbone
from coprefl_flwr.plugins import without_folders
from coprefl_flwr.studies.architecture import BuiltArchitecture
from coprefl_flwr.studies.measurements import StartLoss, StartMeasurement
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.personalised import PersonalStage
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.tasks import Diagnosis, Task
from coprefl_flwr.studies.training_options import TrainingOptions

MOST_ROUNDS = 100_000
"""Maximum rounds in the search for a summed step size: with a decaying rate, the sum is bounded."""

HESSIAN_PRODUCTS = 30
"""Approximate number of Hessian-vector products in the eigenvalue search of a diagnosis."""

ROUND_BYTES = 600
"""Approximate size of a round's row in a stage's result, in bytes."""


class Counts(NamedTuple):
    """Counts of computation, traffic and disk space; nan if a method does not state a count."""

    steps: float = 0.0  # steps of SGD or Adam
    gradients: float = 0.0  # gradients of one sample's loss
    outputs: float = 0.0  # forward passes of one sample, without a gradient
    sent: float = 0.0  # bytes that a deployment sends, without evaluations
    disk: float = 0.0  # bytes on disk


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sum of several Counts, field by field."""
    return Counts(*map(math.fsum, zip(Counts(), *counts, strict=True)))


@functools.singledispatch
def counts_of(_: Stage) -> Counts:
    """Return the costs of a stage; for your own class of stage, only the size of its result."""
    return Counts(disk=ROUND_BYTES)


@counts_of.register
def _(stage: Pretraining) -> Counts:
    test_every, outputs = stage.test_every, 0.0
    size = _model_size(stage, stage.architecture.num_classes)
    if stage.phases and test_every:
        outputs += _times(stage.rounds, test_every) * len(stage.clients.test_samples())
    if stage.phases and stage.run_options.stop_at_loss is not None:
        outputs += _times(stage.rounds, stage.run_options.stop_check_every) * _training_samples(
            stage.population.clients
        )
    phases = [
        _rounds(strategy, work, size, phase.training.rounds)
        for phase, strategy, work in works(stage)
    ]
    return total([*phases, Counts(outputs=outputs, disk=size)])


@counts_of.register
def _(stage: Task) -> Counts:
    how, clients = stage.how, stage.population.clients
    size = _model_size(stage.pretraining, stage.drawn_by.classes)
    evaluated = _times(stage.rounds, how.evaluate_every or stage.rounds) * _test_samples(clients)
    head = Counts(outputs=_training_samples(clients), sent=len(clients) * size, disk=ROUND_BYTES)
    return total(
        [
            _of_all(how.trained, how.trained.training, clients, size, how.rounds),
            Counts(outputs=evaluated),
            head if how.head else Counts(),
        ]
    )


@counts_of.register
def _(stage: Diagnosis) -> Counts:
    task = stage.diagnosed
    clients = task.population.clients
    work = Work(len(clients), [len(client.train) for client in clients], task.how.trained.training)
    samples = _training_samples(clients)
    products = 3 * HESSIAN_PRODUCTS * min(samples, HESSIAN_SAMPLES)
    return Counts(
        steps=work.participants * work.mean(work.training.steps),
        gradients=work.participants * work.samples_seen + samples + products,
        outputs=2 * POINTS * (samples - samples / len(clients)) + samples + _test_samples(clients),
        disk=ROUND_BYTES,
    )


@counts_of.register
def _(stage: StartLoss) -> Counts:
    return Counts(outputs=_training_samples(stage.pretraining.population.clients), disk=ROUND_BYTES)


@counts_of.register
def _(stage: PersonalStage) -> Counts:
    clients, size = stage.data.images, serialised(stage.initial())
    evaluated = _times(stage.rounds, stage.test_every or stage.rounds) * _test_samples(clients)
    trained = _of_all(stage.method, stage.training, clients, size, stage.rounds)
    own = serialised(stage.network.arrays) * len(clients)
    stateful = issubclass(stage.method.client_class, StatefulClient)
    return total([trained, Counts(outputs=evaluated, disk=size + stateful * own)])


def counts_of_features(stage: PersonalStage) -> Counts:
    """Return the costs of a personalised stage's features, which several stages share."""
    data = stage.data
    samples = _training_samples(data.images) + _test_samples(data.images)
    outputs = samples if data.networks else 0
    return Counts(outputs=outputs, disk=4 * samples * math.prod(data.input_shape))


def _rounds(strategy: RoundStrategy, work: Work, size: float, rounds: int) -> Counts:
    """Return the costs of rounds without evaluations; `size`: bytes of the global arrays."""
    budget, actions = strategy.budget(work), getattr(strategy, "inner", strategy).actions
    sent = 2.0 * work.participants * len(actions)
    if budget.sent is not None:
        sent = budget.sent
    fraction = work.options.get("support-fraction")
    if strategy.server_data and not actions:  # The server does all the work.
        work = Work(1, [len(strategy.server)], work.training)  # type: ignore[attr-defined]
    elif fraction and "train" in actions:
        work = work.on_fraction(fraction)
    each = work.options.get("local-steps") or work.mean(work.training.steps)
    steps = work.participants * each + int(work.options.get("server-steps") or 0)
    of_round = (steps, budget.gradients, budget.forwards, sent * size, ROUND_BYTES)
    return Counts(*(rounds * number for number in of_round))


def _of_all(
    method: Method, training: LocalTraining, clients: Sequence[ClientData], size: float, rounds: int
) -> Counts:
    """Return the costs of rounds with all clients, without evaluations."""
    sizes = [len(client.train) for client in clients]
    work = Work(len(clients), sizes, training, method.values)
    return _rounds(method.strategy(training=training), work, size, rounds)


def _model_size(pretraining: Pretraining, classes: int) -> int:
    architecture = pretraining.architecture
    assert isinstance(architecture, BuiltArchitecture)
    return _size(architecture.name, classes, architecture.input_shape, architecture.norm)


@functools.lru_cache(maxsize=16)
def _size(model: str, classes: int, shape: tuple[int, ...], norm: str) -> int:
    return serialised(model_arrays(build_model(model, classes, shape, norm)))


def _training_samples(clients: Sequence[ClientData]) -> int:
    return sum(len(client.train) for client in clients)


def _test_samples(clients: Sequence[ClientData]) -> int:
    return sum(len(client.test or ()) for client in clients)


def _times(rounds: int, every: int) -> int:
    """Return how often an event occurs: every `every` rounds, and after the last round."""
    return math.ceil(rounds / every) if rounds else 0


# ---- a pre-training ------------------------------------------------------------------------------


class Cost(NamedTuple):
    """A sum of step sizes, and a number of gradients of one sample's loss; nan if not known."""

    step_size: float
    gradients: float


def works(pretraining: Pretraining) -> list[tuple[Method, RoundStrategy, Work]]:
    """Return each phase of a pre-training with its strategy and the Work of one round."""
    sizes = [len(client.train) for client in pretraining.population.clients]

    def server(whose: str) -> ServerData:  # Only its number of samples counts.
        return ServerData(nn.Identity(), pretraining.clients.samples_of(whose))

    return [
        (
            phase,
            phase.strategy(server, **pretraining.of_strategies()),
            Work(phase.training.participants, sizes, phase.training, phase.values),
        )
        for phase in pretraining.phases
    ]


def by_round(pretraining: Pretraining) -> Iterator[Cost]:
    """Yield the cost of each round, in order. The last phase continues without end."""
    first = 1
    for phase, strategy, work in works(pretraining):
        training, budget = phase.training, strategy.budget(work)
        last = phase is pretraining.phases[-1]
        step_sizes = budget.step_sizes(training, first)
        for step_size in itertools.islice(step_sizes, None if last else training.rounds):
            yield Cost(step_size, budget.gradients)
        first += training.rounds


def cost(pretraining: Pretraining, rounds: int | None = None) -> Cost:
    """Return the cost of a pre-training, or of its first `rounds` rounds.

    The cost is 0 for random weights. The cost of given weights is not known, so it is nan.
    """
    if pretraining.is_external:
        return Cost(math.nan, math.nan)
    if not pretraining.phases:
        return Cost(0.0, 0.0)
    last = pretraining.rounds if rounds is None else rounds
    counted = itertools.islice(by_round(pretraining), last)
    return Cost(*map(math.fsum, zip(Cost(0.0, 0.0), *counted, strict=True)))


def rounds_for(pretraining: Pretraining, step_size: float) -> int:
    """Return the number of rounds of the last phase for a given sum of step sizes.

    The sum over all phases is then nearest to `step_size`.

    Raises a SettingsError if the method states no step size, or if its sum never reaches
    `step_size`.
    """
    before = pretraining.rounds - pretraining.phases[-1].training.rounds
    reached, problem = 0.0, f"the summed step size of {pretraining.name}"
    for number, round_cost in enumerate(itertools.islice(by_round(pretraining), MOST_ROUNDS), 1):
        if number > 1 and round_cost.step_size == 0:
            break  # The rate has decayed to 0.
        if not round_cost.step_size > 0:
            problem += f" is {round_cost.step_size:g} per round"
            raise SettingsError(f"{problem}, so no number of rounds reaches the reference's")
        farther = reached + round_cost.step_size
        if farther >= step_size and number > before:
            nearest = number - (step_size - reached < farther - step_size)
            return max(nearest - before, 1)
        reached = farther
    raise SettingsError(f"{problem} never reaches the reference's {step_size:g}")


# ---- networks, to measure their speed ------------------------------------------------------------


class Computing(NamedTuple):
    """A network whose speed can be measured. Networks of equal names take equal time per sample.

    The inputs have the shape `shape`, or are windows of `text`. `training` is None if the network
    is not trained.
    """

    name: str
    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    training: LocalTraining | None
    text: TextDataset | None = None


def computing_of(stage: Stage) -> Computing:
    """Return the network, the input shape and the local training of a stage."""
    if isinstance(stage, PersonalStage):
        options, own, shape = stage.data.options, stage.training, stage.data.input_shape
        head = f"a {stage.method.client_class.network} head"
        model = stage.model[0] if options.from_scratch else head
        name = _named(model, options.head_norm or "batch", shape, own)
        return Computing(name, lambda: stage.network.module, shape, own)
    if not isinstance(stage, Pretraining | Task | Diagnosis | StartMeasurement):
        raise SettingsError(f"{stage.title}: the costs of a {type(stage).__name__} are not known")
    task = stage.diagnosed if isinstance(stage, Diagnosis) else stage
    pretraining = task if isinstance(task, Pretraining) else task.pretraining
    architecture, source = pretraining.architecture, pretraining.architecture.source.dataset
    assert isinstance(architecture, BuiltArchitecture)
    training = TrainingOptions()
    if pretraining.phases:
        training = pretraining.phases[0].training
    elif isinstance(task, Task):
        training = task.how.trained.training
    name = _named(architecture.name, architecture.norm, source.shape, training)
    text = source if isinstance(source, TextDataset) else None
    return Computing(name, architecture.make, source.shape, training, text)


def computing_features(stage: PersonalStage) -> Computing:
    """Return the backbones that compute a personalised stage's features.

    Without backbones, return the network of the stage.
    """
    data = stage.data
    if not data.networks:
        return computing_of(stage)
    shape = data.domains[0].images.shape
    name = f"{data.options.backbones}, {'x'.join(map(str, shape))}"
    return Computing(name, lambda: Each(data.networks), shape, None)


def _named(model: str, norm: str, shape: tuple[int, ...], training: LocalTraining) -> str:
    size = f"{'x'.join(map(str, shape))}, batches of {training.samples_per_step}"
    return f"{without_folders(model)}, {norm}, {size}, {training.precision}"


class Each(nn.Module):
    """A network that joins the features of several backbones."""

    def __init__(self, backbones: Sequence[Backbone]) -> None:
        super().__init__()
        self.backbones = backbones

    def forward(self, images: Tensor) -> Tensor:
        """Return the concatenated features of all backbones, (b, size)."""
        return torch.cat([backbone.features(images) for backbone in self.backbones], dim=1)
