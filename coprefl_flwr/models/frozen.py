"""What of a network is trained, and travels, and what is frozen, and stays in every process.

A module is frozen if it, or a module that contains it, has parameters and none of them (those of
its submodules included) requires a gradient. The parameters that require no gradient and the
buffers of frozen modules are the base of the network. The base is not sent, summed or stored.
"""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from coprefl_flwr.errors import SettingsError, unknown

GIVEN: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()
"""{network: names in its base}, of the networks that clients train.

A client may freeze a part of its network for some steps. That does not change what travels.
"""


def base_names(model: nn.Module) -> frozenset[str]:
    """Return the names in a network's base, as in `GIVEN` or else as of now."""
    if model in GIVEN:
        return GIVEN[model]
    parameters = model.named_parameters(remove_duplicate=False)
    names = {name for name, p in parameters if not p.requires_grad}
    inside = _frozen_modules(model, names)
    for path, layer in model.named_modules(remove_duplicate=False):
        if layer in inside:
            names.update(name for name, _ in layer.named_buffers(path, recurse=False))
    return frozenset(names)


def _frozen_modules(model: nn.Module, base: Collection[str]) -> set[nn.Module]:
    """Return the frozen modules of a network; `base` has the names of its frozen parameters."""
    inside = set[nn.Module]()
    parameters = model.named_parameters(remove_duplicate=False) if base else ()
    names = {name for name, _ in parameters}
    frozen = _modules_with(names) - _modules_with(names - {*base})
    for path, layer in model.named_modules() if frozen else ():
        if path in frozen:
            inside.update(layer.modules())
    return inside


def _modules_with(names: Collection[str]) -> set[str]:
    """Return the names of the modules that have parameters with these names, also in submodules."""
    parts = [name.split(".") for name in names]
    return {".".join(of[:length]) for of in parts for length in range(len(of))}


def travelling(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a network that travel, by name, in the order of `state_dict()`.

    They are all tensors but those of the base, and share the memory of the network.
    """
    base = base_names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in base}


def base_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors in the base of a network by name, which share its memory."""
    base = base_names(model)
    return {name: t for name, t in model.state_dict().items() if name in base} if base else {}


def train_mode(model: nn.Module) -> nn.Module:
    """Put a network into train mode, and its frozen modules into eval mode; return the network.

    The statistics of a frozen BatchNorm do not travel, so they must not change.
    """
    model.train()
    for layer in _frozen_modules(model, base_names(model)):
        layer.eval()
    return model


def set_trainable(model: nn.Module, patterns: str) -> None:
    """Train the parameters whose names match one of the patterns, and no other parameter.

    `patterns` is a text such as "head.*, *.bias", as for `fnmatch`. Raises a SettingsError if a
    pattern matches no parameter; it names the parameter that is most similar.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    model.requires_grad_(False)
    for pattern in re.split(r"[,\s]+", patterns.strip(", ")):
        matching = [p for name, p in parameters.items() if fnmatchcase(name, pattern)]
        if not matching:
            problem = f"trainable = {patterns}: {unknown('parameter', pattern, parameters)}"
            raise SettingsError(problem, "trainable")
        for parameter in matching:
            parameter.requires_grad_(True)


def without_base(
    tensors: Mapping[str, Tensor], model: nn.Module, replaced: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return given tensors without those in the base of the network.

    Raises a SettingsError if one of the latter is not equal to that of the network, except those
    with names in `replaced`.
    """
    base = base_of(model)
    for name in base.keys() & tensors.keys() - set(replaced):
        own, given = base[name].cpu(), tensors[name].cpu()
        if own.shape != given.shape or not torch.equal(own, given.to(own.dtype)):
            problem = f"{name!r} is frozen in the network, which has other values"
            raise SettingsError(f"{problem}: load the weights before you freeze them")
    return {name: tensor for name, tensor in tensors.items() if name not in base}
