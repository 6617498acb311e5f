"""In which numbers a network computes: float32, or fewer digits where a user asks for them.

Weights, optimisers, losses and sums have the digits that they have without: only what happens
inside of the network, forwards and backwards, is computed with fewer.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from coprefl_flwr.errors import SettingsError

FLOAT32, BF16, TF32 = PRECISIONS = ("float32", "bf16", "tf32")
"""What the setting `precision` may be; the first leaves everything as torch has it."""

HALF_TYPES = (torch.bfloat16, torch.float16)
"""Numbers of a network of a user's own that no loss and no sum is computed in."""

AMPERE = (8, 0)
"""The least compute capability of an NVIDIA GPU that has TF32."""


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a SettingsError if `device` cannot compute so."""
    missing = {name: why for name in PRECISIONS if (why := _missing(name, device))}
    if precision in missing:
        able = ", ".join(name for name in PRECISIONS if name not in missing)
        problem = f"precision = {precision}: {missing[precision]}; allowed here: {able}"
        raise SettingsError(problem, "precision")


def _missing(precision: str, device: torch.device) -> str:
    """Say what a device lacks to compute so, "" for nothing."""
    on_cuda = device.type == "cuda"
    if precision == BF16:
        able = torch.amp.is_autocast_available(device.type)
        if not able or (on_cuda and not torch.cuda.is_bf16_supported()):
            return f"{_named(device)} has no bfloat16"
    if precision == TF32 and not (on_cuda and torch.cuda.get_device_capability(device) >= AMPERE):
        needed = "needs an NVIDIA GPU of compute capability 8.0 or above"
        return f"{needed}, and this process computes on {_named(device)}"
    return ""


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"the {device.type}"


@contextmanager
def computing(model: nn.Module, precision: str = FLOAT32) -> Iterator[None]:
    """Have every call of `model` compute in `precision`, and give float32.

    "bf16" opens torch's autocast around the network alone, so that a loss is computed from float32
    and the backward pass has the types of the forward one. "tf32" holds for all of the process
    while this is open, the backward pass included. A network whose own weights are bfloat16 or
    float16 is given inputs of that type, whatever the precision is.

    Raises a SettingsError if the model's device cannot compute so.
    """
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    own = first.dtype if first is not None and first.dtype in HALF_TYPES else None
    if precision == FLOAT32 and own is None:
        yield
        return
    check_precision(precision, device)
    # A copy.deepcopy of a partial has copies of what it holds: a copy of the model calls itself.
    attributes, before = vars(model), vars(model).get("forward")
    lower = device.type if precision == BF16 else ""
    attributes["forward"] = functools.partial(_call, model.forward, own, lower)
    try:
        with _tf32() if precision == TF32 else nullcontext():
            yield
    finally:
        del attributes["forward"]
        if before is not None:
            attributes["forward"] = before


def _call(
    forward: Callable[..., Any], own: torch.dtype | None, lower: str, /, *inputs: Any, **named: Any
) -> Any:
    """Call a network with inputs of its `own` type, under autocast of the device type `lower`."""
    if own is not None:
        inputs = tuple(_cast(own, value) for value in inputs)
        named = {name: _cast(own, value) for name, value in named.items()}
    with torch.autocast(lower, torch.bfloat16) if lower else nullcontext():
        return as_float32(forward(*inputs, **named))


def _cast(dtype: torch.dtype, value: Any) -> Any:
    """Return a tensor of numbers, not of indices, in another type; anything else as it is."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def as_float32(value: Any) -> Any:
    """Return a tensor with few digits as float32, anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF_TYPES else value


@contextmanager
def _tf32() -> Iterator[None]:
    """Allow TF32 in products of matrices and in convolutions."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
