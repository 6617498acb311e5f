"""The trained weights of a model as NumPy arrays, named and ordered as in its `state_dict()`."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from coprefl_flwr.arrays import without_corrections
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models.frozen import base_names, travelling
from coprefl_flwr.transfer import on_cpu, tensor_of


def model_arrays(model: nn.Module) -> dict[str, np.ndarray]:
    """Return copies of the model's parameters and buffers by name, with their shapes and dtypes.

    What is frozen is left out (see `models.frozen`). The copies have the memory format of the
    tensors, such as channels last, because a copy to another format is slower. A scalar buffer,
    such as BatchNorm's int64 `num_batches_tracked`, becomes a 0-d array. A bfloat16 tensor becomes
    a float32 array (see `as_array`).
    """
    copies = on_cpu(travelling(model), copy=True)
    return {name: as_array(tensor) for name, tensor in copies.items()}


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a NumPy array, which shares the tensor's memory if possible.

    NumPy has no bfloat16: a bfloat16 tensor becomes a float32 array, with exactly the same values.
    The values do not change when they are loaded into the model again. A mean of several such
    arrays is rounded to bfloat16 only when it is loaded into the model.
    """
    tensor = tensor.detach().cpu()
    array: np.ndarray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def check_weights(model: nn.Module, what: str) -> None:
    """Raise a SettingsError if layers have no weights or buffers before the first batch.

    `what` is the model's name in the message.
    """
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise SettingsError(f"{what} has lazy layers: call it once with a batch of samples")


def first_names(model: nn.Module) -> dict[str, str]:
    """Return {name of a parameter or buffer: first name of the same tensor}.

    Tied weights are one tensor with several names: `state_dict()` has all of the names, but
    `named_parameters()` has only the first.
    """
    first: dict[int, str] = {}
    parameters = model.named_parameters(remove_duplicate=False)
    tensors = [*parameters, *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}


def buffer_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the model's buffers that travel, as in its `state_dict()`.

    The corrections of adapters are left out: they have the weights of the method's mean.
    """
    named = without_corrections(dict(model.named_buffers(remove_duplicate=False)))
    return frozenset(named) - base_names(model)


def load_arrays(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy `arrays` into the travelling tensors of the model with the same names, on any device.

    No tensor is reallocated, so an optimiser of the parameters remains valid. An array of another
    dtype is cast to the dtype of the tensor, as by `load_state_dict`. The order of the arrays does
    not matter. Raises a SettingsError if the names or shapes differ from the model's; the model is
    then unchanged.
    """
    _load(travelling(model), arrays)


def load_in_order(model: nn.Module, arrays: Sequence[np.ndarray]) -> None:
    """Load arrays like `load_arrays`, but by their order, which is that of `state_dict()`."""
    tensors = travelling(model)
    if len(arrays) != len(tensors):
        raise SettingsError(f"got {len(arrays)} arrays for a model of which {len(tensors)} travel")
    _load(tensors, dict(zip(tensors, arrays, strict=True)))


def _load(tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray]) -> None:
    check_same_model(arrays, tensors)
    for name, tensor in tensors.items():
        array = tensor_of(np.asarray(arrays[name]))
        # Do not wait until the GPU has finished its earlier work. CUDA has already read the CPU's
        # memory when this call returns.
        tensor.copy_(array, non_blocking=True)


def with_fresh_head(
    start: Mapping[str, np.ndarray], model: nn.Module, head: frozenset[str]
) -> dict[str, np.ndarray]:
    """Return copies of the arrays of `start`, with the `head` replaced by the head of `model`.

    `head` are the names of the head's arrays. The weights of `model` are freshly initialised. The
    result is in the order of `model.state_dict()`. `start` may have a head for another number of
    classes, or no head. Raises a SettingsError if an array outside the head is missing in `start`,
    is unknown in `model`, or has another shape.
    """
    fresh = model_arrays(model)
    body = {name: array for name, array in start.items() if name not in head}
    check_same_model(body, {name: array for name, array in fresh.items() if name not in head})
    return {name: array if name in head else body[name].copy() for name, array in fresh.items()}


def check_same_model(
    arrays: Mapping[str, np.ndarray | Tensor],
    model: Mapping[str, np.ndarray | Tensor],
    what: str = "the model",
) -> None:
    """Raise a SettingsError if names or shapes of `arrays` differ from those of `model`.

    `what` is the model's name in the message.
    """
    missing = [f"array {name!r} is missing" for name in model if name not in arrays]
    others = [f"array {name!r} is not in the model" for name in arrays if name not in model]
    wrong = missing[:1] + others[:1] or [
        f"{name!r} has shape {tuple(np.shape(arrays[name]))}, but the model has {tuple(one.shape)}"
        for name, one in model.items()
        if np.shape(arrays[name]) != tuple(one.shape)
    ]
    if wrong:
        raise SettingsError(f"the weights do not fit {what}: {'; '.join(wrong[:2])}")
