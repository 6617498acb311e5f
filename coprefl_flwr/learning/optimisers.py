"""The optimisers of local training, by name, and schedules of their learning rates."""

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from coprefl_flwr.errors import SettingsError, check_name, prefixed
from coprefl_flwr.named import Choice

SGD_RATE = 0.05
"""Default learning rate of SGD, which trains small networks in some tens of rounds. The default of
another optimiser is that of `torch.optim`. The recipes set the papers' rates."""

# A step of LBFGS computes the loss several times, and SparseAdam needs sparse gradients.
CLASSES: dict[str, Callable[..., Any]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and name not in ("Optimizer", "LBFGS", "SparseAdam")
}


@dataclass(frozen=True)
class Optimiser(Choice):
    """An optimiser of `torch.optim` by its name in lower case, with the options of its class.

    The learning rate is no option: it is the setting `learning-rate`. Several numbers, such as the
    betas of Adam, are separated by `&`. Raises a SettingsError for an unknown name.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.lower())
        check_name("optimiser", self.name, CLASSES, "", "optimiser")

    @property
    def rate(self) -> float:
        """The default learning rate."""
        default = inspect.signature(CLASSES[self.name]).parameters["lr"].default
        return SGD_RATE if self.name == "sgd" else float(default)

    def new(self, weights: Iterable[nn.Parameter], rate: float, **others: float) -> Optimizer:
        """Return a new optimiser of the weights; `others` are further arguments of the class.

        Raises a SettingsError if the class refuses the weights, an option or a value.
        """
        arguments = {"lr": rate, **others}
        with prefixed(f"optimiser = {self}", "optimiser", of=Exception):  # As the class raises.
            optimiser: Optimizer = CLASSES[self.name](weights, **self.arguments, **arguments)
        return optimiser


SGD, ADAM = Optimiser("sgd"), Optimiser("adam")


# ---- schedules of the learning rate --------------------------------------------------------------

ROUNDS, STEPS = "rounds", "steps"


def constant(_: int) -> float:
    """Return 1."""
    return 1.0


def exponential(t: int, factor: float) -> float:
    """Return factor^t."""
    return factor**t


def step(t: int, factor: float, every: int) -> float:
    """Return factor^floor(t / every)."""
    return factor ** (t // every)


def cosine(t: int, length: int, last: float = 0.0) -> float:
    """Return half a cosine, from 1 at t = 0 to `last` at t = length and later."""
    return last + (1 - last) * (1 + math.cos(math.pi * min(t / length, 1))) / 2


def linear(t: int, length: int, last: float = 0.0) -> float:
    """Return a number that falls by equal steps from 1 at t = 0 to `last` at t = length."""
    return 1 - (1 - last) * min(t / length, 1)


SCHEDULES: dict[str, Callable[..., float]] = {
    kind.__name__: kind for kind in (constant, exponential, step, cosine, linear)
}


@dataclass(frozen=True)
class RateSchedule(Choice):
    """A schedule of the learning rate by its name, with options.

    The rate is `learning-rate` times a factor, a function of t = 0, 1, ... The names and options
    are those of the functions above. All of them have two more options. `over` says what t
    counts: the `rounds` of all phases, or the local `steps` in each round. With a `warm-up` of W
    the factor is multiplied by min((t + 1) / W, 1). The `length` of `cosine` and `linear`
    over steps is the number of steps, unless it is set. Raises a SettingsError for an unknown name
    or option, a missing option, and a factor outside 0 to 1.
    """

    def __post_init__(self) -> None:
        check_name("schedule", self.name, SCHEDULES, "", "schedule")
        # Such as a TypeError for a missing or unknown option.
        with prefixed(f"schedule = {self}", "schedule", of=Exception):
            factor = self.factor(999, 999)
        if not 0 <= factor <= 1 or self.arguments.get("over", ROUNDS) not in (ROUNDS, STEPS):
            needed = f"factors between 0 and 1 are needed, over {ROUNDS} or {STEPS}"
            raise SettingsError(f"schedule = {self}: {needed}", "schedule")

    @property
    def over_steps(self) -> bool:
        """Whether t counts local steps, not rounds."""
        return bool(self.arguments.get("over") == STEPS)

    def factor(self, t: int, steps: int = 0) -> float:
        """Return the factor in a round or local step t, counted from 0, of `steps` local steps."""
        own = {"warm_up": 0, **self.arguments}
        own.pop("over", None)
        if self.over_steps and self.name in ("cosine", "linear"):
            own.setdefault("length", steps)
        warm: float = min((t + 1) / max(own.pop("warm_up"), 1), 1.0)
        return warm * SCHEDULES[self.name](t, **own)


CONSTANT = RateSchedule("constant")
