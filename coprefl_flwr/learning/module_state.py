"""What a network keeps besides its weights and persistent buffers, and how it is restored.

All clients of a process train one network, into which the arrays of a request are loaded. Whatever
else changes in training would pass from client to client, so it is restored before each client.
"""

from collections import OrderedDict
from typing import Any

from torch import nn

from coprefl_flwr.models.copies import copied

_TENSORS = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_LIBRARIES = ("torch.nn.", "torchvision.", "transformers.", "peft.", "coprefl_flwr.")

Attributes = dict[str, Any]
"""{name of an attribute of a layer: its value}."""


class ModuleState:
    """The attributes, hooks, modes and non-persistent buffers of a network, copied."""

    def __init__(self, network: nn.Module) -> None:
        self._trained = [parameter.requires_grad for parameter in network.parameters()]
        self._hooks: list[tuple[OrderedDict[Any, Any], OrderedDict[Any, Any]]] = []
        self._buffers: list[dict[str, Any]] = []
        attributes: list[Attributes] = []
        for layer in network.modules():
            values = {name: value for name, value in vars(layer).items() if name not in _TENSORS}
            hooks = [name for name, value in values.items() if _are_hooks(name, value)]
            self._hooks += [(values[name], values.pop(name).copy()) for name in hooks]
            attributes.append(values)
            self._buffers.append(
                {
                    name: None if buffer is None else buffer.detach().clone()
                    for name, buffer in layer._buffers.items()
                    if buffer is None or name in layer._non_persistent_buffers_set
                }
            )
        self._attributes = _copied(attributes, network)

    def restore(self, network: nn.Module) -> None:
        """Give the network what it had when this object was created."""
        for parameter, trained in zip(network.parameters(), self._trained, strict=True):
            parameter.requires_grad_(trained)
        for hooks, before in self._hooks:
            if hooks != before:
                hooks.clear()
                hooks.update(before)
        layers, attributes = network.modules(), _copied(self._attributes, network)
        for layer, kept, buffers in zip(layers, attributes, self._buffers, strict=True):
            values = vars(layer)
            for name in values.keys() - kept.keys() - _TENSORS:
                if not _are_hooks(name, values[name]):
                    del values[name]
            values.update(kept)
            for name, buffer in buffers.items():
                layer._buffers[name] = None if buffer is None else buffer.clone()


def _are_hooks(name: str, value: Any) -> bool:
    return name.startswith("_") and isinstance(value, OrderedDict)


def has_users_code(layer: nn.Module) -> bool:
    """Return whether a layer is of none of `_LIBRARIES`."""
    return not type(layer).__module__.startswith(_LIBRARIES)


def _copied(attributes: list[Attributes], network: nn.Module) -> list[Attributes]:
    """Return the attributes of each layer; those of layers with a user's code are deep copies."""
    layers = list(network.modules())
    users = {n: attributes[n] for n, layer in enumerate(layers) if has_users_code(layer)}
    if users:
        # The copies refer to the layers and tensors of the network, and all are made at once, so
        # that layers that share an object still share it.
        shared = (*layers, *network.parameters(), *network.buffers())
        users = copied(users, memo={id(one): one for one in shared})
    return [users.get(position, values) for position, values in enumerate(attributes)]
