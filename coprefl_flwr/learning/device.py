"""The torch device of a process, and the device, memory format and mode of a model."""

import functools
import os
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from coprefl_flwr.data import Samples
from coprefl_flwr.data.inputs import Inputs, mapped, tensors_of
from coprefl_flwr.errors import logger
from coprefl_flwr.learning.module_state import ModuleState
from coprefl_flwr.models.base import keep_base
from coprefl_flwr.models.copies import copied
from coprefl_flwr.models.outputs import outputs_of
from coprefl_flwr.models.precision import computing


@functools.cache
def default_device() -> torch.device:
    """Return the GPU if this process sees a GPU, or else the CPU.

    The device is logged once per process.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    logger.info("process %s computes on %s%s", os.getpid(), device, name)
    return device


_PLACED: WeakKeyDictionary[nn.Module, tuple[torch.device, ModuleState]] = WeakKeyDictionary()
"""{network: (its device, its state when it was moved there)}."""


def placed(model: nn.Module, device: torch.device, samples: Samples) -> nn.Module:
    """Move `model` to `device`, in the channels-last memory format, and return the model.

    Some models fail in this format, such as a model that calls `view` on the layers' outputs. A
    copy that computes a gradient for `samples` finds them. They keep PyTorch's default format, and
    get their inputs in that format too. Embeddings get dense gradients, as all methods need them.

    A model that `placed` has already moved to `device` is not moved again. A client object is
    created for every message, and `to` would take 2 % of the time of a short message. What the
    earlier client changed in the model, except weights and buffers, is restored.
    """
    if model not in _PLACED or _PLACED[model][0] != device:
        model.to(device)
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = False
        tensors = (*model.parameters(), *model.buffers())
        if all(tensor.ndim < 5 for tensor in tensors):  # torch refuses weights of Conv3d.
            model.to(memory_format=torch.channels_last)
        sample = mapped(lambda one: torch.cat([one, one]), samples.batch(slice(1), device)[0])
        if not len(samples) or not _takes_channels_last(model, sample):
            model.to(memory_format=torch.contiguous_format)
            model.register_forward_pre_hook(_contiguous)
        _PLACED[model] = device, ModuleState(model)
        keep_base(model, device)
    _PLACED[model][1].restore(model)
    return model


def _takes_channels_last(model: nn.Module, inputs: Inputs) -> bool:
    """Return whether a copy of the model works in eval mode, and in a training step."""
    convolves, tensors = any(weight.ndim == 4 for weight in model.parameters()), tensors_of(inputs)
    if not convolves and all(one.ndim != 4 or one.shape[1] == 1 for one in tensors):
        return True
    devices = [tensors[0].device] if tensors[0].is_cuda else []
    with torch.random.fork_rng(devices=devices):
        try:
            trial = copied(model)
            with computing(trial):
                outputs_of(trial.eval(), inputs)
                torch.autograd.backward(outputs_of(trial.train(), inputs).square().sum())
        except Exception:  # A user's client may call the network with other inputs.
            return False
    return True


def _contiguous(_: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(one.contiguous() if isinstance(one, Tensor) else one for one in inputs)
