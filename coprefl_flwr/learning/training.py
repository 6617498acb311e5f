"""Local training of a client: steps of an optimiser on its samples."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coprefl_flwr import seeds
from coprefl_flwr.data.dataset import Samples, batch_slices
from coprefl_flwr.data.inputs import Inputs
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.augmentation import Augmentation
from coprefl_flwr.learning.loss import CROSS_ENTROPY, Loss
from coprefl_flwr.learning.module_state import has_users_code
from coprefl_flwr.learning.optimisers import ADAM, CONSTANT, SGD, SGD_RATE, Optimiser, RateSchedule
from coprefl_flwr.models.frozen import train_mode
from coprefl_flwr.models.precision import FLOAT32, PRECISIONS, computing
from coprefl_flwr.options import check_declared, option

BATCH_SIZE = 32
"""Default number of samples per step."""

Objective = Callable[[Inputs, Tensor], Tensor]
"""A loss that local training minimises: a function of the inputs and targets of a batch."""

Batch = tuple[Inputs, Tensor]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The options of a client's local training.

    At most one of `local_steps` and `local_epochs` is set. If neither is set, a client takes 5
    steps. In each round that a client takes part in, its training starts with a new optimiser.
    """

    local_steps: int | None = option(
        None,
        "steps of a client in a round; not set: 5, unless `local-epochs` is set",
        unit="steps",
        minimum=0,
    )
    local_epochs: int | None = option(
        None, "passes of a client over its data in a round", unit="epochs", minimum=0
    )
    max_local_steps: int | None = option(
        None,
        "upper limit on the steps of a client in a round, also with `local-epochs`",
        unit="steps",
        minimum=1,
    )
    batch_size: int | None = option(
        None,
        "samples per batch, also in the tasks; not set: 32, or 64 for centralised training",
        unit="samples",
        minimum=1,
    )
    learning_rate: float | None = option(
        None, f"local learning rate eta; not set: {SGD_RATE} (personalised: {ADAM.rate})", above=0
    )
    momentum: float = option(0.0, "momentum of the optimiser", minimum=0, maximum=0.9999)
    weight_decay: float | None = option(
        None, "weight decay of local training; not set: 0 (personalised: 1e-4)", minimum=0
    )
    clip_norm: float | None = option(
        None,
        "gradients are clipped to this l2 norm over all parameters; not set: no clipping",
        above=0,
    )
    precision: str = option(
        FLOAT32,
        "number format of the network's computations, in tasks too: `float32`, `bf16` (torch's "
        "autocast; weights and losses stay float32, sums over clients float64)",
        choices=PRECISIONS,
    )
    loss: Loss = option(
        CROSS_ENTROPY,
        "the loss: `cross-entropy` of classes; `next-token` of a causal language model; or a "
        "function of (outputs, targets) that returns the mean over the batch, or a class of losses "
        "with its arguments, as module:NAME",
        later=True,
    )
    optimiser: Optimiser | None = option(
        None,
        "optimiser, as in `adamw:betas=0.9&0.95`; not set: `sgd` (personalised: `adam`)",
        later=True,
    )
    schedule: RateSchedule = option(
        CONSTANT, "schedule of the learning rate, as in `cosine:length=50,warm-up=5`", later=True
    )
    accumulation: int = option(
        1, "batches of a step, also in the tasks", unit="batches", minimum=1, later=True
    )
    augment: Augmentation | None = option(
        None, "function of training inputs, also in the tasks, as module:NAME", later=True
    )
    together: int | None = option(
        None,
        "largest number of clients that a process computes as one, for small networks and plain "
        "SGD; 1: one after another; not set: 64 where it pays, or else 1",
        unit="clients",
        minimum=1,
        later=True,
    )

    def __post_init__(self) -> None:
        """Raise a SettingsError if an option has a value that is not allowed.

        Steps and epochs cannot both be set.
        """
        check_declared(self)
        if self.local_steps is not None and self.local_epochs is not None:
            both = f"local-steps = {self.local_steps} and local-epochs = {self.local_epochs}"
            raise SettingsError(f"{both}: set one of them, not both")

    def check(self, network: nn.Module, samples: Samples) -> None:
        """Raise a SettingsError if the loss, the optimiser or the augmentation does not fit."""
        self.loss.check(network, samples)
        if trained_weights(network):
            self.new_optimiser(network, 1)
        if self.augment is not None:
            self.augment.check(samples.batch(slice(2), torch.device("cpu"))[0])

    @property
    def chosen_optimiser(self) -> Optimiser:
        """The optimiser; SGD if it is not set."""
        return self.optimiser or SGD

    @property
    def samples_per_step(self) -> int:
        """Number of samples per step: `batch_size`, or the default."""
        return self.batch_size or BATCH_SIZE

    def steps(self, n: int) -> int:
        """Return the number of steps that a client with n samples takes in a round."""
        steps = 5 if self.local_steps is None else self.local_steps
        if self.local_epochs is not None:
            batches = self.local_epochs * len(batch_slices(n, self.samples_per_step))
            steps = math.ceil(batches / self.accumulation)
        return steps if self.max_local_steps is None else min(steps, self.max_local_steps)

    def check_sgd(self, why: str, *, clipped: bool = True) -> None:
        """Raise a SettingsError unless the steps are those of SGD, at one rate in each round.

        If `clipped` is False, the gradients must not be clipped either.
        """
        if self.chosen_optimiser != SGD or self.schedule.over_steps:
            both = f"optimiser = {self.chosen_optimiser} and schedule = {self.schedule}"
            raise SettingsError(f"{both}: {why}; use sgd, at one rate in a round", "optimiser")
        if self.clip_norm is not None and not clipped:
            raise SettingsError(f"clip-norm = {self.clip_norm:g}: {why}; do not clip", "clip-norm")

    def step_sum(self, n: int) -> float:
        """Return the distance that SGD moves on n samples if the gradient is constant with norm 1.

        The unit is the learning rate. Without momentum the distance is the number of steps. With
        momentum m, step k moves by 1 + m + ... + m^(k-1). For other steps it is not known: nan.
        """
        steps, over_steps = self.steps(n), self.schedule.over_steps
        sizes = np.cumsum(self.momentum ** np.arange(steps))
        rates = [self.schedule.factor(t, steps) if over_steps else 1.0 for t in range(steps)]
        return float(sizes @ rates) if self.chosen_optimiser == SGD else math.nan

    def batch_sizes(self, n: int, count: int) -> list[int]:
        """Return the sizes of the first `count` batches; each epoch has n samples."""
        epoch = [part.stop - part.start for part in batch_slices(n, self.samples_per_step)]
        return list(itertools.islice(itertools.cycle(epoch), count))

    def rate(self, server_round: int) -> float:
        """Return the learning rate in round `server_round`; rounds are counted from 1."""
        rate = self.chosen_optimiser.rate if self.learning_rate is None else self.learning_rate
        return rate * (1.0 if self.schedule.over_steps else self.schedule.factor(server_round - 1))

    def batches_of_steps(
        self,
        optimiser: "torch.optim.Optimizer | PlainSGD",
        samples: Samples,
        server_round: int,
        rng: np.random.Generator,
        device: torch.device,
        each: int | None = None,
    ) -> Iterator[list[Batch]]:
        """Yield the augmented batches of each local step; each epoch has a new random order.

        A step has `each` batches; None: `accumulation`. Before a step is yielded, its learning rate
        is set in the optimiser. The random numbers of the augmentation depend on the seed of `rng`,
        and do not change the numbers that `rng` draws.
        """
        stream = endless_batches(len(samples), self.samples_per_step, rng)
        augment = self.augment.seeded(rng, device) if self.augment else None
        rate, steps = self.rate(server_round), self.steps(len(samples))
        for t in range(steps):
            factor = self.schedule.factor(t, steps) if self.schedule.over_steps else 1.0
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            positions = itertools.islice(stream, each or self.accumulation)
            batches = [samples.batch(rows, device) for rows in positions]
            yield [(augment(inputs), labels) for inputs, labels in batches] if augment else batches

    def clip(self, model: nn.Module) -> None:
        """Clip the model's gradients to the l2 norm `clip_norm`, if `clip_norm` is set."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(trained_weights(model), self.clip_norm)

    def new_optimiser(
        self, model: nn.Module, server_round: int
    ) -> "torch.optim.Optimizer | PlainSGD":
        """Return a new optimiser of the model's trainable weights for round `server_round`.

        It is `PlainSGD` if that takes the same steps and is faster. On a GPU, torch's optimiser is
        kept, because it updates all weights at once.
        """
        weights, rate, others = trained_weights(model), self.rate(server_round), {}
        if self.momentum:
            others["momentum"] = self.momentum
        if self.weight_decay is not None:
            others["weight_decay"] = self.weight_decay
        plain = self.chosen_optimiser == SGD and not any(others.values())
        if plain and weights and all(weight.device.type == "cpu" for weight in weights):
            return PlainSGD(weights, rate)
        return self.chosen_optimiser.new(weights, rate, **others)


def trained_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of a model."""
    return [p for p in model.parameters() if p.requires_grad]


