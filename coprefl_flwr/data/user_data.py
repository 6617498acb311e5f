"""Convert a user's data to a `Dataset`: a torch Dataset, a DataLoader, a Hugging Face Dataset.

A dict of such datasets, such as {"train": ..., "test": ...}, is possible too. All samples are read
once, in their order, and kept in memory.
"""

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import data

from coprefl_flwr import seeds
from coprefl_flwr.data.dataset import Dataset, ImageDataset, Samples, make_dataset, renumbered
from coprefl_flwr.data.inputs import Inputs, joined, mapped
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.errors import SettingsError, check_name, excerpt, logger, one_line, prefixed

Pick = Callable[[Any], tuple[Any, Any]]
"""Function from an item to (input, label), or from a DataLoader's batch to (inputs, labels)."""
Collate = Callable[[list[Any]], Any]
"""Function from a list of items to a batch, as the `collate_fn` of a DataLoader."""

LABELS = ("label", "labels", "fine_label", "target", "targets", "y", "class")
INPUTS = (
    "image", "images", "img", "input", "inputs", "x", "pixel_values", "features", "input_ids",
    "values", "data",
)  # fmt: skip
PARTS = ("train", "validation", "valid", "val", "test")
"""Keys of a dict of datasets that are read, in this order; other keys are ignored."""

_ONE = "one is allowed: pad texts with collate="


def as_dataset(
    source: str,
    user_data: Any,
    relabel: bool = False,
    *,
    batch: Pick | None = None,
    columns: str | Sequence[str] = (),
    collate: Collate | None = None,
    label: str = "",
    groups: Any = None,
    domains: Any = None,
    image_size: int = 0,
    may_lack: bool = False,
) -> Dataset:
    """Return a user's data as a `Dataset` of this package.

    Parameters
    ----------
    source : name of the data, with which error messages begin
    user_data : a map-style torch Dataset; a DataLoader of a torch Dataset (its collate_fn is used,
        and the samples are never shuffled); a Hugging Face Dataset; a dict of these, such as a
        DatasetDict, in which the key "test" is the test split; or a `Dataset` of this package,
        which is returned unchanged if `relabel` is false
    relabel : if true, classes without samples are removed, and the labels of the other classes
        become 0, 1, 2, ... in the same order
    batch : function from an item to (input, label), or from a batch of the DataLoader to (inputs,
        labels); None: an item or a batch is already such a pair, or a dict with one key of LABELS
    columns : key of the input in an item or a batch that is a dict, or keys of several inputs; they
        are a dict then; (): all keys of INPUTS, and all with several numbers per sample
    collate : function from a list of all items to one batch, which pads sequences to one length;
        items that are dicts have the keys `columns`, if given, and those of labels
    label : key of the label in an item that is a dict; "": it is found by its name
    groups : the group of each sample, such as its writer: n names or numbers, or the key of the
        group in items that are dicts, such as the column of a Hugging Face Dataset; None: no groups
    domains : the domain of each sample, in the same form as `groups`
    image_size : side in pixels to which images of dtype uint8 are resized; 0: the original size
    may_lack : as in `make_dataset`

    An input is a PIL image, a tensor, an array or a list of numbers. All inputs have one shape.
    Several inputs of a sample, such as token ids and a mask, are a dict or a tuple of tensors or
    arrays (see `data.inputs`). An input of dtype uint8 is an image if its shape is (H, W) or (C, H,
    W), or, for arrays, (H, W, C). A label is a class number, an integer. Targets that are no
    classes are floats (regression, or 0 and 1 for several labels per sample) or arrays of several
    integers (such as an image of class numbers), all of one shape; floats become float32. Floats
    are no classes even if they are whole numbers: convert such labels with int(). The names of the
    classes are the attribute `classes` of the dataset (for a Subset, of the whole dataset), or the
    names of a Hugging Face ClassLabel.
    Raises a SettingsError that begins with `source` if the data has another form. If `relabel` is
    false, a class without samples also raises a SettingsError, unless `may_lack` is true.
    """
    given = {"groups": groups, "domains": domains}
    of_samples = {name: value for name, value in given.items() if value is not None}
    if isinstance(user_data, Dataset):
        numbered = _numbered(source, of_samples, len(user_data.labels))
        given_dataset = replace(user_data, **numbered) if numbered else user_data
        return renumbered(given_dataset) if relabel else given_dataset
    keys = {name: key for name, key in of_samples.items() if isinstance(key, str)}
    one = columns if isinstance(columns, str) else ""
    named = [one] if one else columns
    reader = _Reader(source, batch, label, one, named, collate, keys, Reduction(image_size))
    sizes, of_parts, parts = [0], [], parts_of(source, user_data)
    for part in parts.values():
        # Random transforms must give the same samples at each reading.
        with seeds.of_python_and_numpy(0), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            label_key = reader.read(part)
        sizes.append(len(reader.labels))
        of_parts.append(_class_names(source, part, label_key))
    with prefixed(f"{source}: targets have several shapes; {_ONE}", of=ValueError):
        labels = np.array(reader.labels)
    is_test = np.repeat([name == "test" for name in parts], np.diff(sizes))
    names = _common_names(source, of_parts)
    if names is not None and labels.dtype == np.int64 and labels.max() < len(names):
        names = names[: labels.max() + 1]  # A subset may have the names of the whole dataset.
    dataset = make_dataset(
        source,
        joined(reader.inputs, functools.partial(_stacked, source)),
        labels,
        names,
        test=is_test if is_test.any() and not is_test.all() else None,
        may_lack=may_lack or relabel,
        **_numbered(source, of_samples | reader.columns, len(labels)),
    )
    return renumbered(dataset) if relabel else dataset


