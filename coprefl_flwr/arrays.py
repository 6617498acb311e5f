"""Named arrays: how a model's weights and gradients travel and are added up.

`Arrays` maps a name (a key of the model's `state_dict`) to a NumPy array. Flower's `ArrayRecord`
is the same thing in a message; `to_record` and `from_record` are the only border between them.
Records made here are serialised only when somebody asks for their bytes: a message that never
leaves the process, as on the local grid, is read without a byte being written.
"""

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coprefl_flwr.errors import one_line
from coprefl_flwr.files import write_atomically

Arrays = dict[str, npt.NDArray[Any]]


# ---- in records and files -----------------------------------------------------------------------

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

NUMPY = FlowerArray(np.zeros(0)).stype
"""How Flower names the format of an array that it has from NumPy."""


class Array(FlowerArray):  # Called as Flower's, which writes the name into what it sends.
    """A Flower `Array` that refers to a NumPy array and serialises it only when `data` is read.

    The NumPy array must not be modified. Assigning `data` turns this into an ordinary `Array`.
    """

    array: npt.NDArray[Any] | None

    def __init__(self, array: npt.NDArray[Any]) -> None:
        # Past Flower's __setattr__, which would note each as a change.
        self.__dict__.update(
            dtype=str(array.dtype), shape=tuple(array.shape), stype=NUMPY, array=array, _bytes=b""
        )

    @property
    def data(self) -> bytes:
        """The bytes of the array in NumPy's format, serialised again at each access."""
        array = self.array
        return self.__dict__["_bytes"] if array is None else FlowerArray(np.asarray(array)).data

    @data.setter
    def data(self, value: bytes) -> None:
        self.__dict__.update(array=None, _bytes=value)

    def numpy(self) -> npt.NDArray[Any]:
        """Return a copy."""
        return super().numpy() if self.array is None else _copied(self.array)

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
    """Return a copy in the order that NumPy's format keeps: C's, except what is in Fortran's."""
    return array.copy("F" if array.flags.fnc else "C")


def lazy_array(array: npt.NDArray[Any], *, copy: bool) -> FlowerArray:
    """Return an Array of a copy, or one that shares the memory of `array`.

    What is in neither C's nor Fortran's order is copied in any case, and what is not of plain
    numbers serialised at once, as that may fail.
    """
    if array.dtype.kind not in "biuf":
        return FlowerArray(array)
    return Array(_copied(array) if copy or not array.flags.forc else array)


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """Return the records of a kind that a message holds, by name.

    Instead of `content.array_records` and its like, which are in a cycle of references with
    the content: models would stay in memory until Python looks for cycles.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def is_lazy(array: FlowerArray) -> bool:
    """Return whether an Array still holds its NumPy array and has not been serialised to bytes."""
    return isinstance(array, Array) and array.array is not None


def numbers_of(array: FlowerArray) -> npt.NDArray[Any]:
    """Return an Array's numbers, which are only to be read: another object may own the memory."""
    shared = array.array if isinstance(array, Array) else None
    return array.numpy() if shared is None else shared


def size_of(array: FlowerArray) -> int:
    """Return the bytes of `array.data`, without making them."""
    shared = array.array if isinstance(array, Array) else None
    if shared is None:
        return len(array.data)
    return _header(shared.shape, shared.dtype.str, shared.flags.fnc) + shared.nbytes


