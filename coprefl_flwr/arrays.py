"""Named arrays: the form in which a model's weights and gradients are sent and added.

`Arrays` maps a name (a key of the model's `state_dict`) to a NumPy array. In a message, Flower's
`ArrayRecord` holds the same names and arrays. Only `to_record` and `from_record` convert between
the two. The records that this module makes are serialised only when their bytes are read. A message
that never leaves the process, as on the local grid, is therefore never serialised.
"""

import functools
import hashlib
import math
from collections.abc import Collection, Mapping
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
"""Flower's name of the format in which it serialises NumPy arrays."""


class Array(FlowerArray):  # Flower sends the class's name, which must be `Array`.
    """A Flower `Array` that refers to a NumPy array and serialises it only when `data` is read.

    The NumPy array must not be modified. Assigning `data` turns this into an ordinary `Array`.
    """

    array: npt.NDArray[Any] | None

    def __init__(self, array: npt.NDArray[Any]) -> None:
        # Flower's __setattr__ would treat each assignment as a change.
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
        """Return a copy of the NumPy array."""
        return super().numpy() if self.array is None else _copied(self.array)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Ray, by which a simulation sends messages, uses protocol 5: NumPy's memory is then copied
        # once, and not at all by the reader. Otherwise, the other process needs none of our code.
        if protocol >= 5 and self.array is not None:
            return Array, (self.array,)
        return FlowerArray, (self.dtype, self.shape, self.stype, self.data)


def _copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy in Fortran order if the array is in Fortran order only, or else in C order."""
    return array.copy("F" if array.flags.fnc else "C")


def lazy_array(array: npt.NDArray[Any], *, copy: bool) -> FlowerArray:
    """Return a Flower Array of a copy of `array`, or without `copy` of the same memory.

    An array in neither C nor Fortran order is always copied. An array whose dtype is not bool, int,
    uint or float is serialised at once, because its serialisation may fail.
    """
    if array.dtype.kind not in "biuf":
        return FlowerArray(array)
    return Array(_copied(array) if copy or not array.flags.forc else array)


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """Return {name: record} of the records of type `kind` in the content of a message.

    Flower's `content.array_records` and similar attributes are not used: they form a reference
    cycle with the content, so models would stay in memory until Python's garbage collection.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def numbers_of(array: FlowerArray) -> npt.NDArray[Any]:
    """Return the NumPy array of a Flower Array; do not modify it, as its memory may be shared."""
    shared = array.array if isinstance(array, Array) else None
    return array.numpy() if shared is None else shared


HEADER = 128
"""Length in bytes of the header of NumPy's file format; it is larger only for 10 or more axes."""


def size_of(array: FlowerArray) -> int:
    """Return the length of `array.data` in bytes, without serialising the array."""
    shared = array.array if isinstance(array, Array) else None
    return len(array.data) if shared is None else HEADER + shared.nbytes


def to_record(arrays: Arrays, *, copy: bool = True) -> ArrayRecord:
    """Return a Flower record that holds copies of `arrays`, in their order.

    Without `copy`, the record shares the memory of `arrays`, which must not be modified any more.
    """
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = lazy_array(np.asarray(array), copy=copy)
    return record


def from_record(record: ArrayRecord, *, copy: bool = True) -> Arrays:
    """Return copies of the arrays of a Flower record, in their order.

    Without `copy`, the arrays must not be modified, because their memory may be shared.
    """
    return {name: array.numpy() if copy else numbers_of(array) for name, array in record.items()}


SEAL = "coprefl"
"""The key in the header of a safetensors file whose value is a checksum, followed by a text."""


def checksum_of(arrays: Arrays, text: str = "") -> str:
    """Return the SHA-256 of arrays and of a text; the order of the arrays does not matter."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"\0{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # A view, not a copy.
    return digest.hexdigest()


def write_sealed(
    file: str | Path,
    arrays: Arrays,
    text: str,
    *,
    durable: bool = True,
    reuse: Path | None = None,
) -> None:
    """Write arrays, a text and a checksum of arrays and text to a safetensors file, in one step.

    Without `durable`, there is no checksum; for this and `reuse`, see `write_atomically`.
    """
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    checksum = checksum_of(whole, text) if durable else ""
    # One entry for text and checksum, as safetensors writes several entries in random order.
    content = save(whole, {SEAL: f"{checksum} {text}"})
    write_atomically(file, content, durable=durable, reuse=reuse)


def read_sealed(file: str | Path) -> tuple[Arrays, str]:
    """Return the arrays and the text that `write_sealed` wrote.

    Raises a ValueError with the reason if the file does not exist or does not match its checksum.
    """
    try:
        with safe_open(str(file), framework="numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            known, _, text = opened.metadata()[SEAL].partition(" ")
    except (OSError, SafetensorError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(one_line(error)) from error
    if known and known != checksum_of(arrays, text):
        raise ValueError("it is damaged: its checksum does not match")
    return arrays, text


E = TypeVar("E")


# ---- numbers -------------------------------------------------------------------------------------

BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")
"""PyTorch's names for the running statistics of BatchNorm and InstanceNorm."""


def is_buffer(name: str, array: npt.NDArray[Any], buffers: Collection[str] = ()) -> bool:
    """Return whether an array is a buffer: one of `buffers`, or else by its name and dtype.

    Methods differ in how they aggregate weights. Buffers are always averaged, weighted by the
    number of samples. Without `buffers`, the names of the module's buffers, only BatchNorm's
    statistics and arrays that are not floating-point can be distinguished from weights.
    """
    batch_norm = name.rpartition(".")[2] in BATCH_NORM
    return batch_norm or array.dtype.kind != "f" or name in buffers


