"""A simulated GPU for machines without one: code that would fail on a GPU fails here too.

The tensors of the simulated GPU report torch's `lazy` device, whose autograd runs on the CPU's
thread. Each of them holds a CPU tensor that does the computing, so results equal the CPU's results
to the last bit. The device refuses what CUDA refuses, with CUDA's error messages: an operation on
tensors of both devices, a NumPy view of a tensor on the device, and a generator of the CPU. After a
copy to the CPU without a wait, the numbers are wrong until the program waits.
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
"""Operations that copy values from one device to the other."""
READING = aten._local_scalar_dense.default
"""The operation that gives the only number of a tensor to Python."""
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""Operations whose indices may be on the CPU."""


class Remote(Tensor):
    """A tensor of the simulated device; `held` is the CPU tensor that computes for it."""

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
        """Compute with tensors that are still on the device after a test has ended."""
        return run(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        """Raise an error as CUDA's tensors do, unless `force` is set."""
        if not force:
            told = f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() "
            raise TypeError(f"{told}to copy the tensor to host memory first.")
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        """Return the tensor's values, as CUDA's tensors do."""
        return self.detach().cpu().tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        """Return a new tensor on the same device."""
        return torch.tensor(data, **({"dtype": self.dtype, "device": self.device} | options))


def filled(data: Any, *, device: Any = None, requires_grad: bool = False, **options: Any) -> Tensor:
    """Replace `torch.tensor`: fill the tensor on the CPU, then move it to the device.

    `torch.tensor` fills a new tensor without an operation that the device could see.
    """
    made = _TENSOR(data, **options)
    return (made if device is None else made.to(device)).requires_grad_(requires_grad)


_TENSOR = torch.tensor


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run one operation on the CPU, after the checks that a GPU would make."""
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
    if func is aten.copy_.default:  # The result is on the CPU if it was copied to the CPU.
        there = id(found) in remote
    return _mapped(lambda one: _remote(one, remote), found) if there else found


def _check(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
    """Refuse CPU tensors in an operation of the device, except numbers and indices as in CUDA."""
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
"""Copies to the CPU that no code has waited for, with the numbers they will hold."""


def _underway(numbers: Tensor) -> Tensor:
    """Return a copy that holds wrong numbers until the program waits."""
    unknown = float("nan") if numbers.is_floating_point() else -1
    copy = torch.full_like(numbers, unknown, dtype=numbers.dtype)
    _UNDERWAY.append((copy, numbers))
    return copy


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Remote) else value


def _remote(value: Any, known: dict[int, Remote]) -> Any:
    """Return a result as a tensor of the device; a tensor that was written into stays the same."""
    if not isinstance(value, Tensor):
        return value
    return known[id(value)] if id(value) in known else Remote(value)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        yield from _leaves(one) if isinstance(one, list | tuple) else (one,)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply the function to every leaf; torch's `tree_map` would take most of a test's time."""
    if isinstance(value, list | tuple):
        return type(value)(_mapped(function, one) for one in value)
    return function(value)


class Operations(TorchDispatchMode):
    """Passes every operation to `run`, also an operation that makes a tensor and gets no `Remote`.

    `on_device` counts the operations of the device. `waits` counts how often the program has waited
    until all of them were done. A copy from one device to the other waits, unless it is
    non-blocking.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_device = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it ran on the device."""
        found = run(func, args, kwargs or {})
        self.on_device += any(isinstance(one, Remote) for one in _leaves([found]))
        self.waits += _waits(func, args, kwargs or {}, found)
        return found

    def arrive(self, _device: torch.device) -> None:
        """Wait until the copies to the CPU have arrived."""
        self.waits += 1
        for copy, numbers in _UNDERWAY:
            copy.copy_(numbers)
        _UNDERWAY.clear()


def _waits(func: Any, args: Any, kwargs: Any, found: Any) -> bool:
    """Return whether CUDA finishes all earlier operations before this operation returns."""
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
    """Let this process compute on the simulated device if no device is chosen."""
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
