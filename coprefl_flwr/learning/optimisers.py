"""The optimisers of local training: the classes of `torch.optim`, by name."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from coprefl_flwr.errors import SettingsError, one_line, unknown
from coprefl_flwr.named import Choice, Value, parsed

SGD_RATE = 0.05
"""Default learning rate of SGD, which trains small networks in some tens of rounds. The default of
another optimiser is that of `torch.optim`. The recipes set the papers' rates."""

REFUSED = {
    "lbfgs": "a step of it computes the loss several times",
    "sparseadam": "it needs sparse gradients",
}
CLASSES: dict[str, Callable[..., Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}


@dataclass(frozen=True)
class Optimiser(Choice):
    """An optimiser of `torch.optim` by its name in lower case, with the options of its class.

    The learning rate is no option: it is the setting `learning-rate`. Several numbers, such as the
    betas of Adam, are separated by `&`. A SettingsError for an unknown name or option, for a value
    that the class refuses, and for a class that does not step on a gradient alone.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.lower())
        if problem := REFUSED.get(self.name):
            raise SettingsError(f"optimiser = {self.name}: {problem}; use another", "optimiser")
        if self.name not in CLASSES:
            usable = CLASSES.keys() - REFUSED
            raise SettingsError(unknown("optimiser", self.name, sorted(usable)), "optimiser")
        known = [name.replace("_", "-") for name in self._arguments if name not in ("params", "lr")]
        for key, _ in self.options:
            if key.replace("_", "-") not in known:
                problem = "set learning-rate" if key == "lr" else unknown("option", key, known)
                raise SettingsError(f"optimiser = {self.name}: {problem}", "optimiser")
        self.new([nn.Parameter(torch.zeros(1, 1))], 0.1)

    @property
    def _arguments(self) -> dict[str, inspect.Parameter]:
        """The arguments of the class by name."""
        return dict(inspect.signature(CLASSES[self.name]).parameters)

    @property
    def rate(self) -> float:
        """The default learning rate."""
        return SGD_RATE if self.name == "sgd" else float(self._arguments["lr"].default)

    def sets(self, key: str) -> bool:
        """Return whether an option follows the name of the optimiser."""
        return key in (name.replace("_", "-") for name, _ in self.options)

    def new(self, weights: Iterable[nn.Parameter], rate: float, **others: Any) -> Optimizer:
        """Return a new optimiser of the weights; `others` are further arguments of the class.

        Raises a SettingsError if the class refuses the weights or a value.
        """
        own = {key.replace("-", "_"): _argument(value) for key, value in self.options}
        try:
            return CLASSES[self.name](weights, lr=rate, **own, **others)
        except Exception as error:  # Which exceptions they are depends on the class.
            raise SettingsError(f"optimiser = {self}: {one_line(error)}", "optimiser") from error


SGD, ADAM = Optimiser("sgd"), Optimiser("adam")


def _argument(value: Value) -> Any:
    """Return an option's value as an argument: a number also if YAML read a text, as 1e-6."""
    if not isinstance(value, str):
        return value
    numbers = tuple(map(parsed, value.split("&")))
    return numbers if len(numbers) > 1 else numbers[0]