CORRECTION = ".lora_correction"
"""End of the name of a layer's correction, which makes the mean of LoRA's adapters exact."""


def without_corrections(arrays: Mapping[str, E]) -> dict[str, E]:
    """Return the arrays without corrections, which clients do not change."""
    return {name: array for name, array in arrays.items() if not name.endswith(CORRECTION)}


def weights_of(arrays: Arrays, buffers: Collection[str] = ()) -> Arrays:
    """Return the arrays that are weights, without the buffers (see `is_buffer`)."""
    return {name: array for name, array in arrays.items() if not is_buffer(name, array, buffers)}


def read_only(arrays: Arrays) -> Arrays:
    """Return read-only views of `arrays`."""
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def norm(arrays: Arrays) -> float:
    """Return the l2 norm, in float64, of all elements of all arrays."""
    flat = (array.ravel("K").astype(np.float64, copy=False) for array in arrays.values())
    return math.sqrt(sum(float(np.dot(numbers, numbers)) for numbers in flat))


def zeros_like(arrays: Arrays) -> Arrays:
    """Return zeros with the names and shapes of `arrays`, in dtypes promoted with float32.

    Sums over rounds begin with these zeros. A sum in float16 would soon stop changing.
    """
    return {n: np.zeros(a.shape, np.promote_types(a.dtype, np.float32)) for n, a in arrays.items()}


def append_prefixed(arrays: Mapping[str, E], label: str, more: Mapping[str, E]) -> dict[str, E]:
    """Return `arrays` and the entries of `more`, renamed to ".LABEL/NAME", for a single record.

    No name of a model's array begins with a point: it is the name of a layer, which has no point.
    """
    return {**arrays, **{f".{label}/{name}": array for name, array in more.items()}}


def split_prefixed(arrays: Mapping[str, E], label: str) -> tuple[dict[str, E], dict[str, E]]:
    """Return the two arguments `arrays` and `more` of `append_prefixed` from its result."""
    mark = f".{label}/"
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
    """Return the reason why `arrays` cannot replace `template`, or None if they can.

    Names and shapes must equal those of the template. All numbers must be real, and finite in the
    template's dtype. With `subset`, arrays may be missing, and arrays of integers must be missing,
    because a gradient has only trainable parameters. `weights` gives, by name, the weight by which
    a sum will be divided: an array is checked after the division.
    """
    unknown = [name for name in arrays if name not in template]
    missing = [name for name in template if name not in arrays]
    if unknown:
        return f"array '{unknown[0]}' is not one of the {len(template)} expected arrays"
    if missing and not (subset and arrays):
        return f"array '{missing[0]}' is missing"
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            return f"array '{name}' has dtype {array.dtype}; real numbers are needed"
        if subset and template[name].dtype.kind != "f":
            why = f"is not a trainable parameter ({template[name].dtype})"
            return f"array '{name}' {why}: leave it out"
        if array.shape != template[name].shape:
            return f"array '{name}' has shape {array.shape}; expected is {template[name].shape}"
        problem = beyond(array, template[name].dtype, (weights or {}).get(name, 1.0))
        if problem:
            return f"array '{name}' holds {problem}"
    return None


LARGEST_NUMBER = 1e200
"""The largest number that counts as finite; sums of such numbers are finite in float64."""


def beyond(array: npt.NDArray[Any], dtype: np.dtype[Any], weight: float = 1.0) -> str | None:
    """Describe a number of `array` / `weight` outside the range of `dtype`, or return None."""
    if not array.size or (array.dtype == dtype and dtype.kind in "biu"):
        return None
    least, most = _range(dtype)
    if array.dtype.kind == dtype.kind == "f":
        # One pass instead of two, for nearly all arrays: no number is larger than the l2 norm.
        numbers = array.ravel("K")
        with np.errstate(all="ignore"):
            length = math.sqrt(np.dot(numbers, numbers))
        if 2 * length / weight <= most:  # Twice, because the norm is rounded.
            return None
    low, high = array.min().item(), array.max().item()
    if not (math.isfinite(low) and math.isfinite(high)):
        return "a NaN or an infinity"
    for number in (low, high):
        # No division by 1: a division would round integers above 2^53.
        mean = number if weight == 1 else number / weight
        if not least <= (mean if dtype.kind == "f" else round(mean)) <= most:
            return f"{mean:g}, which is outside the range of {dtype}"
    return None


@functools.lru_cache
def _range(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest and the largest number of a dtype, within LARGEST_NUMBER."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    most = min(float(np.finfo(dtype).max), LARGEST_NUMBER)
    return -most, most


def cast(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a copy of an array of sums in `dtype`; for an integer or bool dtype, it is rounded."""
    if not np.issubdtype(dtype, np.inexact):
        array = np.rint(array)
    return np.asarray(array.astype(dtype))  # NumPy may have made a scalar of a 0-d array.


def cast_like(arrays: Arrays, template: Arrays) -> Arrays:
    """Return `arrays` with the dtypes and in the order of the template."""
    return {
        name: cast(np.asarray(arrays[name]), old.dtype)
        for name, old in template.items()
        if name in arrays
    }