_samples: "weakref.WeakKeyDictionary[Any, Samples]" = weakref.WeakKeyDictionary()


def training_dataset(source: str, user_data: Any, **options: Any) -> Dataset:
    """Return a user's data as `as_dataset` does; of a dict of splits, only the training split.

    The other splits are named in the log: what is tested must not be trained on. Images of dtype
    uint8 are scaled to 0..1 only, unless `user_data` is a `Dataset` of this package.
    """
    if isinstance(user_data, Mapping) and "train" in user_data:
        if others := [name for name in PARTS if name in user_data and name != "train"]:
            logger.info("%s: only the split train is used, without %s", source, ", ".join(others))
        user_data = user_data["train"]
    dataset = as_dataset(source, user_data, **options)
    if isinstance(dataset, ImageDataset) and not isinstance(user_data, Dataset):
        return dataset.without_normalisation()
    return dataset


def as_samples(source: str, user_data: Any, *, cached: bool = True) -> Samples:
    """Return the data of a client as `Samples`, with the labels of the data.

    `user_data` is a `Samples` object, which is returned unchanged, or a value that `as_dataset`
    accepts. Classes may be without samples. Images of dtype uint8 are scaled to 0..1 only: a
    normalisation by the mean and std of a client's images would differ between clients.

    A client is created again for every message. So the result is cached as long as `user_data`
    exists: a later change of its transform is not noticed. With `cached=False` it is read again.
    """
    if isinstance(user_data, Samples):
        return user_data
    with suppress(TypeError):  # An unhashable value, such as a list, cannot be cached.
        if cached and user_data in _samples:
            return _samples[user_data]
    dataset = training_dataset(source, user_data, may_lack=True)
    samples = Samples(dataset, np.arange(len(dataset.labels)), dataset.labels)
    with suppress(TypeError):
        _samples[user_data] = samples
    return samples


