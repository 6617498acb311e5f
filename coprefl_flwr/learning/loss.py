"""The loss that clients minimise: a function of a network's outputs and the targets of a batch."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.data import Samples
from coprefl_flwr.data.inputs import Inputs, mapped
from coprefl_flwr.errors import SettingsError, prefixed
from coprefl_flwr.learning.evaluation import are_classes, cross_entropy_of_classes, next_token
from coprefl_flwr.learning.user_functions import UserFunction, described
from coprefl_flwr.models.outputs import outputs_of
from coprefl_flwr.models.precision import computing

BY_DEFAULT = "cross-entropy"
BUILT_IN = {BY_DEFAULT: cross_entropy_of_classes, "next-token": next_token}


@dataclass(frozen=True)
class Loss(UserFunction):
    """A loss by its name or place, such as `torch.nn.functional:mse_loss`, or as an object.

    A loss is a function of (outputs, targets) that returns the mean over the batch, a scalar. A
    place may also name a class of losses with its arguments, such as
    `torch.nn:CrossEntropyLoss:label_smoothing=0.1`; an argument of several numbers, such as the
    weights of classes, becomes a tensor. The mean over several batches weights each batch by its
    number of samples.
    """

    setting: ClassVar = "loss"
    built_in: ClassVar = tuple(BUILT_IN)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self._function_on(outputs.device)(outputs, targets)

    def of_batch(self, model: Callable[..., Any], batch: tuple[Inputs, Tensor]) -> Tensor:
        """Return the mean loss of a model on a batch (inputs, targets)."""
        inputs, targets = batch
        return self(outputs_of(model, inputs), targets)

    def summed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the loss over the samples of a batch."""
        # Exactly what torch adds up; a mean would be rounded first.
        if self.is_default and are_classes(targets):
            return cross_entropy(outputs, targets, reduction="sum")
        return self(outputs, targets) * len(targets)

    @property
    def is_default(self) -> bool:
        """Whether this is the cross-entropy of logits and integer classes."""
        return self == CROSS_ENTROPY

    @property
    def is_built_in(self) -> bool:
        """Whether this is a loss of this package, by its name."""
        return self.function is None and self.name in BUILT_IN

    def _function_on(self, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss function; a module is moved to the device."""
        function: Callable[[Tensor, Tensor], Tensor] = self.loaded
        return function.to(device) if isinstance(function, nn.Module) else function

    @functools.cached_property
    def loaded(self) -> Any:
        """The loss function; a SettingsError if the place does not exist."""
        return BUILT_IN[self.name] if self.is_built_in else super().loaded

    def check(self, network: nn.Module, samples: Samples) -> None:
        """Raise a SettingsError if the loss does not fit the network's outputs and the targets."""
        inputs, targets = samples.batch(slice(2), next(network.parameters()).device)
        if self.is_default and are_classes(targets):
            return
        if self.is_default and _copies(targets, inputs):
            problem = "the targets are the tokens of the input, which a model would only copy"
            raise SettingsError(f"loss = {self}: {problem}; set loss = next-token", "loss")
        with computing(network):
            outputs = outputs_of(network.eval(), mapped(Tensor.contiguous, inputs))
        self._function_on(outputs.device)  # Raises its own error if the place does not exist.
        both = f"loss = {self}: outputs {described(outputs)} and targets {described(targets)}"
        with prefixed(both, "loss", of=Exception), warnings.catch_warnings():
            # torch only warns of outputs (n, 1) and targets (n,), whose mean is over all pairs.
            warnings.filterwarnings("error", message="Using a target size")
            value = self(outputs, targets)
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            needed = "a scalar with a gradient is needed"
            raise SettingsError(f"loss = {self}: gives {described(value)}; {needed}", "loss")

    def identity(self) -> dict[str, str]:
        """Return the loss and a hash of its code by name; empty for the default."""
        if self.is_built_in:
            return {} if self.is_default else {self.setting: self.name}
        return super().identity()


def _copies(targets: Tensor, inputs: Inputs) -> bool:
    """Return whether all targets that count are the tokens of the input at the same places."""
    ids = inputs.get("input_ids") if isinstance(inputs, dict) else inputs
    same_shape = isinstance(ids, Tensor) and ids.shape == targets.shape
    return same_shape and bool(((ids == targets) | (targets == -100)).all())


CROSS_ENTROPY = Loss(BY_DEFAULT)
