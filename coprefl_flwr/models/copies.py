"""Copies of a user's network, and the network inside PyTorch's wrappers."""

import copy
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from coprefl_flwr.errors import prefixed


def unwrapped(network: nn.Module) -> nn.Module:
    """Return the network inside the wrappers of `torch.compile` and DataParallel, if any."""
    parallel = isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = getattr(network, "module" if parallel else "_orig_mod", network)
    return network if inner is network else unwrapped(inner)


def named_as(names: Collection[str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by the `names` of the same tensors, with or without wrappers of layers.

    Files of `peft` have no names of adapters, such as its `default`.
    """
    wrappers = r"\b(_orig_mod|module|default|modules_to_save)\."
    plain = {name: re.sub(wrappers, "", name) for name in (*names, *tensors)}
    wanted = {plain[name]: name for name in names}
    return {n if n in names else wanted.get(plain[n], n): tensors[n] for n in tensors}


Copied = TypeVar("Copied")


def copied(
    network: Copied, what: str = "the network", memo: dict[int, Any] | None = None
) -> Copied:
    """Return a copy of a network, or of attributes of its layers; `memo` is that of `deepcopy`.

    A tensor that a layer has computed from its weights is copied as a value. Examples are the
    `weight` of the older `weight_norm`, `spectral_norm` and pruning, which every call computes
    again, and outputs that a layer keeps.

    Raises a SettingsError that calls the network `what` if an attribute cannot be copied, such as a
    lock.
    """
    with _Values():
        why = "cannot be copied by copy.deepcopy (define __deepcopy__)"
        with prefixed(f"{what} {why}", of=Exception):  # A user's object can raise any type.
            return copy.deepcopy(network, memo)


def sharing_base(network: nn.Module, what: str = "the network") -> Any:
    """Return a copy of a network that shares the memory of its frozen weights.

    A network of many frozen weights, such as a model with adapters, is copied several times in a
    run, which never writes into them.
    """
    memo = dict[int, Any]()
    for weight in network.parameters():
        if type(weight) is nn.Parameter and weight.is_leaf and not weight.requires_grad:
            shared = memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
            shared.__dict__.update(weight.__dict__)
    return copied(network, what, memo)


class _Values(TorchFunctionMode):
    """A context in which `copy.deepcopy` copies computed tensors, which it otherwise refuses."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            args = (args[0].detach(), *args[1:])
        return func(*args, **(kwargs or {}))