@functools.lru_cache(maxsize=4096)
def _header(shape: tuple[int, ...], dtype: str, fortran: bool) -> int:
    """Return the bytes that NumPy's format puts before an array's numbers."""
    file = BytesIO()
    about = {"descr": dtype, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return len(file.getvalue())


def to_record(arrays: Arrays, *, copy: bool = True) -> ArrayRecord:
    """Return the Flower record that holds copies of `arrays`, in their order.

    Without `copy` it shares their memory, which then must not change any more.
    """
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = lazy_array(np.asarray(array), copy=copy)
    return record


def from_record(record: ArrayRecord, *, copy: bool = True) -> Arrays:
    """Return copies of the arrays of a Flower record, in their order.

    Without `copy` they are only to be read: the record's maker may share their memory.
    """
    return {name: array.numpy() if copy else numbers_of(array) for name, array in record.items()}


SEAL = "coprefl"
"""The entry of a safetensors file's header that holds a checksum, and behind it a text."""


def checksum_of(arrays: Arrays, text: str = "") -> str:
    """Return the SHA-256 of arrays, in whatever order, and of a text that belongs to them."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"\0{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # Its bytes, not a copy of them.
    return digest.hexdigest()


def write_sealed(file: str | Path, arrays: Arrays, text: str) -> None:
    """Write arrays, a text and the checksum of both as a safetensors file, in one step."""
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # One entry for text and checksum, as safetensors writes several in an order of chance.
    write_atomically(file, save(whole, {SEAL: f"{checksum_of(whole, text)} {text}"}))


def read_sealed(file: str | Path) -> tuple[Arrays, str]:
    """Return the arrays and the text that `write_sealed` wrote.

    Raises a ValueError that says what is wrong if the file is not there, or damaged.
    """
    try:
        with safe_open(str(file), framework="numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            known, _, text = opened.metadata()[SEAL].partition(" ")
    except (OSError, SafetensorError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(one_line(error)) from error
    if known != checksum_of(arrays, text):
        raise ValueError("it is damaged, as its checksum says")
    return arrays, text


# ---- numbers -------------------------------------------------------------------------------------

BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")
"""What PyTorch calls the statistics that BatchNorm and InstanceNorm keep."""


def is_buffer(name: str, array: npt.NDArray[Any]) -> bool:
    """Tell whether an array is a buffer: BatchNorm's statistics, or no floating-point number.

    Methods change weights; buffers are always averaged, weighted by samples. A network's own buffer
    of another name (spectral norm's vectors) cannot be distinguished from a weight here.
    """
    return name.rpartition(".")[2] in BATCH_NORM or array.dtype.kind != "f"


def weights_of(arrays: Arrays) -> Arrays:
    """Return the arrays that are weights, without the buffers."""
    return {name: array for name, array in arrays.items() if not is_buffer(name, array)}


def read_only(arrays: Arrays) -> Arrays:
    """Return views of `arrays` into which nobody can write."""
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def norm(records: Iterable[Arrays]) -> float:
    """Return the l2 norm, in float64, of all real numbers in some records of arrays."""
    total = 0.0
    for array in (array for arrays in records for array in arrays.values()):
        numbers = array.ravel("K") if array.dtype.kind in "biuf" else np.empty(0)
        numbers = numbers.astype(np.float64, copy=False)
        with np.errstate(all="ignore"):  # What is infinite is for other checks.
            total += float(np.dot(numbers, numbers))
    return math.sqrt(total)


def zeros_like(arrays: Arrays) -> Arrays:
    """Return zeros in the names and shapes of `arrays`, in their dtypes or float32 for float16.

    What is added up from round to round begins as these: in float16 it would soon stop changing.
    """
    return {n: np.zeros(a.shape, np.promote_types(a.dtype, np.float32)) for n, a in arrays.items()}


def append_prefixed(arrays: Arrays, label: str, more: Arrays) -> Arrays:
    """Return `arrays`, then `more`, named "LABEL/NAME": two quantities in one record."""
    return arrays | {f"{label}/{name}": array for name, array in more.items()}


def split_prefixed(arrays: Arrays, label: str) -> tuple[Arrays, Arrays]:
    """Undo `append_prefixed`."""
    mark = f"{label}/"
    first = {name: array for name, array in arrays.items() if not name.startswith(mark)}
    more = {n.removeprefix(mark): array for n, array in arrays.items() if n.startswith(mark)}
    return first, more


def mismatch(
    arrays: Arrays,
    template: Arrays,
    *,
    subset: bool = False,
    weights: Mapping[str, float] | None = None,
) -> str | None:
    """Say in a few words why `arrays` cannot take the place of `template`, or return None.

    Names and shapes must be the template's, and every number real and finite, also in the
    template's dtype. With `subset`, names may be missing, and integer arrays must be: a gradient
    covers the trainable parameters only. `weights` are those of sums, by name: the numbers are that
    much larger than those that will take the template's place.
    """
    unknown = [name for name in arrays if name not in template]
    missing = [name for name in template if name not in arrays]
    if unknown:
        return f"array '{unknown[0]}' is not one of the {len(template)} that were sent"
    if missing and not (subset and arrays):
        return f"array '{missing[0]}' is missing"
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            return f"array '{name}' is {array.dtype}, not of real numbers"
        if subset and template[name].dtype.kind != "f":
            why = "is no trainable parameter: it was sent as"
            return f"array '{name}' {why} {template[name].dtype}"
        if array.shape != template[name].shape:
            return f"array '{name}' has shape {array.shape}; the message had {template[name].shape}"
        problem = beyond(array, template[name].dtype, (weights or {}).get(name, 1.0))
        if problem:
            return f"array '{name}' holds {problem}"
    return None


LARGEST_NUMBER = 1e200
"""The largest number that counts as finite, so that a sum of float64 is finite too."""


def beyond(array: npt.NDArray[Any], dtype: np.dtype[Any], weight: float = 1.0) -> str | None:
    """Say which number of `array`, divided by `weight`, `dtype` cannot hold, or return None."""
    if not array.size or (array.dtype == dtype and dtype.kind in "biu"):
        return None
    low, high = array.min().item(), array.max().item()
    if not (math.isfinite(low) and math.isfinite(high)):
        return "a NaN or an infinity"
    least, most = _range(dtype)
    for number in (low, high):
        # Not divided by 1: whole numbers beyond 2^53 are compared as they are.
        mean = number if weight == 1 else number / weight
        if not least <= (mean if dtype.kind == "f" else round(mean)) <= most:
            return f"{mean:g}, which is beyond {dtype}"
    return None


@functools.lru_cache
def _range(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the least and the largest number that a dtype holds."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    most = min(float(np.finfo(dtype).max), LARGEST_NUMBER)
    return -most, most


def other_dtype(arrays: Arrays, template: Arrays) -> str | None:
    """Say which of `arrays` has another dtype than the template's, or return None."""
    for name, array in arrays.items():
        if array.dtype != template[name].dtype:
            return f"array '{name}' is {array.dtype}; the message had {template[name].dtype}"
    return None


def cast(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return sums in the dtype they came from, a copy; whole numbers and truths are rounded."""
    if not np.issubdtype(dtype, np.inexact):
        array = np.rint(array)
    return np.asarray(array.astype(dtype))  # An array too where it is of one number.


def _as_sum(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array in float64, or as it is where it would come back from there unchanged."""
    same = array.dtype == dtype and dtype.kind == "f" and dtype.itemsize <= 8
    return array if same else array.astype(np.float64, copy=False)


def cast_like(arrays: Arrays, template: Arrays) -> Arrays:
    """Return `arrays` in the template's dtypes and order."""
    return {
        name: cast(_as_sum(np.asarray(arrays[name]), old.dtype), old.dtype)
        for name, old in template.items()
        if name in arrays
    }