def parts_of(source: str, user_data: Any) -> dict[str, Any]:
    """Return {name of a split: dataset}, or {"": dataset}; SettingsError if not map-style."""
    parts = {"": user_data}
    if isinstance(user_data, Mapping):
        parts = {name: user_data[name] for name in PARTS if name in user_data}
        if not parts and len(user_data) == 1:
            parts = {"": next(iter(user_data.values()))}
    if not parts:
        names = ", ".join(map(str, user_data)) or "none"
        raise SettingsError(f"{source}: has the parts {names}; needed is train (test is optional)")
    for part in parts.values():
        whole: Any = part.dataset if isinstance(part, data.DataLoader) else part
        map_style = hasattr(whole, "__getitem__") and hasattr(whole, "__len__")
        if isinstance(whole, data.IterableDataset) or not map_style or not len(whole):
            needed = "a map-style Dataset that is not empty, of torch or Hugging Face"
            raise SettingsError(f"{source}: got the type {type(whole).__name__}; pass {needed}")
        if isinstance(part, data.DataLoader):
            _check_reads_all(source, part)
    return parts


def _check_reads_all(source: str, loader: Any) -> None:
    """Raise a SettingsError if a DataLoader's sampler may repeat samples or leave samples out."""
    if (sampler := type(loader.sampler)) not in (data.SequentialSampler, data.RandomSampler):
        problem = f"the DataLoader's {sampler.__name__} may repeat or leave out samples"
        raise SettingsError(f"{source}: {problem}; pass a loader of Subset(dataset, indices)")


def _class_names(source: str, part: Any, label: str) -> list[str] | None:
    """Return the names of a part's classes, or None if it has no names for its labels."""
    if isinstance(part, data.DataLoader | data.Subset):
        return _class_names(source, part.dataset, label)
    if isinstance(part, data.ConcatDataset):
        return _common_names(source, [_class_names(source, one, label) for one in part.datasets])
    if is_hugging_face(part):
        labelled = [key for key in part.features if hasattr(part.features[key], "names")]
        column = label if label in part.features or len(labelled) != 1 else labelled[0]
        names = part.features[column].names if column in labelled else None
        return list(map(str, names)) if names else None
    names = getattr(part, "classes", None)
    renumbers = getattr(part, "target_transform", None) is not None
    return list(map(str, names)) if isinstance(names, Sequence) and not renumbers else None


def _common_names(source: str, of_parts: Sequence[list[str] | None]) -> list[str] | None:
    """Return the names of the classes; SettingsError if two parts number classes differently."""
    named = [names for names in of_parts if names is not None]
    for other in named:
        if other != named[0]:
            shown = excerpt(" and ".join(map(", ".join, (named[0], other))))
            raise SettingsError(f"{source}: its parts name their classes differently: {shown}")
    return named[0] if named else None


# ---- samples -------------------------------------------------------------------------------------


