"""Local training of a client: SGD or Adam steps on its samples."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coprefl_flwr import seeds
from coprefl_flwr.data import Samples, batch_slices
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.loss import CROSS_ENTROPY, Loss
from coprefl_flwr.learning.module_state import has_users_code
from coprefl_flwr.models.frozen import train_mode
from coprefl_flwr.models.precision import FLOAT32, PRECISIONS, computing
from coprefl_flwr.options import check_declared, option

BATCH_SIZE = 32
"""Default number of samples per step."""

SGD, ADAM = "sgd", "adam"
SGD_RATE, ADAM_RATE = 0.05, 1e-3
"""Default learning rates of SGD and of Adam. The rate of SGD trains small networks in some tens of
rounds. The rate of Adam is from FedPCL (section 5.1). The recipes set the papers' rates."""

Objective = Callable[[Tensor, Tensor], Tensor]
"""A loss that local training minimises: a function of the inputs and targets of a batch."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """The options of a client's local training.

    At most one of `local_steps` and `local_epochs` is set. If neither is set, a client takes 5
    steps. In each round that a client takes part in, its training starts with a new optimiser:
    `torch.optim.SGD`, or `torch.optim.Adam` if `algorithm` is "adam", as in FedPCL's experiments.
    With Adam, `momentum` must be 0.
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
    max_local_steps: int | None = option(
        None,
        "upper limit on the SGD steps of a client in a round, also with `local-epochs`",
        unit="steps",
        minimum=1,
    )
    batch_size: int | None = option(
        None,
        "samples per SGD step, also in the tasks; not set: 32, or 64 for centralised training",
        unit="samples",
        minimum=1,
    )
    learning_rate: float | None = option(
        None, f"local learning rate eta; not set: {SGD_RATE} (personalised: {ADAM_RATE})", above=0
    )
    learning_rate_decay: float = option(
        1.0, "factor on the learning rate after each round", above=0, maximum=1
    )
    momentum: float = option(0.0, "momentum of local SGD", minimum=0, maximum=0.9999)
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
        "the loss: `cross-entropy` of classes; or a function of (outputs, targets) that returns "
        "the mean over the batch, or a class of losses with its arguments, as module:NAME",
        later=True,
    )
    algorithm: str = field(default=SGD, metadata={"option": False})

    def __post_init__(self) -> None:
        """Raise a SettingsError if an option has a value that is not allowed.

        Steps and epochs cannot both be set. Adam cannot be combined with a momentum.
        """
        check_declared(self)
        if self.local_steps is not None and self.local_epochs is not None:
            both = f"local-steps = {self.local_steps} and local-epochs = {self.local_epochs}"
            raise SettingsError(f"{both}: set one of them, not both")
        if self.algorithm == ADAM and self.momentum:
            raise SettingsError(f"momentum = {self.momentum}: Adam uses its own momentum; set 0")

    @property
    def samples_per_step(self) -> int:
        """Number of samples per step: `batch_size`, or the default."""
        return self.batch_size or BATCH_SIZE

    def schedule(self, n: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the sample indices of one batch per step; each epoch has a new random order."""
        return itertools.islice(endless_batches(n, self.samples_per_step, rng), self.steps(n))

    def steps(self, n: int) -> int:
        """Return the number of steps that a client with n samples takes in a round."""
        steps = 5 if self.local_steps is None else self.local_steps
        if self.local_epochs is not None:
            steps = self.local_epochs * len(batch_slices(n, self.samples_per_step))
        return steps if self.max_local_steps is None else min(steps, self.max_local_steps)

    def step_sum(self, n: int) -> float:
        """Return the distance that SGD moves on n samples if the gradient is constant with norm 1.

        The unit is the learning rate. Without momentum the distance is the number of steps. With
        momentum m, step k moves by 1 + m + ... + m^(k-1).
        """
        return float(np.cumsum(self.momentum ** np.arange(self.steps(n))).sum())

    def batch_sizes(self, n: int, count: int) -> list[int]:
        """Return the sizes of the first `count` batches; each epoch has n samples."""
        epoch = [part.stop - part.start for part in batch_slices(n, self.samples_per_step)]
        return list(itertools.islice(itertools.cycle(epoch), count))

    def rate(self, server_round: int) -> float:
        """Return the learning rate in round `server_round`; rounds are counted from 1."""
        default = ADAM_RATE if self.algorithm == ADAM else SGD_RATE
        rate = default if self.learning_rate is None else self.learning_rate
        return rate * self.learning_rate_decay ** (server_round - 1)

    def clip(self, model: nn.Module) -> None:
        """Clip the model's gradients to the l2 norm `clip_norm`, if `clip_norm` is set."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(_trained(model), self.clip_norm)

    def optimiser(self, model: nn.Module, server_round: int) -> torch.optim.Optimizer:
        """Return a new optimiser of the model's trainable weights for round `server_round`."""
        weights, rate = _trained(model), self.rate(server_round)
        if self.algorithm == ADAM:
            decay = 1e-4 if self.weight_decay is None else self.weight_decay
            return torch.optim.Adam(weights, lr=rate, weight_decay=decay)
        decay = self.weight_decay or 0.0
        return torch.optim.SGD(weights, lr=rate, momentum=self.momentum, weight_decay=decay)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


class PlainSGD:
    """A faster `torch.optim.SGD` without momentum and weight decay, with bit-identical steps.

    For a small network, `step` and `zero_grad` of `torch.optim.SGD` take several times as long,
    because they also serve hooks and profilers.
    """

    def __init__(self, weights: list[nn.Parameter], rate: float) -> None:
        self.weights, self.rate = weights, rate

    def zero_grad(self) -> None:
        """Set the gradients of all weights to None."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Subtract the learning rate times the gradient from each weight."""
        for weight in self.weights:
            if weight.grad is not None:
                weight.add_(weight.grad, alpha=-self.rate)


def fast_optimiser(
    training: LocalTraining, model: nn.Module, server_round: int
) -> torch.optim.Optimizer | PlainSGD:
    """Return a new optimiser for a round: `PlainSGD` if it takes the same steps and is faster.

    On a GPU, torch's optimiser is kept, because it updates all weights at once. The optimiser of a
    subclass of `LocalTraining` is also kept.
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
    optimiser, losses = fast_optimiser(training, model, server_round), []
    with computing(model, training.precision):
        for positions in training.schedule(len(samples), rng):
            inputs, targets = samples.batch(positions, device)
            optimiser.zero_grad()
            if objective is None:
                loss = training.loss(model(inputs), targets)
            else:
                loss = objective(inputs, targets)
            torch.autograd.backward(loss)
            if correct is not None:
                correct()
            training.clip(model)
            optimiser.step()
            losses.append(loss.detach())
    optimiser.zero_grad()  # Frees the memory of the gradients.
    if len(losses) == 1:  # Its own mean; the operations below take 4 % of a small client's time.
        return float(losses[0])
    return float(torch.stack(losses).mean()) if losses else 0.0
