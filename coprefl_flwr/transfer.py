"""Asynchronous copies between the memory of the CPU and the memory of a GPU.

A synchronous copy waits until the GPU has finished all its queued work. A copy to the GPU does not
need this wait, because the GPU computes later operations after the copy. For copies to the CPU, one
wait is enough for any number of tensors.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

WAITS: dict[str, Callable[[torch.device], None]] = {
    "cuda": lambda device: torch.cuda.current_stream(device).synchronize(),
}
"""{device type: function that waits for all queued work}, of devices with asynchronous copies."""


def tensor_of(array: np.ndarray) -> Tensor:
    """Return an equal tensor, which shares the array's memory if possible and must not be changed.

    torch would warn of a read-only array, such as an array that another process has sent.
    """
    # torch does not support negative strides.
    view = array.view() if min(array.strides, default=0) >= 0 else array.copy()
    try:
        view.flags.writeable = True
    except ValueError:  # The memory of the array is read-only.
        view = array.copy()
    return torch.from_numpy(view)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`; the copied CPU tensor may be changed at once."""
    if device.type in WAITS and tensor.device.type == "cpu":
        # PyTorch keeps the pinned copy until the GPU has read it.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def on_cpu(tensors: Mapping[str, Tensor], *, copy: bool = False) -> dict[str, Tensor]:
    """Return tensors in the memory of the CPU; only with `copy`, those on the CPU are copied."""
    there = {tensor.device for tensor in tensors.values() if tensor.device.type in WAITS}
    copies = {
        name: tensor.detach().to("cpu", non_blocking=tensor.device in there, copy=copy)
        for name, tensor in tensors.items()
    }
    for device in there:
        WAITS[device.type](device)
    return copies
