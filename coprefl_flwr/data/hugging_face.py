"""Hugging Face datasets by name, `hf:NAME`, or from a folder, `hf:PATH`."""

from pathlib import Path
from typing import Any

from coprefl_flwr.data.image_files import without_ghostscript
from coprefl_flwr.data.of_torch import Columns, as_dataset
from coprefl_flwr.data.samples import Dataset
from coprefl_flwr.errors import SettingsError, one_line, unknown
from coprefl_flwr.files import expanded
from coprefl_flwr.named import Named, split_options

PREFIX = "hf:"
_OPTIONS = ("label", "image", "groups", "name")
_SAVED = ("dataset_dict.json", "state.json")  # What `save_to_disk` writes, of several parts or one.


def load_hugging_face(name: str, relabel: bool) -> Dataset:
    """Load `hf:NAME:key=value,...`, as `load_dataset` has it.

    Raises a SettingsError in one line if it is not there, offline, or not as `as_dataset` takes it.
    """
    what = f"dataset '{name}'"
    named = Named.parse(name.removeprefix(PREFIX))
    options = {key: str(value) for key, value in named.options}
    for key in options:
        if key not in _OPTIONS:
            raise SettingsError(f"{what}: {unknown('option', key, _OPTIONS)}")
    configuration = options.pop("name", None)
    given = _given(what, named.name, configuration)
    with without_ghostscript():
        return as_dataset(what, given, relabel, columns=Columns(**options))


def files_of(name: str) -> list[Path]:
    """Return the files that hold the samples of `hf:PATH`, none for a dataset of the Hub.

    What `datasets` notes beside them is another in every copy of the same samples.
    """
    if not name.startswith(PREFIX):
        return []
    folder = expanded(split_options(name.removeprefix(PREFIX))[0])
    if not folder.is_dir():
        return []
    noted = (*_SAVED, "dataset_info.json")
    files = (file for file in folder.rglob("*") if file.is_file() and file.name not in noted)
    return sorted(file for file in files if not file.name.startswith((".", "cache-")))


def _given(what: str, where: str, configuration: str | None) -> Any:
    """Return the Dataset or the DatasetDict of a name or a folder."""
    # Imported here: it takes seconds, which only programs that need it should wait for.
    import datasets

    path = expanded(where)
    if not where or (where.startswith((".", "/", "~")) and not path.exists()):
        raise SettingsError(f"{what}: the folder does not exist; write hf:NAME or hf:FOLDER")
    try:
        if any((path / file).is_file() for file in _SAVED):
            return datasets.load_from_disk(str(path))
        return datasets.load_dataset(str(path) if path.exists() else where, configuration)
    except Exception as error:  # The library raises of every kind, its own and of what it calls.
        tried = "could not be read" if path.exists() else "is no folder, nor found on the Hub"
        raise SettingsError(
            f"{what} {tried} ({one_line(error)}); without internet, name the folder of a "
            "`save_to_disk`: hf:FOLDER"
        ) from error
