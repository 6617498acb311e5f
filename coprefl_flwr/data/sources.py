"""Load a dataset by name: embedded, torchvision, Hugging Face, a file, a folder, a function."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor

from coprefl_flwr import plugins
from coprefl_flwr.data.dataset import Dataset, ImageDataset, make_dataset, renumbered
from coprefl_flwr.data.glyphs import glyphs, glyphs_in_domains
from coprefl_flwr.data.hugging_face import HUGGING_FACE, files_of, read_hugging_face
from coprefl_flwr.data.image_folders import Reduction, read_image_folder
from coprefl_flwr.data.readers import read_leaf, read_npz
from coprefl_flwr.data.text import CHARACTERS, TextDataset, read_text
from coprefl_flwr.data.user_data import as_dataset
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.files import expanded

# ---- published datasets --------------------------------------------------------------------------


class Published(NamedTuple):
    """Published facts about a dataset.

    `shape` is the shape of one input. `classes`, `train` and `test` are the numbers of classes, of
    training samples and of test samples. `files` are the files that torchvision reads: a user can
    copy them to a machine without internet. `domains` is {name of a domain: number of its samples}.
    `groups` is the number of writers or speakers.
    """

    shape: Sequence[int]
    classes: int
    train: int
    test: int = 0
    files: str = ""
    domains: dict[str, int] | None = None
    groups: int = 0


_FACTS = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
PUBLISHED = {name: Published(**known) for name, known in _FACTS["datasets"].items()}
"""{name: facts}; the name is torchvision's name of the dataset, or the last part of a path."""

TORCHVISION_DATASETS = tuple(name for name, known in PUBLISHED.items() if known.files)
"""Names of the datasets that are loaded by torchvision."""

_EMBEDDED = {"glyphs": glyphs, "glyphs:domains": glyphs_in_domains}
_NAMES = (*_EMBEDDED, *TORCHVISION_DATASETS)

SIZES = "sizes:"
"""Prefix of `data-dir`: nothing is downloaded.

A placeholder of the published size replaces a torchvision dataset, or a dataset that is missing.
"""


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
    name : the name of an embedded dataset: "glyphs", or "glyphs:domains" (7 of its classes in 4
        styles, which are the domains); of a torchvision dataset: CIFAR10, CIFAR100, EMNIST:byclass,
        FashionMNIST, KMNIST, MNIST, QMNIST, SVHN, USPS, or "CIFAR100:coarse" (CIFAR-100 with its 20
        superclasses as labels); or the path of

        - an .npz file; "PATH.npz:NAME" reads the labels from the file's array NAME
        - a .txt file of speeches; the task is to predict the next character (`TextDataset.of`). A
          window starts at every tenth character; with "PATH.txt:1" at every character, as in LEAF
        - a folder with FEMNIST in LEAF's format, `train/*.json` and `test/*.json`
        - the unpacked folder of Tiny-ImageNet
        - a folder of images, with the layout class/file, train/class/file with test/ or val/
          (ImageNet), or domain/class/file with the same classes in all domains (PACS)

        or "hf:NAME" for a dataset of the Hugging Face Hub, or "hf:FOLDER" for a folder written by
        `save_to_disk`. Options may follow, as in "hf:cifar100:label=fine_label,image=img": the
        columns `label`, `image` and `groups`, and `name`, the name of a configuration. The splits
        train, validation and test are used;
        or a user's function, as "module:NAME" or "file.py:NAME". The function is called with
        `data_dir`, a `Path`, and returns a value that `as_dataset` accepts: a torch Dataset, a
        DataLoader, a Hugging Face Dataset, or a `Dataset` of this package
    data_dir : folder of the torchvision files, to which missing files are downloaded; "" means
        ~/.cache/coprefl_flwr; with the prefix `SIZES` nothing is downloaded (see `stand_in`)
    image_size : side in pixels to which images are resized when they are loaded; 0: original size
    samples_per_class : at most this many samples of each class are used, drawn by `seed`; 0: all
    relabel : if true, classes without samples are removed, and the labels of the other classes
        become 0, 1, 2, ... in the same order

    Notes
    -----
    An .npz file holds the arrays `images` and `labels`; or, if it is split, `train_images`,
    `train_labels`, `test_images` and `test_labels` (and `val_images`, `val_labels`). Images are
    uint8 (N, H, W) or (N, H, W, C). Labels are integers (N,) or (N, 1). Optional arrays are
    `classes` (names of the classes), `groups` and `domains` (integers, with the same prefixes as
    the labels), and `domain_names` (a domain is an index in it). With "PATH.npz:NAME", the array
    NAME replaces `labels`, and NAME_classes replaces `classes`. The images of a folder must have
    one size unless they are resized. They become RGB unless all of them are grey.

    Raises a SettingsError if the name is unknown, the path does not exist, the files have another
    form than described, the download fails, `image_size` or `samples_per_class` is set for a
    dataset that has no images, or `relabel` is set for a text.
    """
    name = str(name)
    if str(data_dir).startswith(SIZES):
        data_dir = str(data_dir).removeprefix(SIZES)
        placeholder = stand_in(name, image_size, samples_per_class)
        if placeholder and (name in TORCHVISION_DATASETS or not expanded(name).exists()):
            return placeholder
    folder = Path(data_dir) if str(data_dir) else Path("~/.cache/coprefl_flwr")
    # If no samples are drawn, the dataset does not depend on the seed: all seeds share one entry in
    # the cache of `_load`.
    drawn_by = seed if samples_per_class else 0
    reduction = Reduction(image_size, samples_per_class, drawn_by)
    code_hash = (plugins.hash_at("dataset", name) or "none") if _is_own(name) else ""
    own_file = [expanded(name), expanded(name.rpartition(":")[0])]
    files = [*files_of(name), *filter(Path.is_file, own_file)]
    file_stamps = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return _load(name, expanded(folder), reduction, code_hash or str(file_stamps), relabel)


@functools.lru_cache(maxsize=8)
def _load(name: str, data_dir: Path, reduction: Reduction, version: str, relabel: bool) -> Dataset:
    """Load a dataset; the cache key `version` is the hash of a user's code, or dates of files."""
    what, path = f"dataset '{name}'", expanded(name)
    is_folder = bool(name) and name not in _NAMES and path.is_dir()
    if is_folder and not any((path / "train").glob("*.json")):
        dataset = read_image_folder(path, reduction)
        return renumbered(what, dataset) if relabel else dataset
    if reduction != Reduction():
        return reduction.of(what, _load(name, data_dir, Reduction(), version, relabel))
    # Labels may be large ids, for which a list of names would be too long. The next three readers
    # therefore relabel before they make a list of names.
    if _is_own(name):
        value = plugins.call(name, plugins.find("dataset", name), (data_dir,))
        return as_dataset(what, value, relabel)
    if name.startswith(HUGGING_FACE):
        return read_hugging_face(name, relabel)
    stem, _, part = (name, "", None) if path.is_file() else name.rpartition(":")
    file = expanded(stem)
    if file.is_file() and file.suffix == ".npz":
        return read_npz(file, "labels" if part is None else part, relabel)
    if file.is_file() and file.suffix == ".txt":
        if relabel:
            line = "relabel = true cannot be used for a text, whose classes are its characters"
            raise SettingsError(f"{what}: {line}")
        return read_text(file, part)
    if name in _EMBEDDED:
        dataset = _EMBEDDED[name]()
    elif name == "CIFAR100:coarse":
        fine = _load("CIFAR100", data_dir, reduction, version, False)
        superclasses = _FACTS["superclasses"]
        numbers = {
            member: number for number, names in enumerate(superclasses.values()) for member in names
        }
        labels = np.array([numbers[member] for member in fine.classes])[fine.labels]
        dataset = replace(fine, labels=labels, classes=tuple(superclasses))
    elif name == "EMNIST:byclass":
        dataset = _load("EMNIST", data_dir, reduction, version, False)
    elif name in TORCHVISION_DATASETS:
        dataset = _published(name, data_dir)
    elif is_folder:
        dataset = read_leaf(path)
    else:
        raise _unknown(name, path)
    return renumbered(what, dataset) if relabel else dataset


