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

FLOAT32, BF16 = PRECISIONS = ("float32", "bf16")
"""Values of the setting `precision`; with "float32" nothing in torch is changed."""

HALF_TYPES = (torch.bfloat16, torch.float16)
"""16-bit dtypes: a user's network may compute in them, but losses and sums are in float32."""


@contextmanager
def computing(model: nn.Module, precision: str = FLOAT32) -> Iterator[None]:
    """Within this context, every call of `model` computes in `precision` and returns float32.

    "bf16" uses torch's autocast in the calls of the network only: losses are computed in float32,
    and the backward pass has the dtypes of the forward pass. If the weights of the network are
    bfloat16 or float16, its inputs are cast to this dtype, for every precision. If all weights are
    float64, its inputs are cast to float64, and so are the outputs.
    """
    first = next(model.parameters(), None)
    casts = all(p.dtype == torch.float64 for p in model.parameters())
    own = first.dtype if first is not None and (casts or first.dtype in HALF_TYPES) else None
    if precision == FLOAT32 and own is None:
        yield
        return
    # copy.deepcopy of a partial copies its arguments too, so a copy of the model calls the copy's
    # forward, not the original's.
    attributes, before = vars(model), vars(model).get("forward")
    device = "cpu" if first is None else first.device.type
    lower = device if precision == BF16 else ""
    attributes["forward"] = functools.partial(_call, model.forward, own, lower)
    try:
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
