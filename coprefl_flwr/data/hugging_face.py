"""Datasets of the library `datasets`: of the Hugging Face Hub, or a folder on disk."""

from pathlib import Path
from typing import Any

import numpy as np

from coprefl_flwr.data.dataset import Dataset
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.data.user_data import LABELS, as_dataset, parts_of
from coprefl_flwr.errors import check_name, prefixed
from coprefl_flwr.files import expanded
from coprefl_flwr.named import parse, split_options

HUGGING_FACE = "hf:"
_OPTIONS = ("label", "image", "groups", "domains", "name")

# Files that `save_to_disk` writes for a dict of datasets, and for a single dataset.
_SAVED = ("dataset_dict.json", "state.json")


def read_hugging_face(name: str, relabel: bool, reduction: Reduction) -> Dataset:
    """Read the dataset `hf:NAME` of the Hub, or `hf:FOLDER`, a folder written by `save_to_disk`.

    Options may follow, as in `hf:NAME:key=value,...`: label, image, groups, domains and name. Only
    the images that `reduction` draws are decoded, one after another, and resized at once: the whole
    dataset may be larger than the memory. Raises a SettingsError of one line if the dataset does
    not exist, or if `as_dataset` does not accept it.
    """
    import datasets  # Imported here, because the import takes seconds.

    what, (place, given) = f"dataset '{name}'", parse(name.removeprefix(HUGGING_FACE))
    options: dict[str, Any] = {key: str(value) for key, value in given.items()}
    for key in options:
        check_name("option", key, _OPTIONS, what)
    configuration = options.pop("name", None)
    path = expanded(place)
    tried = "could not be read" if path.exists() else "is no folder and not found on the Hub"
    with prefixed(f"{what} {tried}", of=Exception):  # The library raises any type of error.
        if any((path / file).is_file() for file in _SAVED):
            stored: Any = datasets.load_from_disk(str(path))
        else:
            source = str(path) if path.exists() else place
            stored = datasets.load_dataset(source, configuration)
    parts = _drawn(parts_of(what, stored), options.get("label"), reduction)
    how = {"image_size": reduction.image_size, "columns": options.pop("image", ())}
    dataset = as_dataset(what, parts, relabel, **how, **options)
    # Nothing is drawn or resized a second time; a dataset without images is refused.
    return reduction.of(what, dataset)


def _drawn(parts: dict[str, Any], label: str | None, reduction: Reduction) -> dict[str, Any]:
    """Return the parts of a dataset with only the samples that `reduction` draws."""
    columns = next(iter(parts.values())).column_names
    label = label or next((name for name in columns if name.lower() in LABELS), None)
    if not reduction.samples_per_class or label not in columns:
        return parts
    labels = [np.array(part[label]) for part in parts.values()]
    rows = reduction.rows(np.concatenate(labels))
    starts = np.cumsum([0, *map(len, labels)])
    return {
        name: parts[name].select(rows[(rows >= start) & (rows < end)] - start)
        for name, start, end in zip(parts, starts[:-1], starts[1:], strict=True)
    }


def files_of(name: str) -> list[Path]:
    """Return the files with the samples of a dataset `hf:FOLDER`, and [] for other datasets.

    Files that start with "." or "cache-", and the metadata files of the library `datasets`, are
    left out: they differ between copies of the same samples.
    """
    folder = expanded(split_options(name.removeprefix(HUGGING_FACE))[0])
    if not name.startswith(HUGGING_FACE) or not folder.is_dir():
        return []
    notes = (*_SAVED, "dataset_info.json")
    files = (file for file in folder.rglob("*") if file.is_file() and file.name not in notes)
    return sorted(file for file in files if not file.name.startswith((".", "cache-")))
