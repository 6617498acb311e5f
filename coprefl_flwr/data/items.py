"""The samples of a user's own data, one after the other: of a Dataset, a DataLoader or dicts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from coprefl_flwr.errors import SettingsError, one_line, unknown

Pick = Callable[[Any], tuple[Any, Any]]
"""Of an item, or of a batch of a DataLoader, its input and its label."""

LABELS = ("label", "labels", "fine_label", "target", "targets", "y", "class")
INPUTS = (
    "image", "images", "img", "input", "inputs", "x", "pixel_values", "features", "input_ids",
    "values", "data",
)  # fmt: skip
PARTS = ("train", "validation", "valid", "val", "test")
"""What the parts of a dict of datasets are called, in their order; others are left out."""


def parts_of(source: str, given: Any) -> list[tuple[str, Any]]:
    """Return (name, dataset) of the parts of a dict of datasets, or ("", the dataset)."""
    if not isinstance(given, Mapping):
        return [("", given)]
    found = [(name, given[name]) for name in PARTS if name in given]
    if not found and len(given) == 1:
        found = [("", part) for part in given.values()]
    if not found:
        names = ", ".join(map(str, given)) or "none"
        raise SettingsError(f"{source}: has the parts {names}; needed is train, or also test")
    return found


def check_map_style(source: str, given: Any) -> None:
    """Raise a SettingsError if something has no items by number, or none at all."""
    below = given.dataset if isinstance(given, data.DataLoader) else given
    if isinstance(below, data.IterableDataset) or not (
        hasattr(below, "__getitem__") and hasattr(below, "__len__")
    ):
        kind = type(below).__name__
        raise SettingsError(
            f"{source}: a map-style torch Dataset is needed, not {kind} (or a DataLoader of one, "
            "or a Hugging Face Dataset)"
        )
    if not len(below):
        raise SettingsError(f"{source}: the dataset is empty")


def class_names(given: Any, label: str = "") -> tuple[list[str] | None, bool]:
    """Return the names of the classes, and whether they are of these very samples.

    They are not where a Subset was taken of what has the names: it may lack classes.
    """
    if isinstance(given, data.DataLoader):
        return class_names(given.dataset, label)
    if isinstance(given, data.Subset):
        return class_names(given.dataset, label)[0], False
    if is_hugging_face(given):
        named = {key: one.names for key, one in given.features.items() if hasattr(one, "names")}
        only = next(iter(named.values())) if len(named) == 1 else None
        found = named.get(label) if label in given.features else only
        return list(map(str, found)) if found else None, False
    names = getattr(given, "classes", None)
    return list(map(str, names)) if isinstance(names, Sequence) else None, True


def is_hugging_face(given: Any) -> bool:
    """Tell whether something is a `datasets.Dataset`, without the seconds that its import takes."""
    return all(hasattr(given, name) for name in ("features", "column_names", "with_format"))


class Picker:
    """Finds the input and the label in the items of a dataset.

    `pick` does it where the user says so. Else an item is a pair, or a dict whose keys `label` and
    `image` hold them: found by their names, if there is one choice, where they are "". A dict that
    holds a further input, such as an attention mask, is refused unless `image` names the one that
    is meant. Single numbers and texts beside the input, such as an id, are no inputs.
    """

    def __init__(self, source: str, pick: Pick | None, label: str = "", image: str = "") -> None:
        self.source, self.pick, self.label, self.image = source, pick, label, image

    def __call__(self, item: Any, batched: bool) -> tuple[Any, Any]:
        """Return (input, label) of an item, or the inputs and labels of a batch."""
        if self.pick:
            value, label = self.pick(item)
        elif isinstance(item, Mapping):
            if not (self.label in item and self.image in item):
                self._find(list(map(str, item)), item, batched)
            value, label = item[self.image], item[self.label]
        else:
            value, label = item
        return value, label

    def _find(self, keys: list[str], item: Mapping[str, Any], batched: bool) -> None:
        """Settle which keys hold the label and the input."""
        for given in filter(None, (self.label, self.image)):
            if given not in keys:
                raise SettingsError(f"{self.source}: {unknown('column', given, keys)}")
        self.label = self.label or self._only("label", LABELS, keys)
        left = [key for key in keys if key != self.label]
        if self.image:
            return
        self.image = self._only("input", INPUTS, left)
        dropped = [key for key in left if key != self.image and _is_input(item[key], batched)]
        if dropped:
            raise SettingsError(
                f"{self.source}: its items have more than one input, and of {self.image} and "
                f"{', '.join(dropped)} only the first would be used; a model is given one input: "
                f"choose it by batch=lambda item: (item['{self.image}'], item['{self.label}']), or "
                f"behind a name: hf:NAME:image={self.image},label={self.label}"
            )

    def _only(self, what: str, known: Sequence[str], keys: list[str]) -> str:
        """Return the one key of a known name, or the one key that there is."""
        found = [key for key in keys if key.lower() in known] or keys
        if len(found) == 1:
            return found[0]
        raise SettingsError(
            f"{self.source}: its items have {', '.join(keys)}, and which is the {what} is not clear"
            "; tell it by batch=lambda item: (item['INPUT'], item['LABEL']), or behind a name: "
            "hf:NAME:image=INPUT,label=LABEL"
        )


def pairs(source: str, given: Any, picker: Picker) -> Iterator[tuple[Any, int]]:
    """Yield (input, label) of every sample, in the dataset's order.

    Raises a SettingsError for what a user's own code raises, and a label that is no whole number.
    """
    loader = _in_order(given) if isinstance(given, data.DataLoader) else None
    items, number = iter(loader or range(len(given))), 0
    what = "batch" if loader and loader.batch_size else "item"
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        except Exception as error:  # Whatever the user's own collate_fn raises.
            raise SettingsError(f"{source}: {what} {number}: {one_line(error)}") from error
        try:
            value, label = picker(item if loader else given[item], what == "batch")
            found = [(value, label)] if what == "item" else zip(value, label, strict=True)
            read = [(one, _whole(name)) for one, name in found]
        except SettingsError:
            raise
        except Exception as error:  # Whatever the user's own code raises.
            line = f"{source}: {what} {number} must be (input, label): {one_line(error)}"
            raise SettingsError(line) from error
        for one, exact in read:
            if not isinstance(exact, int):
                line = f"{source}: {what} {number} has label {exact}; whole numbers only"
                if isinstance(exact, float):
                    line += (
                        ", of an integer dtype: labels.long() of a tensor, int(label) of a float"
                    )
                raise SettingsError(line)
            yield one, exact
        number += 1


def _in_order(loader: "data.DataLoader[Any]") -> "data.DataLoader[Any]":
    """Return a loader of the same batches, in the dataset's order: none is drawn or left out."""
    size = loader.batch_size or (None if loader.batch_sampler is None else 64)
    # A generator of its own: a loader draws a number from torch's, even where nothing is shuffled.
    own = torch.Generator()
    return data.DataLoader(
        loader.dataset, batch_size=size, collate_fn=loader.collate_fn, generator=own
    )


