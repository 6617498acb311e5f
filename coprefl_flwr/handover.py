"""Arrays of Flower's records that are serialised only when somebody asks for their bytes.

A message that never leaves the process, as on the local grid, is read by whoever it is for without
a byte being written. Anywhere else it is what Flower makes of the same array: where it is sent or
pickled, its bytes are asked for.
"""

import functools
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

NUMPY = FlowerArray(np.zeros(0)).stype
"""How Flower names the format of an array that it has from NumPy."""


class Array(FlowerArray):  # Called as Flower's, which writes the name into what it sends.
    """Flower's `Array` of a NumPy array, whose memory it shares: that must not change any more.

    What sets `data` makes an ordinary one of it.
    """

    kept: npt.NDArray[Any] | None

    def __init__(self, array: npt.NDArray[Any]) -> None:
        # Past Flower's __setattr__, which would note each as a change.
        self.__dict__.update(
            dtype=str(array.dtype), shape=tuple(array.shape), stype=NUMPY, kept=array, _bytes=b""
        )

    @property
    def data(self) -> bytes:
        """The array in NumPy's format; made anew each time, as few ask for it twice."""
        kept = self.kept
        return self.__dict__["_bytes"] if kept is None else FlowerArray(np.asarray(kept)).data

    @data.setter
    def data(self, value: bytes) -> None:
        self.__dict__.update(kept=None, _bytes=value)

    def numpy(self) -> npt.NDArray[Any]:
        """Return a copy."""
        kept = self.kept
        if kept is None:
            return super().numpy()
        return _copied(kept)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlowerArray):
            return NotImplemented
        return _fields(self) == _fields(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return FlowerArray, _fields(self)


def _fields(array: FlowerArray) -> tuple[str, tuple[int, ...], str, bytes]:
    return array.dtype, array.shape, array.stype, array.data


def _copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy in the order that NumPy's format keeps: C's, but for what is in Fortran's."""
    return array.copy("F" if array.flags.fnc else "C")


def handed(array: npt.NDArray[Any], *, copy: bool) -> FlowerArray:
    """Return an Array of a copy, or one that shares the memory of `array`.

    What is in neither C's nor Fortran's order is copied in any case, and what is not of plain
    numbers serialised at once, as that may fail.
    """
    if array.dtype.kind not in "biuf":
        return FlowerArray(array)
    return Array(_copied(array) if copy or not array.flags.forc else array)


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """Return the records of a kind that a message holds, by name.

    In the place of `content.array_records` and its like, which are in a cycle of references with
    the content: models would stay in memory until Python looks for cycles.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def is_handed(array: FlowerArray) -> bool:
    """Tell whether an Array has no bytes yet, but the numbers themselves."""
    return isinstance(array, Array) and array.kept is not None


def taken(array: FlowerArray) -> npt.NDArray[Any]:
    """Return the numbers of an Array, only to be read: they may be somebody else's memory."""
    kept = array.kept if isinstance(array, Array) else None
    return array.numpy() if kept is None else kept


def size_of(array: FlowerArray) -> int:
    """Return the bytes of `array.data`, without making them."""
    kept = array.kept if isinstance(array, Array) else None
    if kept is None:
        return len(array.data)
    return _header(kept.shape, kept.dtype.str, kept.flags.fnc) + kept.nbytes


@functools.lru_cache(maxsize=4096)
def _header(shape: tuple[int, ...], dtype: str, fortran: bool) -> int:
    """Return the bytes that NumPy's format puts before an array's numbers."""
    file = BytesIO()
    about = {"descr": dtype, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return len(file.getvalue())
