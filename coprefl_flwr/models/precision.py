"""Precision of a network's computations: float32, or lower if a user sets it.

A lower precision holds only inside the network, in the forward and the backward pass. Weights,
optimisers, losses and sums keep their precision.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from coprefl_flwr.errors import SettingsError

FLOAT32, BF16, TF32 = PRECISIONS = ("float32", "bf16", "tf32")
"""Values of the setting `precision`; with "float32" nothing in torch is changed."""

HALF_TYPES = (torch.bfloat16, torch.float16)
"""16-bit dtypes: a user's network may compute in them, but losses and sums are in float32."""

AMPERE = (8, 0)
"""Lowest compute capability of NVIDIA GPUs with TF32."""


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a SettingsError if `device` does not support `precision`."""
    if why := _missing(precision, device):
        raise SettingsError(f"precision = {precision}: {why}; set {FLOAT32}", "precision")


def _missing(precision: str, device: torch.device) -> str:
    """Return the reason why a device does not support a precision, or "" if it does."""
    on_cuda = device.type == "cuda"
    if precision == BF16:
        able = torch.amp.is_autocast_available(device.type)
        if not able or (on_cuda and not torch.cuda.is_bf16_supported()):
            return f"{_named(device)} has no bfloat16"
    if precision == TF32 and not (on_cuda and torch.cuda.get_device_capability(device) >= AMPERE):
        needed = "needs an NVIDIA GPU of compute capability 8.0 or above"
        return f"{needed}, but this process computes on {_named(device)}"
    return ""


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"the {device.type}"


@contextmanager
def computing(model: nn.Module, precision: str = FLOAT32) -> Iterator[None]:
    """Within this context, every call of `model` computes in `precision` and returns float32.

    "bf16" uses torch's autocast in the calls of the network only: losses are computed in float32,
    and the backward pass has the dtypes of the forward pass. "tf32" holds for the whole process
    within this context, and so also for the backward pass. If the weights of the network are
    bfloat16 or float16, its inputs are cast to this dtype, for every precision. If all weights are
    float64, its inputs are cast to float64, and so are the outputs.

    Raises a SettingsError if the model's device does not support the precision.
    """
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    casts = all(p.dtype == torch.float64 for p in model.parameters())
    own = first.dtype if first is not None and (casts or first.dtype in HALF_TYPES) else None
    if precision == FLOAT32 and own is None:
        yield
        return
    check_precision(precision, device)
    # copy.deepcopy of a partial copies its arguments too, so a copy of the model calls the copy's
    # forward, not the original's.
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
    """Call a network: inputs cast to dtype `own` if set, in autocast on device type `lower`."""
    if own is not None:
        inputs = tuple(_cast(own, value) for value in inputs)
        named = {name: _cast(own, value) for name, value in named.items()}
    with torch.autocast(lower, torch.bfloat16) if lower else nullcontext():
        return as_float32(forward(*inputs, **named))


def _cast(dtype: torch.dtype, value: Any) -> Any:
    """Cast a floating-point tensor to `dtype`; return any other value unchanged."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def as_float32(value: Any) -> Any:
    """Cast a float16 or bfloat16 tensor to float32; return any other value unchanged."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF_TYPES else value


@contextmanager
def _tf32() -> Iterator[None]:
    """Within this context, allow TF32 in matrix products and convolutions of the process."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