def _unknown(name: str, path: Path) -> SettingsError:
    paths = "the path of an .npz or a .txt file, or of a folder"
    if path.is_file():
        return SettingsError(f"dataset '{name}': the file is neither .npz nor .txt")
    if path.suffix.startswith((".npz", ".txt")) or len(path.parts) > 1:
        line = f"the path does not exist; allowed is {paths}"
        return SettingsError(f"dataset '{name}': {line}")
    known = [*_NAMES, *plugins.brought("dataset")]
    hint = unknown("dataset", name, known)
    return SettingsError(f"{hint} (or {paths}, hf:NAME, or module:NAME)")


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

    try:
        parts = [part(True), part(False)]
    except ImportError as error:
        needed = f"needs a package: pip install {error.name}"
        raise SettingsError(f"dataset '{name}' {needed}") from error
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().replace("\n", " ")
        raise SettingsError(
            f"dataset '{name}' is not in {data_dir} and could not be downloaded ({reason}); "
            f"copy {PUBLISHED[name].files} to that folder"
        ) from error
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


# ---- stand-ins -----------------------------------------------------------------------------------


class StandIn(ImageDataset):
    """Placeholder of a published dataset: all N images are views of one black image in memory."""

    def normalised_on(self, rows: object) -> "StandIn":
        """Return this dataset unchanged: the mean and std of black images are of no use."""
        return self


@functools.lru_cache(maxsize=4)
def stand_in(name: str, image_size: int = 0, samples_per_class: int = 0) -> Dataset | None:
    """Return a placeholder with the published size of the dataset `name`, but without content.

    Return None if no size is published for `name`. All classes have the same number of samples, to
    within one, and so have all groups. `image_size` and `samples_per_class` are as in
    `load_dataset`.
    """
    known = PUBLISHED.get(Path(name).name)
    if known is None:
        return None
    total = known.train + known.test
    n = min(total, known.classes * samples_per_class) if samples_per_class else total
    row, columns = np.arange(n), dict[str, Any]()
    columns["labels"] = row % known.classes
    if known.test:
        columns["test"] = row >= known.train * n // total
    if known.groups:
        columns["groups"] = row * known.groups // n
        # Test samples are spread over all groups.
        columns["test"] = row % (total // known.test if known.test else 5) == 0
    if len(known.shape) == 1:
        empty, starts = np.zeros(known.shape[0] + 1, np.uint8), np.zeros(n, np.int64)
        return TextDataset(empty, starts, known.shape[0], classes=CHARACTERS, **columns)
    if known.domains:
        counts = list(known.domains.values())
        columns["domains"] = np.repeat(np.arange(len(counts)), counts)[row * total // n]
        columns["domain_names"] = tuple(known.domains)
    channels, *sides = known.shape
    image = torch.zeros(1, channels, *([image_size] * 2 if image_size else sides)).byte()
    return StandIn(
        image.expand(n, -1, -1, -1),
        torch.zeros(channels),
        torch.ones(channels),
        classes=tuple(map(str, range(known.classes))),
        **columns,
    )
