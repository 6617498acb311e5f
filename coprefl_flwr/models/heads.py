"""Find the last linear layer of a network, and the representation: the input of this layer."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from coprefl_flwr.data.inputs import Inputs
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models.outputs import outputs_of
from coprefl_flwr.models.precision import as_float32, computing


def outputs_and_representation(
    model: nn.Module, inputs: Inputs, layer: str = ""
) -> tuple[Tensor, Tensor]:
    """Return a network's outputs and its representation (b, d): the last linear layer's input.

    `layer` is the name of the linear layer; "" means the `nn.Linear` that the network calls last.
    float16 and bfloat16 tensors are returned as float32.

    Raises a SettingsError if the network calls no such layer.
    """
    with _recorded_calls(model, layer) as calls:
        outputs = outputs_of(model, inputs)
    return outputs, as_float32(calls[-1][1].flatten(start_dim=1))


@torch.no_grad()
def last_linear(model: nn.Module, inputs: Inputs) -> str:
    """Return the name of the `nn.Linear` that the network calls last.

    `inputs` is a batch of inputs with which the network is called once, in eval mode.

    Raises a SettingsError if the network calls no `nn.Linear`.
    """
    with _recorded_calls(model) as calls:
        outputs_of(model.eval(), inputs)
    return calls[-1][0]


@contextmanager
def _recorded_calls(model: nn.Module, layer: str = "") -> Iterator[list[tuple[str, Tensor]]]:
    """Collect (name, input) of each call of a linear layer in a list, in order, while `model` runs.

    `layer` is the name of the only layer that counts; "" means all. Raises a SettingsError if the
    model called none of them.
    """
    calls: list[tuple[str, Tensor]] = []
    handles = [
        module.register_forward_pre_hook(
            lambda _, inputs, name=name: calls.append((name, inputs[0]))
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and layer in ("", name)
    ]
    try:
        with computing(model):
            yield calls
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        problem = f"{type(model).__name__} calls no nn.Linear, whose input would be the features"
        raise SettingsError(f"{problem} (in tasks, network= makes one with a new last layer)")
