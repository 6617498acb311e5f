"""What a stage takes, before it is run: how often what is computed, from settings and sizes alone.

What a round of a method computes stands beside its round; see `rounds.budget`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from coprefl_flwr import plugins
from coprefl_flwr.clients.torch_client import StatefulClient
from coprefl_flwr.data.samples import Dataset
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.learning.diagnostics import HESSIAN_SAMPLES, POINTS
from coprefl_flwr.models.backbones import Backbone
from coprefl_flwr.models.precision import FLOAT32
from coprefl_flwr.rounds import RoundStrategy, Work
from coprefl_flwr.studies.budgets import works
from coprefl_flwr.studies.personalised import PersonalStage, adam
from coprefl_flwr.studies.phases import Phase
from coprefl_flwr.studies.populations import PRETRAINING, ClientData, Populations
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.start_loss import StartLoss
from coprefl_flwr.studies.tasks import Diagnosis, Task

HESSIAN_PRODUCTS = 30
"""Products with the Hessian of a diagnosis: about as many as its search for the eigenvalue has."""

ROUND_BYTES, ROW_BYTES, ABOUT_BYTES = 400, 150, 6000
"""About what a round and a client's row take in a result, and what says how a model was made."""


@dataclass(frozen=True)
class Effort:
    """How much of everything; two add up, and an effort can be taken several times."""

    steps: float = 0.0  # of SGD or Adam
    gradients: float = 0.0  # of one sample's loss
    forwards: float = 0.0  # outputs of one sample without a gradient
    answers: float = 0.0  # of a client to a message
    rounds: float = 0.0
    models: float = 0.0  # that are kept
    bytes: float = 0.0  # that are kept besides

    def __add__(self, other: "Effort") -> "Effort":
        each = [getattr(self, one.name) + getattr(other, one.name) for one in fields(self)]
        return Effort(*each)

    def __mul__(self, factor: float) -> "Effort":
        return Effort(*(getattr(self, one.name) * factor for one in fields(self)))


@dataclass(frozen=True)
class Engine:
    """What computes: a sample takes the same time in all stages with an equal one.

    `network` makes it, `source` is the dataset of its inputs, None for vectors; `batch` are the
    samples of a step, and 0 where nothing is trained.
    """

    model: str
    norm: str
    shape: tuple[int, ...]
    batch: int
    adam: bool
    precision: str
    network: Callable[[], nn.Module] = field(compare=False, repr=False)
    source: Dataset | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The model and what it is given, as people are told of it."""
        trained = f", batches of {self.batch}" if self.batch else ""
        of = plugins.portable(self.model)
        numbers = "" if self.precision == FLOAT32 else f", {self.precision}"
        return f"{of}, {'x'.join(map(str, self.shape))}{trained}{numbers}"


def engine_of(stage: Stage) -> Engine:
    """Return what a stage computes with."""
    if isinstance(stage, PersonalStage):
        study, training = stage.study, stage.of.training
        shape, norm = study.data.input_shape, study.personal.head_norm or "batch"
        kind = stage.of.method.strategy_class.network
        model = study.model.model if study.personal.from_scratch else f"a {kind} head"

        def head() -> nn.Module:
            return study.network(stage.method).module

        source = study.data.domains[0].images if study.personal.from_scratch else None
        size, numbers = training.samples_per_step, training.precision
        return Engine(model, norm, shape, size, True, numbers, head, source)
    made = _start_of(stage)
    about = made.study
    training = made.phases[0].training if made.phases else about.task_phase.training
    size, numbers = training.samples_per_step, training.precision
    held = about.populations.datasets.pretraining
    model, norm = about.model.model, about.model.norm
    return Engine(model, norm, held.shape, size, False, numbers, about.network, held)


def _start_of(stage: Stage) -> Pretraining:
    if isinstance(stage, Pretraining):
        return stage
    assert isinstance(stage, Task | Diagnosis | StartLoss)
    return stage.of.made if isinstance(stage, Diagnosis) else stage.made


@functools.singledispatch
def effort(stage: Stage) -> Effort:
    """Return what a stage takes; nan where a method does not say what it computes."""
    raise TypeError(f"{type(stage).__name__} is no stage that is known")


@effort.register
def _(stage: Pretraining) -> Effort:
    kept = Effort(models=1, bytes=ABOUT_BYTES + ROUND_BYTES * stage.rounds)
    parts = [
        _round(phase, made, work) * phase.training.rounds for phase, made, work in works(stage)
    ]
    forwards = 0.0
    if stage.phases and stage.study.data.test_every:
        times = _times(stage.rounds, stage.study.data.test_every)
        forwards += times * _tested(stage.study.populations)
    if stage.phases and stage.run.stop_at_loss is not None:
        forwards += _times(stage.rounds, stage.run.stop_check_every) * _held_by_clients(stage)
    return sum(parts, kept + Effort(forwards=forwards))


@effort.register
def _(stage: Task) -> Effort:
    study, rounds = stage.study, stage.study.tasks.task_rounds
    clients = study.populations.population(stage.population).clients
    found = _round_of_all(study.task_phase, study.task_phase.training, clients) * rounds
    if study.head_phase:
        held = sum(len(client.train) for client in clients)
        found += Effort(forwards=held, answers=len(clients), rounds=1)
    every = study.tasks.task_evaluate_every or stage.rounds
    found += _evaluated(clients) * _times(stage.rounds, every)
    return found + Effort(bytes=ROUND_BYTES * stage.rounds + ROW_BYTES * len(clients))


@effort.register
def _(stage: Diagnosis) -> Effort:
    task = stage.of
    clients = task.study.populations.population(task.population).clients
    work = Work(len(clients), [len(one.train) for one in clients], task.study.task_phase.training)
    held, tested = sum(work.sizes), sum(len(one.test or ()) for one in clients)
    products = 3 * HESSIAN_PRODUCTS * min(held, HESSIAN_SAMPLES)
    return Effort(
        steps=work.participants * work.mean(work.training.steps),
        gradients=work.participants * work.visited + held + products,
        forwards=2 * POINTS * (held - held / len(clients)) + held + tested,
        bytes=ROUND_BYTES,
    )


@effort.register
def _(stage: StartLoss) -> Effort:
    return Effort(forwards=_held_by_clients(stage.made), bytes=ROUND_BYTES)


@effort.register
def _(stage: PersonalStage) -> Effort:
    clients = stage.study.data.images
    found = _round_of_all(stage.of, adam(stage.of.training), clients) * stage.rounds
    found += _evaluated(clients) * _times(stage.rounds, stage.study.test_every or stage.rounds)
    stateful = issubclass(stage.of.method.client_class, StatefulClient)
    written = ABOUT_BYTES + ROUND_BYTES * stage.rounds + ROW_BYTES * len(clients)
    return found + Effort(models=1 + stateful * len(clients), bytes=written)


def features(stage: PersonalStage) -> tuple[Engine, Effort]:
    """Return what makes the features that a personalised stage trains on, and what they take.

    They are made once for all stages with the same `features()`; pixels are only kept.
    """
    data = stage.study.data
    held = [len(client.train) + len(client.test or ()) for client in data.images]
    kept = Effort(bytes=4 * sum(held) * math.prod(data.input_shape))
    source, networks = data.domains[0].images, data.networks
    if not networks:
        return engine_of(stage), kept
    of, shape = data.settings.backbones, source.shape
    every = Engine(of, "", shape, 0, False, data.precision, lambda: Each(networks), source)
    return every, kept + Effort(forwards=sum(held))


class Each(nn.Module):
    """Several backbones as one network."""

    def __init__(self, backbones: Sequence[Backbone]) -> None:
        super().__init__()
        self.backbones = backbones

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of all of them, (b, size)."""
        return torch.cat([one.features(images) for one in self.backbones], dim=1)


