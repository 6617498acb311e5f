"""A network's last linear layer: its name, and the representation that enters it."""

from typing import Any

import torch
from torch import Tensor, nn

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.models.precision import computing, full


def outputs_and_representation(
    model: nn.Module, inputs: Tensor, layer: str = ""
) -> tuple[Tensor, Tensor]:
    """Return a network's outputs, and what entered its last linear layer, (b, d).

    That is the module called `layer`; "" is the `nn.Linear` that the network calls last. Numbers of
    16 bits are returned as float32.

    Raises a SettingsError if the network calls no such layer.
    """
    entered: list[Tensor] = []

    def keep(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        entered.append(arguments[0])

    named = dict(model.named_modules())
    linear = [
        one for name, one in named.items() if isinstance(one, nn.Linear) and layer in ("", name)
    ]
    handles = [module.register_forward_pre_hook(keep) for module in linear]
    try:
        with computing(model):
            outputs = model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not entered:
        which = f"nn.Linear called {layer!r}" if layer else "nn.Linear"
        raise SettingsError(f"{type(model).__name__} calls no {which}, so has no representation")
    return outputs, full(entered[-1].flatten(start_dim=1))


@torch.no_grad()
def last_linear(model: nn.Module, inputs: Tensor, named: str = "") -> str:
    """Return the name of a network's last linear layer: the one called `named`, or called last.

    `inputs` are some that the network takes.

    Raises a SettingsError if there is no such `nn.Linear`, or the network calls none.
    """
    linear = {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    if named:
        if named not in linear:
            raise SettingsError(unknown("nn.Linear", named, linear))
        return named
    called: list[str] = []
    handles = [
        one.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, one in linear.items()
    ]
    try:
        with computing(model):
            model.eval()(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise SettingsError(f"{type(model).__name__} calls no nn.Linear, so has no head to compute")
    return called[-1]
