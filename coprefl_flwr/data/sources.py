"""Load a dataset by name: embedded, torchvision, Hugging Face, an .npz file, a function."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from coprefl_flwr import plugins
from coprefl_flwr.data.dataset import Dataset, make_dataset
from coprefl_flwr.data.fractals import fractals
from coprefl_flwr.data.glyphs import glyphs, glyphs_in_domains
from coprefl_flwr.data.hugging_face import HUGGING_FACE, files_of, read_hugging_face
from coprefl_flwr.data.npz import read_npz
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.data.user_data import as_dataset
from coprefl_flwr.errors import SettingsError, prefixed, unknown
from coprefl_flwr.files import expanded

_FACTS = yaml.safe_load(Path(__file__).with_name("torchvision.yaml").read_text(encoding="utf-8"))
_EMBEDDED = {"glyphs": glyphs, "glyphs:domains": glyphs_in_domains, "fractals": fractals}
_NAMES = (*_EMBEDDED, *_FACTS["files"])


# ---- by name -------------------------------------------------------------------------------------


def load_dataset(
    name: str | Path,
    data_dir: str | Path = "",
    *,
    image_size: int = 0,
    samples_per_class: int = 0,
    seed: int = 0,
    relabel: bool = False,
) -> Dataset:
    """Load a dataset by its name. The last few datasets are cached: the same object is returned.

    Parameters
    ----------
    name : the name of an embedded dataset: "glyphs", "glyphs:domains" (7 of its classes in 4
        styles, which are the domains), or "fractals" (1,000 classes);
        of a torchvision dataset: CIFAR10, CIFAR100, EMNIST:byclass, FashionMNIST, KMNIST, MNIST,
        QMNIST, SVHN, USPS, or "CIFAR100:coarse" (CIFAR-100 with its 20 superclasses as labels);
        or the path of an .npz file; "PATH.npz:NAME" reads the labels from the file's array NAME;
        or "hf:NAME" for a dataset of the Hugging Face Hub, or "hf:FOLDER" for a folder written by
        `save_to_disk`. Options may follow, as in "hf:cifar100:label=fine_label,image=img": the
        columns `label`, `image`, `groups` (writers) and `domains`, and `name`, the name of a
        configuration. The splits train, validation and test are used;
        or a user's function, as "module:NAME" or "file.py:NAME". The function is called with
        `data_dir`, a `Path`, and returns a value that `as_dataset` accepts: a torch Dataset, a
        DataLoader, a Hugging Face Dataset, or a `Dataset` of this package
    data_dir : folder of the torchvision files, to which missing files are downloaded; "" means
        ~/.cache/coprefl_flwr
    image_size : side in pixels to which images are resized when they are loaded; 0: original size
    samples_per_class : at most this many samples of each class are used, drawn by `seed`; 0: all
    relabel : if true, classes without samples are removed, and the labels of the other classes
        become 0, 1, 2, ... in the same order

    Notes
    -----
    An .npz file holds the arrays `images` and `labels`; or, if it is split, `train_images`,
    `train_labels`, `test_images` and `test_labels` (and `val_images`, `val_labels`). Images are
    uint8 (N, H, W) or (N, H, W, C). Labels are integers (N,) or (N, 1), or other targets, numbers
    (N, *shape) (see `as_dataset`). Optional arrays are `classes` (names of the classes), `groups`
    and `domains` (integers, with the same prefixes as the labels), and `domain_names` (a domain is
    an index in it). With "PATH.npz:NAME", the array NAME replaces `labels`, and NAME_classes
    replaces `classes`. Programs in examples/data/ write other formats as .npz files or folders of
    Hugging Face: folders of images, Tiny-ImageNet, LEAF's FEMNIST and texts of speeches, whose
    windows of characters are predicted (`TextDataset`).

    Raises a SettingsError if the name is unknown, the path does not exist, the files have another
    form than described, the download fails, or `image_size` or `samples_per_class` is set for a
    dataset that has no images.
    """
    name = str(name)
    # If no samples are drawn, the dataset does not depend on the seed: all seeds share one entry in
    # the cache of `_load`.
    reduction = Reduction(image_size, samples_per_class, seed if samples_per_class else 0)
    code_hash = (plugins.hash_at("dataset", name) or "none") if _is_own(name) else ""
    own_file = [expanded(name), expanded(name.rpartition(":")[0])]
    files = [*files_of(name), *filter(Path.is_file, own_file)]
    file_stamps = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    folder = expanded(data_dir if str(data_dir) else "~/.cache/coprefl_flwr")
    return _load(name, folder, reduction, code_hash or str(file_stamps), relabel)


@functools.lru_cache(maxsize=8)
def _load(name: str, data_dir: Path, reduction: Reduction, version: str, relabel: bool) -> Dataset:
    """Load a dataset; the cache key `version` is the hash of a user's code, or dates of files."""
    what = f"dataset '{name}'"
    if name.startswith(HUGGING_FACE):
        return read_hugging_face(name, relabel, reduction)
    if reduction != Reduction():
        return reduction.of(what, _load(name, data_dir, Reduction(), version, relabel))
    if _is_own(name):
        value = plugins.call(name, plugins.find("dataset", name), (data_dir,))
        return as_dataset(what, value, relabel)
    stem, _, part = (name, "", "labels") if expanded(name).exists() else name.rpartition(":")
    file = expanded(stem)
    if file.is_file() and file.suffix == ".npz":
        return read_npz(file, part, relabel)
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    if name == "CIFAR100:coarse":
        fine = _load("CIFAR100", data_dir, reduction, version, False)
        superclasses = _FACTS["superclasses"]
        numbers = {
            member: number for number, names in enumerate(superclasses.values()) for member in names
        }
        labels = np.array([numbers[member] for member in fine.classes])[fine.labels]
        return replace(fine, labels=labels, classes=tuple(superclasses))
    if name == "EMNIST:byclass":
        return _load("EMNIST", data_dir, reduction, version, False)
    if name in _NAMES:
        return _published(name, data_dir)
    raise _unknown(name)


