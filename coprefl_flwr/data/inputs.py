"""The inputs of a batch: a tensor, or several tensors in a tuple or in a dict."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Inputs = Any
"""A tensor (b, ...), a tuple of such tensors, or a dict of them by the names of a network's
arguments, such as "input_ids" and "attention_mask"."""


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """Return the tensors of inputs, in their order."""
    if isinstance(inputs, dict):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def mapped(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Return inputs of the same form, with a function applied to each tensor."""
    if isinstance(inputs, dict):
        return {name: function(tensor) for name, tensor in inputs.items()}
    return tuple(map(function, inputs)) if isinstance(inputs, tuple) else function(inputs)


def joined(parts: Sequence[Inputs], join: Callable[[list[Tensor]], Tensor]) -> Inputs:
    """Return inputs each of whose tensors joins those of all parts, as `torch.cat` does."""
    if isinstance(parts[0], dict):
        return {name: join([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(join(list(tensors)) for tensors in zip(*parts, strict=True))
    return join(list(parts))