@dataclass
class _Reader:
    """The inputs, labels and other columns of all samples that were read so far.

    `keys` is {"groups" or "domains": its key in items that are dicts}. `named` are given keys of
    inputs, and `one` is the key of the only input or "". The other attributes are as in
    `as_dataset`.
    """

    source: str
    batch: Pick | None
    label: str
    one: str
    named: Sequence[str]
    collate: Collate | None
    keys: dict[str, str]
    reduction: Reduction
    inputs: list[Inputs] = field(default_factory=list)
    labels: list[int | npt.NDArray[Any]] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def read(self, part: Any) -> str:
        """Append the samples of a dataset; return the key of the label, "" if items are pairs."""
        if self.collate:
            whole = part.dataset if isinstance(part, data.DataLoader) else part
            part = data.DataLoader(whole, collate_fn=functools.partial(self._batch, self.collate))
        batched = isinstance(part, data.DataLoader) and part.batch_sampler is not None
        what, label_key, number = "batch" if batched else "item", "", 0
        try:
            for item in _items(part):
                if self.batch:
                    value, label = self.batch(item)
                elif isinstance(item, Mapping):
                    if not label_key:
                        label_key, one, several = self._keys(item, batched)
                    label = item[label_key]
                    value = item[one] if one else {key: item[key] for key in several}
                else:
                    value, label = item
                values, labels = (_rows(value, label), label) if batched else ([value], [label])
                for one_input, one_label in zip(values, labels, strict=True):
                    self.inputs.append(self._tensors(one_input))
                    self.labels.append(_target(one_label))
                for name, key in () if self.collate else self.keys.items():
                    self._check_key(key, item if isinstance(item, Mapping) else ())
                    self.columns[name] += item[key] if batched else [item[key]]
                number += 1
        except SettingsError:
            raise
        except Exception as error:  # A user's code can raise any type of error.
            line = f"{self.source}: {what} {number} must be (input, label): {one_line(error)}"
            raise SettingsError(line) from error
        return label_key

    def _batch(self, collate: Collate, items: list[Any]) -> Any:
        """Return the batch of all items; keep the groups and domains, which a batch may lack."""
        for name, key in self.keys.items():
            self._check_key(key, items[0] if isinstance(items[0], Mapping) else ())
            self.columns[name] += [item[key] for item in items]
        if self.named and isinstance(items[0], Mapping):
            used = {*self.named, *LABELS, self.label}
            items = [{key: item[key] for key in item if key in used} for item in items]
        return collate(items)

    def _check_key(self, key: str, item: Iterable[str]) -> None:
        check_name("column", key, map(str, item), self.source)

    def _keys(self, item: Mapping[str, Any], batched: bool) -> tuple[str, str, Sequence[str]]:
        """Return the keys of an item's label, of its only input or "", and of its inputs."""
        unused = [key for key in item if key not in self.keys.values()]
        labels = [key for key in unused if key.lower() in LABELS]
        label = self._key("label", [self.label] if self.label else labels or unused, item)
        unused.remove(label)
        inputs = [key for key in self.named if key != label]
        if inputs:
            return label, self.one, [self._key("input", [key], item) for key in inputs]
        inputs = [k for k in unused if k.lower() in INPUTS or _is_input(item[k], batched)]
        one = "" if len(inputs) > 1 else self._key("input", inputs or unused, item)
        return label, one, inputs

    def _key(self, role: str, candidates: Sequence[str], item: Mapping[str, Any]) -> str:
        """Return the only candidate, a key of the item."""
        if len(candidates) != 1:
            unclear = f"its items have {', '.join(candidates)}, and it is not clear which is the"
            remedy = "pass batch=, or write :image=INPUT,label=LABEL after a dataset's name"
            raise SettingsError(f"{self.source}: {unclear} {role}: {remedy}")
        self._check_key(candidates[0], item)
        return candidates[0]

    def _tensors(self, value: Any) -> Inputs:
        """Return the input of a sample as a tensor, or its several inputs as tensors."""
        if isinstance(value, Mapping):
            return mapped(self._tensor, dict(value))
        several = isinstance(value, tuple) and all(getattr(one, "ndim", 0) for one in value)
        return mapped(self._tensor, value) if several else self._tensor(value)

    def _tensor(self, value: Any) -> Tensor:
        """Return an input as a tensor; a uint8 image becomes (C, H, W), and is resized."""
        if hasattr(value, "getbands") and value.mode in ("1", "LA", "P", "PA", "CMYK"):
            value = value.convert("L" if value.mode in ("1", "LA") else "RGB")
        if isinstance(value, Tensor):
            tensor = value.detach().cpu()
        else:
            array = np.array(value)
            if (
                array.dtype == np.uint8
                and array.ndim == 3
                and not array.shape[0] <= 4 < len(array.T)
            ):
                array = np.moveaxis(array, -1, 0)
            tensor = torch.from_numpy(array)
        if tensor.dtype != torch.uint8 or tensor.ndim not in (2, 3):
            return tensor
        return self.reduction.resized(tensor[None] if tensor.ndim == 2 else tensor)


