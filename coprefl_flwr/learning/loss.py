"""The loss that clients minimise: a function of a network's outputs and the targets of a batch."""

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coprefl_flwr import plugins
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError, one_line, unknown
from coprefl_flwr.learning.evaluation import are_classes, class_loss
from coprefl_flwr.models.precision import computing
from coprefl_flwr.named import Choice
from coprefl_flwr.object_code import code_hash

BY_DEFAULT = "cross-entropy"


@dataclass(frozen=True)
class Loss(Choice):
    """A loss by its place, such as `torch.nn.functional:mse_loss`, or as an object in Python.

    A loss is a function of (outputs, targets) that returns the mean over the batch, a scalar. A
    place may also name a class of losses with its arguments, such as
    `torch.nn:CrossEntropyLoss:label_smoothing=0.1`; an argument of several numbers, such as the
    weights of classes, becomes a tensor. The mean over several batches weights each batch by its
    number of samples.
    """

    function: Callable[[Tensor, Tensor], Tensor] | None = None

    @classmethod
    def read(cls, value: Any) -> "Loss":
        """Return a Loss from a function, a module, a text, or a mapping with the key `name`."""
        if callable(value) and not isinstance(value, cls | type):
            return cls(getattr(value, "__name__", type(value).__name__), function=value)
        return super().read(value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: another process finds the function of a pickled loss again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self._function_on(outputs.device)(outputs, targets)

    def of_batch(self, model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean loss of a model on a batch (inputs, targets)."""
        if self.is_default:
            return class_loss(model, batch)
        inputs, targets = batch
        return self(model(inputs), targets)

    def summed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the loss over the samples of a batch."""
        if self.is_default:  # Exactly what torch adds up; a mean would be rounded first.
            return cross_entropy(outputs, targets, reduction="sum")
        return self(outputs, targets) * len(targets)

    @property
    def is_default(self) -> bool:
        """Whether this is the cross-entropy of logits and integer classes."""
        return self == CROSS_ENTROPY

    def _function_on(self, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss function; a module is moved to the device."""
        function: Callable[[Tensor, Tensor], Tensor] = self._loaded
        return function.to(device) if isinstance(function, nn.Module) else function

    @functools.cached_property
    def _loaded(self) -> Any:
        """The loss function; a SettingsError if the place does not exist."""
        if self.is_default:
            return cross_entropy
        if self.function is not None:
            return self.function
        if not plugins.is_place("loss", self.name):
            line = unknown("loss", self.name, [BY_DEFAULT, *plugins.brought("loss")])
            raise SettingsError(f"{line}, or module:NAME", "loss")
        found, options = plugins.find("loss", self.name), dict(self.options)
        if isinstance(found, type):
            return plugins.call(self.name, functools.partial(found, **_tensors(options)), ())
        return functools.partial(found, **options)

    def check(self, network: nn.Module, samples: Samples) -> None:
        """Raise a SettingsError if the loss does not fit the network's outputs and the targets."""
        inputs, targets = samples.batch(slice(2), next(network.parameters()).device)
        if self.is_default and are_classes(targets):
            return
        with computing(network):
            outputs = network.eval()(inputs.contiguous())
        self._function_on(outputs.device)  # Raises its own error if the place does not exist.
        try:
            with warnings.catch_warnings():
                # torch only warns of outputs (n, 1) and targets (n,), whose mean is over all pairs.
                warnings.filterwarnings("error", message="Using a target size")
                value = self.of_batch(lambda _: outputs, (inputs, targets))
        except Exception as error:  # A user's loss may raise any exception.
            both = f"outputs {_kind(outputs)} and targets {_kind(targets)}"
            raise SettingsError(f"loss = {self}: {both}: {one_line(error)}", "loss") from error
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            raise SettingsError(
                f"loss = {self}: gives {_kind(value)}; a scalar with a gradient is needed", "loss"
            )

    def identity(self) -> dict[str, str]:
        """Return the loss and a hash of its code by name; empty for the default."""
        if self.is_default:
            return {}
        function = self.function
        text = plugins.hash_at("loss", self.name) if function is None else code_hash(function)
        return {"loss": f"{self} {text}"}


CROSS_ENTROPY = Loss(BY_DEFAULT)


def _tensors(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a class of losses; several numbers, as in 1&5, become a tensor."""
    return {
        key: torch.tensor([float(number) for number in value.split("&")])
        if isinstance(value, str) and "&" in value
        else value
        for key, value in options.items()
    }


def _kind(value: Any) -> str:
    """Return the dtype and the shape of a tensor, or the name of another type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