# ---- parts of it ---------------------------------------------------------------------------------


def _round(phase: Phase, strategy: RoundStrategy, work: Work) -> Effort:
    """Return what a round of a method takes, evaluations aside."""
    budget, samples = strategy.budget(work), strategy.samples_clients
    fraction, own = work.options.get("support-fraction"), work.options.get("local-steps")
    if not samples and strategy.server_data:  # Its work is at the server.
        work = Work(1, [len(strategy.server)], work.training)  # type: ignore[attr-defined]
    elif fraction and strategy.local_training:
        work = work.on_part(fraction)
    steps = work.participants * (own or work.mean(work.training.steps))
    # To read and to write a client's state takes about as long as an answer.
    each = len(strategy.actions) + issubclass(phase.method.client_class, StatefulClient)
    answers = work.participants * each * samples
    found = Effort(steps, budget.gradients, budget.forwards, answers, rounds=1)
    refined = int(work.options.get("server-steps") or 0)
    return found + Effort(steps=refined)


def _round_of_all(phase: Phase, training: LocalTraining, clients: Sequence[ClientData]) -> Effort:
    """Return what a round takes in which all clients take part, evaluations aside."""
    sizes = [len(client.train) for client in clients]
    strategy = phase.method.strategy(phase.options, training)
    return _round(phase, strategy, Work(len(clients), sizes, training, phase.options))


def _evaluated(clients: Sequence[ClientData]) -> Effort:
    """Return what an evaluation of all clients takes."""
    tested = sum(len(client.test or ()) for client in clients)
    return Effort(forwards=tested, answers=len(clients))


def _times(rounds: int, every: int) -> int:
    """Return how often something is due that is so every few rounds, and after the last."""
    return math.ceil(rounds / every) if rounds else 0


@functools.lru_cache(maxsize=8)
def _tested(populations: Populations) -> int:
    return len(populations.test_samples())


def _held_by_clients(made: Pretraining) -> int:
    clients = made.study.populations.population(PRETRAINING).clients
    return sum(len(client.train) for client in clients)
