"""Local training: how a client takes SGD or Adam steps on its samples."""

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coprefl_flwr import seeds
from coprefl_flwr.data import Samples, batch_slices
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models.precision import FLOAT32, PRECISIONS, computing
from coprefl_flwr.options import check_declared, option

BATCH_SIZE = 32
"""Samples per step where nobody says otherwise."""

SGD, ADAM = "sgd", "adam"
SGD_RATE, ADAM_RATE = 0.05, 1e-3
"""Learning rates where nobody says otherwise. The first trains small networks in some tens of
rounds; the papers' own are in the recipes. The second is FedPCL's (section 5.1)."""

Objective = Callable[[Tensor, Tensor], Tensor]
"""The loss that local training minimises, of a batch (inputs, targets)."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains. Exactly one of `local_steps` and `local_epochs`; neither is 5 steps.

    Each participation starts with a fresh optimiser of torch: `SGD`, or with the `algorithm` "adam"
    `Adam`, as FedPCL's experiments have it; `momentum` must then stay 0.
    """

    local_steps: int | None = option(
        None,
        "SGD steps of a client in a round; not set: 5, unless `local-epochs` is set",
        unit="steps",
        minimum=0,
    )
    local_epochs: int | None = option(
        None, "passes of a client over its data in a round", unit="epochs", minimum=0
    )
    max_steps: int | None = option(
        None,
        "at most this many SGD steps of a client in a round, where epochs would take more",
        unit="steps",
        minimum=1,
        key="max-local-steps",
    )
    batch_size: int | None = option(
        None,
        "samples per SGD step, also in the tasks; not set: 32, or 64 for centralised training",
        unit="samples",
        minimum=1,
    )
    learning_rate: float | None = option(
        None, f"local learning rate eta; not set: {SGD_RATE}, or {ADAM_RATE} with Adam", above=0
    )
    learning_rate_decay: float = option(
        1.0, "factor on the learning rate after each round", above=0, maximum=1
    )
    momentum: float = option(
        0.0,
        "momentum of local SGD",
        minimum=0,
        maximum=0.9999,
        starts_only="a personalised study trains by Adam",
    )
    weight_decay: float | None = option(
        None, "weight decay of local training; not set: 0, or 1e-4 with Adam", minimum=0
    )
    clip_norm: float | None = option(
        None,
        "gradients are clipped to this l2 norm over all parameters; not set: no clipping",
        above=0,
    )
    precision: str = option(
        FLOAT32,
        "number format of the network's computations, in tasks too: `float32`, `bf16` (torch's "
        "autocast; weights and losses stay float32, sums over clients float64), `tf32` (on a GPU "
        "that has it)",
        choices=PRECISIONS,
    )
    algorithm: str = field(default=SGD, metadata={"option": False})

    def __post_init__(self) -> None:
        """Check the options; steps and epochs cannot both be set, nor Adam and a momentum."""
        check_declared(self)
        if self.local_steps is not None and self.local_epochs is not None:
            both = f"local_steps = {self.local_steps} and local_epochs = {self.local_epochs}"
            raise SettingsError(f"{both}: set one of them, not both")
        if self.algorithm == ADAM and self.momentum:
            raise SettingsError(f"momentum = {self.momentum}: Adam has its own, leave it 0")

    @property
    def samples_per_step(self) -> int:
        """The batch size."""
        return self.batch_size or BATCH_SIZE

    def schedule(self, n: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the positions of one batch a step, each epoch in a new random order."""
        return itertools.islice(endless_batches(n, self.samples_per_step, rng), self.steps(n))

    def steps(self, n: int) -> int:
        """Return how many SGD steps a participation takes on n samples."""
        steps = 5 if self.local_steps is None else self.local_steps
        if self.local_epochs is not None:
            steps = self.local_epochs * len(batch_slices(n, self.samples_per_step))
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def travel(self, n: int) -> float:
        """Return how far these steps go along a gradient of length 1, in learning rates.

        Without momentum it is their number; with momentum m, step k moves by 1 + m + ... + m^(k-1).
        """
        return float(np.cumsum(self.momentum ** np.arange(self.steps(n))).sum())

    def batch_sizes(self, n: int, count: int) -> list[int]:
        """Return the sizes of the first `count` batches of n samples, epoch after epoch."""
        epoch = [part.stop - part.start for part in batch_slices(n, self.samples_per_step)]
        return list(itertools.islice(itertools.cycle(epoch), count))

    def rate(self, server_round: int) -> float:
        """Return the learning rate of round `server_round`, counted from 1."""
        default = ADAM_RATE if self.algorithm == ADAM else SGD_RATE
        rate = default if self.learning_rate is None else self.learning_rate
        return rate * self.learning_rate_decay ** (server_round - 1)

    def clip(self, model: nn.Module) -> None:
        """Scale the gradients down to the largest norm, if one is set."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(_trained(model), self.clip_norm)

    def optimiser(self, model: nn.Module, server_round: int) -> torch.optim.Optimizer:
        """Return a fresh optimiser for round `server_round`."""
        weights, rate = _trained(model), self.rate(server_round)
        if self.algorithm == ADAM:
            decay = 1e-4 if self.weight_decay is None else self.weight_decay
            return torch.optim.Adam(weights, lr=rate, weight_decay=decay)
        decay = self.weight_decay or 0.0
        return torch.optim.SGD(weights, lr=rate, momentum=self.momentum, weight_decay=decay)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


class PlainSGD:
    """The steps of `torch.optim.SGD` without momentum and weight decay, number for number.

    For a small network torch's own `step` and `zero_grad` take several times as long in what they
    do for hooks and profilers.
    """

    def __init__(self, weights: list[nn.Parameter], rate: float) -> None:
        self.weights, self.rate = weights, rate

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradients."""
        for weight in self.weights:
            if weight.grad is not None:
                weight.add_(weight.grad, alpha=-self.rate)


def fast_optimiser(
    training: LocalTraining, model: nn.Module, server_round: int
) -> torch.optim.Optimizer | PlainSGD:
    """Return a fresh optimiser for a round, `PlainSGD` where it takes the same steps.

    On a GPU torch's own takes the steps of all weights at once.
    """
    weights = _trained(model)
    plain = training.algorithm == SGD and not training.momentum and not training.weight_decay
    users = type(training).optimiser is not LocalTraining.optimiser
    if plain and not users and weights and all(w.device.type == "cpu" for w in weights):
        return PlainSGD(weights, training.rate(server_round))
    return training.optimiser(model, server_round)


def endless_batches(
    n: int, batch_size: int, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the positions of one batch after the other, each epoch in a new random order.

    An epoch is cut as `batch_slices` says.
    """
    if n == 0:
        raise ValueError("no samples to train on")
    orders = (rng.permutation(n) for _ in itertools.count())
    return (order[part] for order in orders for part in batch_slices(n, batch_size))


@functools.cache
def _sees_gpu() -> bool:
    """Return whether the process sees a GPU; torch takes long to find out, every time."""
    return torch.cuda.is_available()


@contextmanager
def torch_seeded(*key: str | int) -> Iterator[None]:
    """Fork torch's global generator (dropout draws from it) and seed it from `key` inside."""
    devices = [torch.cuda.current_device()] if _sees_gpu() else []
    seed = seeds.integer(*key)
    with torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed: it would also seed GPUs that are not forked here, and without one
        # it formats a stack trace for each kind, which took 5% of a small client's time.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed(seed)
        yield


def local_sgd(
    model: nn.Module,
    samples: Samples,
    training: LocalTraining,
    *,
    server_round: int,
    rng: np.random.Generator,
    device: torch.device,
    objective: Objective | None = None,
    correct: Callable[[], None] | None = None,
) -> float:
    """Train `model` in place by SGD and return the mean loss of the steps' batches.

    Algorithm 1 lines 7 and 8: Phi_j <- Phi_j - eta grad L_S(Phi_j). `objective` is minimised, the
    cross-entropy of the model's outputs if there is none; `correct` is called before every step,
    and may change the gradients (a proximal term, a control variate).
    """
    model.train()
    optimiser = fast_optimiser(training, model, server_round)
    losses = []
    with computing(model, training.precision):
        for positions in training.schedule(len(samples), rng):
            inputs, targets = samples.batch(positions, device)
            optimiser.zero_grad()
            if objective is None:
                loss = cross_entropy(model(inputs), targets)
            else:
                loss = objective(inputs, targets)
            torch.autograd.backward(loss)
            if correct is not None:
                correct()
            training.clip(model)
            optimiser.step()
            losses.append(loss.detach())
    optimiser.zero_grad()  # A model's memory, which nobody needs any more.
    return float(torch.stack(losses).mean()) if losses else 0.0