def _unknown(name: str) -> SettingsError:
    path = expanded(name)
    if path.exists():
        line = "only .npz files are read; examples/data/ has programs that convert other formats"
        return SettingsError(f"dataset '{name}': {line}")
    if path.suffix.startswith(".npz") or len(path.parts) > 1:
        return SettingsError(f"dataset '{name}': the path does not exist")
    hint = unknown("dataset", name, [*_NAMES, *plugins.brought("dataset")])
    return SettingsError(f"{hint} (or the path of an .npz file, hf:NAME, or module:NAME)")


def _is_own(name: str) -> bool:
    """Return whether a dataset's name means a user's function: module:NAME or file.py:NAME."""
    families = {known.partition(":")[0] for known in _NAMES}
    if name.partition(":")[0] in families or ".npz:" in name or name.startswith(HUGGING_FACE):
        return False
    return not expanded(name).exists() and plugins.is_place("dataset", name)


# ---- torchvision ---------------------------------------------------------------------------------


def _published(name: str, data_dir: Path) -> Dataset:
    """Load a torchvision dataset; download missing files. SettingsError if the download fails."""
    # The groups of QMNIST are the writers. EMNIST is read in its split byclass.
    # Imported here, because the import takes seconds and the glyphs do not need torchvision.
    from torchvision import datasets

    options: dict[str, Any] = {"EMNIST": {"split": "byclass"}, "QMNIST": {"compat": False}}

    def part(train: bool) -> Any:
        which = {"split": "train" if train else "test"} if name == "SVHN" else {"train": train}
        return getattr(datasets, name)(data_dir, download=True, **which, **options.get(name, {}))

    by_hand = f"copy {_FACTS['files'][name]} to {data_dir}"
    problem = f"dataset '{name}' could not be downloaded ({by_hand})"
    with prefixed(problem, of=(ImportError, OSError, RuntimeError)):
        parts = [part(True), part(False)]
    # Labels are (N,); for QMNIST (N, 8), with the digit in column 0 and the writer in column 2.
    column = "labels" if name == "SVHN" else "targets"
    targets = np.concatenate([np.asarray(getattr(p, column), dtype=np.int64) for p in parts])
    return make_dataset(
        f"dataset '{name}'",
        torch.cat([_channels_first(name, torch.as_tensor(part.data)) for part in parts]),
        targets[:, 0] if name == "QMNIST" else targets,
        getattr(parts[0], "classes", tuple("0123456789")),
        groups=targets[:, 2] if name == "QMNIST" else None,
        test=np.repeat([False, True], [len(part.data) for part in parts]),
    )


def _channels_first(name: str, images: Tensor) -> Tensor:
    if name == "EMNIST":
        # The images in the files are transposed, and torchvision returns them transposed.
        images = images.transpose(1, 2)
    if images.ndim == 3:
        return images.unsqueeze(1)
    return images if name == "SVHN" else images.permute(0, 3, 1, 2)
