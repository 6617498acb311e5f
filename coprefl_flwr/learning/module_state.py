"""What a network keeps besides its weights and persistent buffers, and how it is restored.

All clients of a process train one network, into which the arrays of a request are loaded. Whatever
else changes in training would pass from client to client, so it is restored before each client.
"""

import copy
import logging
import random
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import nn

from coprefl_flwr.errors import one_line

logger = logging.getLogger("flwr.coprefl")

_STATE = "_coprefl_state"
"""The attribute of a network that holds its state, so that both are freed together."""
_TENSORS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_GENERATORS = (torch.Generator, random.Random, np.random.Generator)
_LIBRARIES = ("torch.nn.", "torchvision.", "coprefl_flwr.")
"""Packages whose layers draw only from PyTorch's global generator."""

Attributes = dict[int, dict[str, Any]]
"""{position of a layer: {name of an attribute: its value}}."""


class ModuleState:
    """The attributes, hooks, modes, generators and non-persistent buffers of a network.

    They are copied when the object is created. `draws` tells whether a layer has code outside of
    `_LIBRARIES`, which may draw from the global generators of Python and NumPy.
    """

    def __init__(self, network: nn.Module) -> None:
        self._modules = list(network.modules())
        self._trained = [(p, p.requires_grad) for p in network.parameters()]
        self._buffers = [
            (m, name, None if buffer is None else buffer.detach().clone())
            for m in self._modules
            for name, buffer in m._buffers.items()
            if buffer is None or name in m._non_persistent_buffers_set
        ]
        self.draws = not all(type(m).__module__.startswith(_LIBRARIES) for m in self._modules)
        self._generators: list[Any] = []
        self._hooks: list[tuple[OrderedDict[Any, Any], OrderedDict[Any, Any]]] = []
        self._fixed: Attributes = {}
        # Copies refer to the layers and tensors of the network, not to copies of these.
        kept = (*self._modules, *network.parameters(), *network.buffers())
        self._network = {id(one): one for one in kept}
        changing: Attributes = {}
        for position, module in enumerate(self._modules):
            self._fixed[position] = {}
            for name, value in vars(module).items():
                if name in _TENSORS or name == _STATE:
                    continue
                if self._can_change(position, name, value):
                    changing.setdefault(position, {})[name] = value
                else:
                    self._fixed[position][name] = value
        self._changing = copy.deepcopy(changing, dict(self._network))

    def _can_change(self, position: int, name: str, value: Any) -> bool:
        """Return whether an attribute's value may change in place, and so has to be copied."""
        if isinstance(value, OrderedDict) and name.startswith("_"):
            self._hooks.append((value, value.copy()))
            return False
        if isinstance(value, _GENERATORS):
            self._generators.append(value)
            return False
        try:
            return copy.deepcopy(value, dict(self._network)) is not value
        except Exception as error:  # A user's object can raise any type of error.
            layer = type(self._modules[position]).__name__
            line = "clients of one process share %s.%s, which cannot be copied: %s"
            logger.warning(line, layer, name, one_line(error))
            return False

    def restore(self) -> None:
        """Give the network what it had when this object was created."""
        for parameter, trained in self._trained:
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
        for hooks, before in self._hooks:
            if hooks != before:
                hooks.clear()
                hooks.update(before)
        # One copy of all, so that layers that share an object still share it.
        changing = copy.deepcopy(self._changing, dict(self._network)) if self._changing else {}
        for position, module in enumerate(self._modules):
            values = vars(module)
            wanted = self._fixed[position] | changing.get(position, {})
            for name in values.keys() - wanted.keys() - {*_TENSORS, _STATE}:
                del values[name]
            values.update(wanted)
        for module, name, buffer in self._buffers:
            module._buffers[name] = None if buffer is None else buffer.clone()

    def seed(self, number: int) -> None:
        """Seed the random generators among the network's attributes."""
        for generator in self._generators:
            if isinstance(generator, torch.Generator):
                generator.manual_seed(number)
            elif isinstance(generator, random.Random):
                generator.seed(number)
            else:
                generator.bit_generator.state = type(generator.bit_generator)(number).state

    def __deepcopy__(self, _: Any) -> None:
        """Return None: a copy of the network has no state until one is made for it."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Return None for another process, too."""
        return type(None), ()


def keep_state(network: nn.Module) -> None:
    """Keep the present state of a network, to which `restore` will return."""
    vars(network)[_STATE] = ModuleState(network)


def state_of(network: nn.Module) -> ModuleState | None:
    """Return the kept state of a network, or None if none was kept."""
    state: ModuleState | None = vars(network).get(_STATE)
    return state


def restore(network: nn.Module) -> None:
    """Restore the kept state of a network; its weights and persistent buffers do not change."""
    if state := state_of(network):
        state.restore()