def _whole(label: Any) -> int | Any:
    """Return a label of any kind, such as a tensor of one number, as an int; else as it is.

    Floats stay floats: targets of a regression may all be whole numbers.
    """
    plain = label.item() if hasattr(label, "item") else label
    number = plain if isinstance(plain, str | float) else int(plain)
    return number if number == plain else plain


def _is_input(value: Any, batched: bool) -> bool:
    """Tell whether an entry of a dict is an image, or several numbers for each item."""
    if isinstance(value, Mapping):
        return any(_is_input(one, batched) for one in value.values())
    if isinstance(value, list | tuple):
        first = value[0] if value else ""
        # torch's default collate_fn makes a list of tensors of a batch of lists.
        return _is_input(first, False) if batched else not isinstance(first, str)
    if hasattr(value, "getbands"):
        return True
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        return False
    return isinstance(value, Tensor | np.ndarray) and value.ndim > batched


def tensor(source: str, value: Any) -> Tensor:
    """Return an input as a tensor, an image of bytes as (C, H, W)."""
    if isinstance(value, Tensor):
        return value[None] if value.dtype == torch.uint8 and value.ndim == 2 else value
    if hasattr(value, "getbands") and value.mode in ("1", "P", "LA", "PA"):
        value = value.convert("RGB" if value.mode in ("P", "PA") else "L")
    if not (isinstance(value, np.ndarray | list) or hasattr(value, "getbands")):
        raise _no_input(source, value)
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise _no_input(source, value)
    found = torch.from_numpy(array)
    if found.dtype != torch.uint8 or found.ndim not in (2, 3):
        return found
    if found.ndim == 2:
        return found[None]
    channels_first = found.shape[0] <= 4 < found.shape[2]
    return found if channels_first else found.permute(2, 0, 1)


def _no_input(source: str, value: Any) -> SettingsError:
    kind = type(value).__name__
    return SettingsError(
        f"{source}: inputs are {kind}; allowed are PIL images, tensors and NumPy arrays, or lists "
        "of numbers"
    )
