"""The device that a process computes on."""

import functools
import logging
import os
from weakref import WeakKeyDictionary

import torch
from torch import nn

logger = logging.getLogger("flwr.coprefl")


@functools.cache
def default_device() -> torch.device:
    """Return the GPU this process sees, else the CPU, and log which once a process."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    logger.info("process %s computes on %s%s", os.getpid(), device, name)
    return device


_PLACED: WeakKeyDictionary[nn.Module, torch.device] = WeakKeyDictionary()


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """Return `model` on `device`, channels last in memory, moved at most once.

    Remembered, as a client is made for every message, and `to` takes 2 % of a short one's time.
    """
    if _PLACED.get(model) != device:
        model.to(device).to(memory_format=torch.channels_last)
        _PLACED[model] = device
    return model
