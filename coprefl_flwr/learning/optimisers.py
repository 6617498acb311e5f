"""The optimisers of local training: the classes of `torch.optim`, by name."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.named import Choice, check_choice

SGD_RATE = 0.05
"""Default learning rate of SGD, which trains small networks in some tens of rounds. The default of
another optimiser is that of `torch.optim`. The recipes set the papers' rates."""

# A step of LBFGS computes the loss several times, and SparseAdam needs sparse gradients.
CLASSES: dict[str, Callable[..., Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and name not in ("Optimizer", "LBFGS", "SparseAdam")
}


@dataclass(frozen=True)
class Optimiser(Choice):
    """An optimiser of `torch.optim` by its name in lower case, with the options of its class.

    The learning rate is no option: it is the setting `learning-rate`. Several numbers, such as the
    betas of Adam, are separated by `&`. Raises a SettingsError for an unknown name or option.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.lower())
        check_choice("optimiser", self, CLASSES)

    @property
    def rate(self) -> float:
        """The default learning rate."""
        default = inspect.signature(CLASSES[self.name]).parameters["lr"].default
        return SGD_RATE if self.name == "sgd" else float(default)

    def new(self, weights: Iterable[nn.Parameter], rate: float, **others: float) -> Optimizer:
        """Return a new optimiser of the weights; `others` are further arguments of the class.

        Raises a SettingsError if the class refuses the weights or a value.
        """
        try:
            return CLASSES[self.name](weights, lr=rate, **self.arguments, **others)
        except Exception as error:  # Which exceptions they are depends on the class.
            raise SettingsError(f"optimiser = {self}: {one_line(error)}", "optimiser") from error


SGD, ADAM = Optimiser("sgd"), Optimiser("adam")