class PlainSGD:
    """A faster `torch.optim.SGD` without momentum and weight decay, with bit-identical steps.

    For a small network, `step` and `zero_grad` of `torch.optim.SGD` take several times as long,
    because they also serve hooks and profilers.
    """

    def __init__(self, weights: list[nn.Parameter], rate: float) -> None:
        self.weights, self.param_groups = weights, [{"lr": rate}]

    def zero_grad(self) -> None:
        """Set the gradients of all weights to None."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Subtract the learning rate times the gradient from each weight."""
        (group,) = self.param_groups
        for weight in self.weights:
            if weight.grad is not None:
                weight.add_(weight.grad, alpha=-group["lr"])


def backward(batches: Sequence[Batch], objective: Objective) -> Tensor:
    """Add the gradients of the mean loss of a step's batches, and return the loss.

    Each batch counts by its number of samples.
    """
    size, losses = sum(len(targets) for _, targets in batches), []
    for inputs, targets in batches:
        loss = objective(inputs, targets)
        if len(batches) > 1:
            loss = loss * (len(targets) / size)
        torch.autograd.backward(loss)
        losses.append(loss.detach())
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def endless_batches(
    n: int, batch_size: int, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the sample indices of one batch after another, without end.

    Each epoch has a new random order of the n samples, and is split by `batch_slices`. Raises a
    ValueError if n is 0.
    """
    if n == 0:
        raise ValueError("no samples to train on")
    orders = (rng.permutation(n) for _ in itertools.count())
    return (order[part] for order in orders for part in batch_slices(n, batch_size))


@contextmanager
def torch_seeded(*key: str | int, network: nn.Module) -> Iterator[None]:
    """Return a context in which the generators that `network` draws from are seeded from `key`.

    They are torch's global generator, from which dropout draws, and those of Python and NumPy if
    layers have code of the user. After the context the generators have their former states.
    """
    # torch.random.fork_rng does the same, and takes 5 % of a small client's time. torch.manual_seed
    # would also seed GPUs whose generators are not restored here.
    generators = [torch.default_generator]
    if any(weight.is_cuda for weight in network.parameters()):
        current = torch.cuda.current_device()  # Before the next line: it makes the generators.
        generators.append(torch.cuda.default_generators[current])
    states, seed = [generator.get_state() for generator in generators], seeds.integer(*key)
    users = any(map(has_users_code, network.modules()))
    try:
        for generator in generators:
            generator.manual_seed(seed)
        with seeds.of_python_and_numpy(seed) if users else nullcontext():
            yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


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
    """Train `model` in place with the optimiser of `training`; return the mean loss of the batches.

    These are lines 7 and 8 of CoPreFL's Algorithm 1: Phi_j <- Phi_j - eta grad L_S(Phi_j). The
    loss is `objective`, or the loss of `training` if `objective` is None.
    `correct` is called before every step, and may change the gradients (to add a proximal term or a
    control variate). The result is 0.0 if no step is taken.
    """
    train_mode(model)
    optimiser, losses = training.new_optimiser(model, server_round), []
    minimised = objective or (lambda *batch: training.loss.of_batch(model, batch))
    steps = training.batches_of_steps(optimiser, samples, server_round, rng, device)
    with computing(model, training.precision):
        for batches in steps:
            optimiser.zero_grad()
            loss = backward(batches, minimised)
            if correct is not None:
                correct()
            training.clip(model)
            optimiser.step()
            losses.append(loss)
    optimiser.zero_grad()  # Frees the memory of the gradients.
    if len(losses) == 1:  # Its own mean; the operations below take 4 % of a small client's time.
        return float(losses[0])
    return float(torch.stack(losses).mean()) if losses else 0.0
