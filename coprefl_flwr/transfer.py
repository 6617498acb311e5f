"""Copies between the CPU's memory and a GPU's, for which nobody waits until somebody must.

A plain copy waits for all that the GPU has still to compute. To the GPU there is no need to: what
is computed there afterwards finds the copy. Back from it one wait does for any number of tensors.
Right on the simulated accelerator of the tests; nobody has run it on a GPU yet.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

WAITS: dict[str, Callable[[torch.device], None]] = {
    "cuda": lambda device: torch.cuda.current_stream(device).synchronize(),
}
"""By type of device, of those that copy while they compute, what waits until all that is done."""


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`; the CPU's may be changed at once."""
    if device.type in WAITS and tensor.device.type == "cpu":
        # Copied to memory that the GPU can read by itself, which is kept until it has.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in the CPU's memory, those that are there already as they are."""
    there = {tensor.device for tensor in tensors.values() if tensor.device.type in WAITS}
    copies = {
        name: tensor.detach().to("cpu", non_blocking=tensor.device in there)
        for name, tensor in tensors.items()
    }
    for device in there:
        WAITS[device.type](device)
    return copies
