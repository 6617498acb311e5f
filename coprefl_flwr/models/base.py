"""The hash and the memory of a network's base, which is all that does not travel (see `frozen`)."""

from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import nn

from coprefl_flwr.arrays import checksum_of
from coprefl_flwr.models.arrays import as_array
from coprefl_flwr.models.copies import unwrapped
from coprefl_flwr.models.frozen import GIVEN, base_names, base_of

BASE = "base-hash"
"""Key of the hash of the server's base in the config of a message."""

HASHES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""{network that clients train: hash of its base}."""

_FIRST: WeakValueDictionary[tuple[str, torch.device], nn.Module] = WeakValueDictionary()
"""{(hash of a base, device): a network with this base on this device}."""


def base_hash(model: nn.Module) -> str:
    """Return a hash, 12 hex digits, of all of a network that does not travel, or "" for nothing.

    These are the parameters that require no gradient, and the buffers of frozen modules. Clients of
    this package compare their hash with `train_config["base-hash"]`.

    Parameters
    ----------
    model : nn.Module
        The network.
    """
    # peft keeps a copy of a layer that it trains whole, on which no output depends.
    base = {n: t for n, t in base_of(unwrapped(model)).items() if ".original_module." not in n}
    return checksum_of({n: as_array(t) for n, t in base.items()})[:12] if base else ""


def keep_base(model: nn.Module, device: torch.device) -> None:
    """Keep which base a network on a device has, whatever a client freezes in it later.

    Equal tensors of an equal base on the device share their memory.
    """
    GIVEN[model], HASHES[model] = base_names(model), base_hash(model)
    first = _FIRST.setdefault((HASHES[model], device), model).state_dict()
    tensors = model.state_dict(keep_vars=True)
    for name in GIVEN[model]:
        own, other = tensors[name], first[name]
        # The base of the first network may have been moved or changed since.
        if own.device == other.device and own.stride() == other.stride() and own.equal(other):
            own.data = other
