"""Where a dataset lies while it is computed with: once on the GPU that has room for it.

Batches are then cut there, and only their rows' numbers travel. Right on the simulated accelerator
of the tests; nobody has run it on a GPU yet.
"""

from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

SHARE = 0.25
"""Part of a GPU's free memory that a tensor may fill, as models and batches need the rest."""

_THERE: MutableMapping[Tensor, dict[torch.device, Tensor | None]] = WeakTensorKeyDictionary()
"""By tensor, {device: its copy there, None where it does not fit}, while anybody has the tensor."""


def nearest(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`, moved once a process, or as it is where there is no room.

    It must not change from then on.
    """
    if device.type == tensor.device.type:
        return tensor
    copies = _THERE.setdefault(tensor, {})
    if device not in copies:
        copies[device] = tensor.to(device) if _fits(tensor, device) else None
    found = copies[device]
    return tensor if found is None else found


def _fits(tensor: Tensor, device: torch.device) -> bool:
    return tensor.nbytes <= SHARE * _free(device)


def _free(device: torch.device) -> float:
    """Return the free bytes of a device; what shares its memory with the CPU has room."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")
