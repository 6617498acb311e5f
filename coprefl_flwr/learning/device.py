"""The torch device of a process, and moving a model to a device."""

import functools
import logging
import os
from weakref import WeakKeyDictionary

import torch
from torch import nn

logger = logging.getLogger("flwr.coprefl")


@functools.cache
def default_device() -> torch.device:
    """Return the GPU if this process sees a GPU, or else the CPU.

    The device is logged once per process.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    logger.info("process %s computes on %s%s", os.getpid(), device, name)
    return device


_PLACED: WeakKeyDictionary[nn.Module, torch.device] = WeakKeyDictionary()


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """Move `model` to `device`, in the channels-last memory format, and return the model.

    A model that `placed` has already moved to `device` is not moved again. A client object is
    created for every message, and `to` would take 2 % of the time of a short message.
    """
    if _PLACED.get(model) != device:
        model.to(device).to(memory_format=torch.channels_last)
        _PLACED[model] = device
    return model
