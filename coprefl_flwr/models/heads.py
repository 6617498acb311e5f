"""A network's last linear layer: its name, and the representation that enters it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.models.precision import as_float32, computing


def outputs_and_representation(
    model: nn.Module, inputs: Tensor, layer: str = ""
) -> tuple[Tensor, Tensor]:
    """Return a network's outputs, and what entered its last linear layer, (b, d).

    That is the module called `layer`; "" is the `nn.Linear` that the network calls last. Numbers of
    16 bits are returned as float32.

    Raises a SettingsError if the network calls no such layer.
    """
    linear = _linear_layers(model)
    if layer:
        linear = {layer: linear[layer]} if layer in linear else {}
    with _recorded_calls(model, linear) as calls:
        outputs = model(inputs)
    if not calls:
        which = f"nn.Linear called {layer!r}" if layer else "nn.Linear"
        raise SettingsError(f"{type(model).__name__} calls no {which}, so has no representation")
    return outputs, as_float32(calls[-1][1].flatten(start_dim=1))


@torch.no_grad()
def last_linear(model: nn.Module, inputs: Tensor, named: str = "") -> str:
    """Return the name of a network's last linear layer: the one called `named`, or called last.

    `inputs` are some that the network takes.

    Raises a SettingsError if there is no such `nn.Linear`, or the network calls none.
    """
    linear = _linear_layers(model)
    if named:
        if named not in linear:
            raise SettingsError(unknown("nn.Linear", named, linear))
        return named
    with _recorded_calls(model, linear) as calls:
        model.eval()(inputs)
    if not calls:
        raise SettingsError(f"{type(model).__name__} calls no nn.Linear, so has no head to compute")
    return calls[-1][0]


def _linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


@contextmanager
def _recorded_calls(
    model: nn.Module, layers: Mapping[str, nn.Module]
) -> Iterator[list[tuple[str, Tensor]]]:
    """Record the name and the input of every call of some layers while `model` is called."""
    calls: list[tuple[str, Tensor]] = []
    handles = [
        layer.register_forward_pre_hook(
            lambda _, inputs, name=name: calls.append((name, inputs[0]))
        )
        for name, layer in layers.items()
    ]
    try:
        with computing(model):
            yield calls
    finally:
        for handle in handles:
            handle.remove()
