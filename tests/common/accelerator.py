"""A device that is not the CPU, for machines without one: what would fail on a GPU fails here.

Its tensors call themselves torch's `lazy` device, whose autograd runs on the CPU's thread, and hold
CPU tensors, which do the computing: results are the CPU's to the last bit. What CUDA refuses is
refused in its words: an operation on tensors of both devices, NumPy's view of a tensor there, a
generator of the CPU's. What is copied to the CPU without a wait is no number until there was one.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coprefl_flwr import transfer
from coprefl_flwr.learning import device

DEVICE, CPU = torch.device("lazy"), torch.device("cpu")
aten = torch.ops.aten

BETWEEN = {aten.copy_.default, aten._to_copy.default}
"""Operations that bring values from one device to the other."""
READING = aten._local_scalar_dense.default
"""What gives a tensor's only number to Python."""
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""Operations whose indices may be on the CPU."""


class Remote(Tensor):
    """A tensor of the simulated device; `held` is the CPU's that computes for it."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Remote":
        """Wrap a CPU tensor."""
        remote: Remote = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        remote.held = held
        return remote

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute with what a test left on the device when it ended."""
        return run(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as CUDA's tensors do."""
        if not force:
            told = f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() "
            raise TypeError(f"{told}to copy the tensor to host memory first.")
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        """Return its values, as CUDA's tensors do."""
        return self.detach().cpu().tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        """Return a new tensor on the same device."""
        return torch.tensor(data, **({"dtype": self.dtype, "device": self.device} | options))


def filled(data: Any, *, device: Any = None, requires_grad: bool = False, **options: Any) -> Tensor:
    """Do what `torch.tensor` does, which fills by itself what it makes: let it, on the CPU."""
    made = _TENSOR(data, **options)
    return (made if device is None else made.to(device)).requires_grad_(requires_grad)


_TENSOR = torch.tensor


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run one operation on the CPU, after checking what a GPU's would."""
    tensors = [one for one in _leaves((*args, *kwargs.values())) if isinstance(one, Tensor)]
    remote = {id(one.held): one for one in tensors if isinstance(one, Remote)}
    asked = kwargs.get("device")
    there = bool(remote) if asked is None else asked.type == DEVICE.type
    if not remote and not there:
        return func(*args, **kwargs)
    if func not in BETWEEN:
        _check(func, args, kwargs, tensors)
    if asked is not None:
        kwargs = {**kwargs, "device": CPU}
    named = {key: _mapped(_held, value) for key, value in kwargs.items()}
    found = func(*_mapped(_held, args), **named)
    if func is aten._to_copy.default and not there and kwargs.get("non_blocking"):
        return _underway(found)
    if func is aten.copy_.default:  # The CPU's, where that was written into.
        there = id(found) in remote
    return _mapped(lambda one: _remote(one, remote), found) if there else found


def _check(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
    """Refuse CPU tensors among those of the device, but for the numbers and indices CUDA takes."""
    indices = {id(one) for one in _leaves([args[1]])} if func in INDEXING else set()
    for position, one in enumerate(tensors):
        written = position == 0 and func._schema.is_mutable
        number = one.dim() == 0 and torch.Tag.pointwise in func.tags and not written
        if not isinstance(one, Remote) and not number and id(one) not in indices:
            told = "Expected all tensors to be on the same device, but found at least two devices"
            raise RuntimeError(f"{told}, {DEVICE} and cpu! ({func})")
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a '{DEVICE}' device type for generator but found 'cpu'")


_UNDERWAY: list[tuple[Tensor, Tensor]] = []
"""Copies to the CPU that nobody has waited for, and the numbers they will hold."""


def _underway(numbers: Tensor) -> Tensor:
    """Return what holds something else until somebody waits."""
    unknown = float("nan") if numbers.is_floating_point() else -1
    copy = torch.full_like(numbers, unknown, dtype=numbers.dtype)
    _UNDERWAY.append((copy, numbers))
    return copy


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Remote) else value


def _remote(value: Any, known: dict[int, Remote]) -> Any:
    """Return what stands for a result of the CPU's; what was written into stands for itself."""
    if not isinstance(value, Tensor):
        return value
    return known[id(value)] if id(value) in known else Remote(value)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        yield from _leaves(one) if isinstance(one, list | tuple) else (one,)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return the function of every leaf; torch's own `tree_map` takes most of a test's time."""
    if isinstance(value, list | tuple):
        return type(value)(_mapped(function, one) for one in value)
    return function(value)


class Operations(TorchDispatchMode):
    """Takes every operation to `run`: one that makes a tensor has none of ours to be known by.

    `on_device` counts the device's operations; `waits` how often the program has waited until it
    had done them all, as a copy from one device to the other does unless it is told not to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_device = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it was the device's."""
        found = run(func, args, kwargs or {})
        self.on_device += any(isinstance(one, Remote) for one in _leaves([found]))
        self.waits += _waits(func, args, kwargs or {}, found)
        return found

    def arrive(self, _device: torch.device) -> None:
        """Wait until what is copied to the CPU is there."""
        self.waits += 1
        for copy, numbers in _UNDERWAY:
            copy.copy_(numbers)
        _UNDERWAY.clear()


def _waits(func: Any, args: Any, kwargs: Any, found: Any) -> bool:
    """Tell whether an operation on CUDA returns only when all before it is done."""
    if func is READING:
        return isinstance(args[0], Remote)
    if func is aten.copy_.default:
        into, source, at_once = args[0], args[1], kwargs.get("non_blocking", any(args[2:3]))
    elif func is aten._to_copy.default:
        into, source, at_once = found, args[0], kwargs.get("non_blocking", False)
    else:
        return False
    return isinstance(into, Remote) != isinstance(source, Remote) and not at_once


@contextmanager
def accelerator() -> Iterator[Operations]:
    """Let this process compute on the simulated device where nobody says otherwise."""
    real = device.default_device
    users = [one for one in sys.modules.values() if vars(one).get("default_device") is real]
    try:
        for module in users:
            module.default_device = lambda: DEVICE  # type: ignore[attr-defined]
        operations = Operations()
        with (
            patch.object(torch, "tensor", filled),
            patch.object(Tensor, "pin_memory", Tensor.clone),
            patch.dict(transfer.WAITS, {DEVICE.type: operations.arrive}),
            operations,
        ):
            yield operations
    finally:
        for module in users:
            module.default_device = real  # type: ignore[attr-defined]
