"""A network's representation: what enters its last linear layer."""

from typing import Any

from torch import Tensor, nn

from coprefl_flwr.errors import SettingsError


def outputs_and_representation(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return a network's outputs, and what entered the last linear layer that it called, (b, d).

    Raises
    ------
    SettingsError
        If the network calls no `nn.Linear`.
    """
    entered: list[Tensor] = []

    def keep(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        entered.append(arguments[0])

    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    handles = [module.register_forward_pre_hook(keep) for module in linear]
    try:
        outputs = model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not entered:
        raise SettingsError(f"{type(model).__name__} calls no nn.Linear, so has no representation")
    return outputs, entered[-1].flatten(start_dim=1)