def _rows(batch: Any, labels: Any) -> Iterable[Any]:
    """Return the inputs of each sample of a batch."""
    if isinstance(batch, Mapping):
        return (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
    several = isinstance(batch, tuple | list) and len(batch) < len(labels)
    return zip(*batch, strict=True) if several else batch


def _items(part: Any) -> Iterable[Any]:
    """Return the items of a dataset, or the batches of a DataLoader, in the dataset's order."""
    if not isinstance(part, data.DataLoader):
        return (part[position] for position in range(len(part)))
    # One batch, so that a function that pads gives all samples one length.
    whole: Any = part.dataset
    size = None if part.batch_sampler is None else len(whole)
    # A loader without a generator draws a number from torch's global generator, even if it does
    # not shuffle.
    own = torch.Generator()
    return data.DataLoader(whole, size, collate_fn=part.collate_fn, generator=own)


def _numbered(source: str, columns: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return the number of each sample's group or domain, (n,), in the order of their names.

    `columns` is {"groups" or "domains": n names or numbers}. Raises a SettingsError if there are
    not n of them, of one type.
    """
    numbered = dict[str, Any]()
    for name, column in columns.items():
        values = np.asarray(column)
        if values.dtype.kind == "O" and len({*map(type, values.ravel())}) == 1:  # pandas' strings
            values = np.array(values.tolist())
        missing = values.dtype.kind == "O" or (values.dtype.kind == "f" and np.isnan(values).any())
        if values.shape not in ((n,), (n, 1)) or missing:
            got = f"{name} are an array of {values.dtype}, of shape {values.shape}"
            raise SettingsError(f"{source}: {got}; needed are {n} names or numbers, of one type")
        names, numbers = np.unique(values, return_inverse=True)
        numbered[name] = numbers.reshape(-1)
        if name == "domains":
            numbered["domain_names"] = tuple(map(str, names.tolist()))
    return numbered


def _is_input(value: Any, batched: bool) -> bool:
    """Return whether a value of a dict can be an input: an image, or several numbers per item.

    Single numbers and strings, such as an id, are none.
    """
    array = value if isinstance(value, Tensor) else np.asarray(value)
    is_numeric = isinstance(array, Tensor) or array.dtype.kind in "biuf"
    return hasattr(value, "getbands") or (is_numeric and array.ndim > batched)


def _target(target: Any) -> int | npt.NDArray[Any]:
    """Return a class, such as an integer tensor of one element, as an int; else the target."""
    # Floats are targets of a regression even if they are whole numbers.
    numbers = np.asarray(target.detach().cpu() if isinstance(target, Tensor) else target)
    return int(numbers.item()) if numbers.size == 1 and numbers.dtype.kind in "biu" else numbers


def _stacked(source: str, inputs: list[Tensor]) -> Tensor:
    """Stack inputs of one shape; grey images get three channels if other images have colours."""
    shapes = {tuple(tensor.shape) for tensor in inputs}
    images = all(tensor.dtype == torch.uint8 and tensor.ndim == 3 for tensor in inputs)
    if images and {shape[0] for shape in shapes} == {1, 3}:
        inputs = [tensor.expand(3, *tensor.shape[1:]) for tensor in inputs]
        shapes = {tuple(tensor.shape) for tensor in inputs}
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        line = f"inputs have several shapes ({some}); {_ONE}, or set image-size for images"
        raise SettingsError(f"{source}: {line}")
    values = torch.stack(inputs)
    # float64 is NumPy's default, but networks compute in float32.
    return values.float() if values.dtype == torch.float64 else values


# ---- Hugging Face --------------------------------------------------------------------------------


def is_hugging_face(value: Any) -> bool:
    """Return whether a value is a `datasets.Dataset`, without the slow import of `datasets`."""
    return all(hasattr(value, name) for name in ("features", "column_names", "with_format"))
