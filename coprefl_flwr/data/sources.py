"""A dataset from its name: embedded, of torchvision, of Hugging Face, a file, a folder, or own."""

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
from coprefl_flwr.data.image_folders import Reduction, read_image_folder
from coprefl_flwr.data.readers import read_leaf, read_npz
from coprefl_flwr.data.text import CHARACTERS, TextDataset, read_text
from coprefl_flwr.data.user_data import HUGGING_FACE, as_dataset, files_of, read_hugging_face
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.files import expanded

# ---- published datasets --------------------------------------------------------------------------


class Published(NamedTuple):
    """A published dataset: shape of an input, numbers of classes, training and test samples.

    `files` are those that torchvision looks for, so that they can be put on a machine without
    internet. `domains` are numbers of samples, `groups` is the number of writers or speakers.
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
"""By torchvision's name, or by the last part of a path."""

TORCHVISION_DATASETS = tuple(name for name, known in PUBLISHED.items() if known.files)
"""Names of the datasets that torchvision reads."""

_EMBEDDED = {"glyphs": glyphs, "glyphs:domains": glyphs_in_domains}
_NAMES = (*_EMBEDDED, *TORCHVISION_DATASETS)

SIZES = "sizes:"
"""Prefix of a `data-dir`: a missing dataset is replaced by a placeholder of its published size."""


# ---- by name -------------------------------------------------------------------------------------


def load_dataset(
    name: str,
    data_dir: str | Path = "",
    *,
    image_size: int = 0,
    samples_per_class: int = 0,
    seed: int = 0,
    relabel: bool = False,
) -> Dataset:
    """Load a dataset; while it is one of the last few loaded, the same object is returned again.

    Parameters
    ----------
    name : "glyphs" (drawn by this package), "glyphs:domains" (7 of them in 4 styles), a torchvision
        dataset (CIFAR10, CIFAR100, EMNIST:byclass, FashionMNIST, KMNIST, MNIST, QMNIST, SVHN,
        USPS), "CIFAR100:coarse" for its 20 superclasses, or the path of

        - an .npz file; PATH.npz:NAME reads other labels of it
        - a .txt file of what people say, for predicting its next character (`TextDataset.of`), with
          a window at every tenth character; PATH.txt:1 has one at each, as LEAF has
        - a folder with FEMNIST as LEAF writes it, `train/*.json` and `test/*.json`
        - Tiny-ImageNet's folder, as its archive unpacks
        - a folder of images laid out as class/file, as train/class/file with test/ or val/
          (ImageNet), or as domain/class/file with the same classes in all domains (PACS)

        or "hf:NAME" of the Hugging Face Hub, or "hf:FOLDER" of a `save_to_disk`, and behind it, as
        in "hf:cifar100:label=fine_label,image=img", the columns `label`, `image` and `groups`, and
        the `name` of its configuration; its parts train, validation and test are used
        or the place of a user's own function of `data_dir`, `Path`, that returns what `as_dataset`
        takes: a torch Dataset, a DataLoader, a Hugging Face Dataset, or one of this package
    data_dir : where torchvision keeps and downloads its files; "" is ~/.cache/coprefl_flwr; behind
        `SIZES` nothing is downloaded (see `stand_in`)
    image_size : side in pixels that images are resized to, once; 0 leaves them as they are
    samples_per_class : most samples of a class, drawn by `seed`; 0 is all
    relabel : number the classes that have samples 0, 1, 2, ... in their order, with their names

    Notes
    -----
    An .npz holds `images` and `labels`, or `train_images`, `train_labels`, `test_images` and
    `test_labels` (and `val_images`, `val_labels`), and may hold `classes` and, named like the
    labels, `groups` and `domains`, which are numbered as `domain_names` has them. Images are uint8
    (N, H, W) or (N, H, W, C), labels integers (N,) or (N, 1). NAME replaces `labels`,
    and NAME_classes instead of `classes`. Images of a folder are all of one size unless they are
    resized, and become RGB unless every one is grey.

    Raises a SettingsError if the name is unknown, the path does not exist, the files are not as
    described, the download fails, or a text shall be reduced.
    """
    if str(data_dir).startswith(SIZES):
        data_dir = str(data_dir).removeprefix(SIZES)
        placeholder = stand_in(name, image_size, samples_per_class)
        if placeholder and (name in TORCHVISION_DATASETS or not expanded(name).exists()):
            return placeholder
    folder = Path(data_dir) if str(data_dir) else Path("~/.cache/coprefl_flwr")
    # Without a draw, the dataset is the same for all seeds, and loaded once for them.
    drawn_by = seed if samples_per_class else 0
    reduction = Reduction(image_size, samples_per_class, drawn_by)
    code_hash = (plugins.hash_at("dataset", name) or "none") if _is_own(name) else ""
    file_stamps = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files_of(name)]
    return _load(name, expanded(folder), reduction, code_hash or str(file_stamps), relabel)


@functools.lru_cache(maxsize=8)
def _load(name: str, data_dir: Path, reduction: Reduction, version: str, relabel: bool) -> Dataset:
    """Load a dataset; another `version` of the same name is loaded again."""
    what, path = f"dataset '{name}'", expanded(name)
    is_folder = bool(name) and name not in _NAMES and path.is_dir()
    if is_folder and not any((path / "train").glob("*.json")):
        dataset = read_image_folder(path, reduction)
        return renumbered(what, dataset) if relabel else dataset
    if reduction != Reduction():
        return reduction.of(what, _load(name, data_dir, Reduction(), version, relabel))
    # Labels may be ids, too many to have names: the next three readers renumber them.
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
            line = "relabel is for images and values; the classes of a text are its characters"
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
    """Return whether a dataset's name is the place of a user's own function."""
    families = {known.partition(":")[0] for known in _NAMES}
    if name.partition(":")[0] in families or ".npz:" in name or name.startswith(HUGGING_FACE):
        return False
    return not expanded(name).exists() and plugins.is_place("dataset", name)


# ---- torchvision ---------------------------------------------------------------------------------


def _published(name: str, data_dir: Path) -> Dataset:
    """Load a dataset by torchvision, downloading it where it is missing.

    QMNIST's groups are its writers. EMNIST's classes are those of its split byclass. Raises a
    SettingsError if the download fails; its line says where to put the files by hand.
    """
    # Importing torchvision takes seconds, and the glyphs do without.
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
            f"dataset '{name}' is neither in {data_dir} nor could it be downloaded ({reason}); "
            f"put {PUBLISHED[name].files} there by hand"
        ) from error
    # Labels (N,), or QMNIST's (N, 8), of which 0 is the digit and 2 the writer.
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
        # The files hold every character transposed, and torchvision leaves it so.
        images = images.transpose(1, 2)
    if images.ndim == 3:
        return images.unsqueeze(1)
    return images if name == "SVHN" else images.permute(0, 3, 1, 2)


# ---- stand-ins -----------------------------------------------------------------------------------


class StandIn(ImageDataset):
    """Images of a published size without content, of which one image is in memory."""

    def normalised_on(self, rows: object) -> "StandIn":
        """Return this dataset unchanged: its images are empty, so no mean and std are computed."""
        return self


@functools.lru_cache(maxsize=4)
def stand_in(name: str, image_size: int = 0, samples_per_class: int = 0) -> Dataset | None:
    """Return a dataset without content of the size that `name` is published to have, if it is.

    Classes are of equal size, and so are groups. `image_size` and `samples_per_class` are as in
    `load_dataset`.
    """
    known = PUBLISHED.get(Path(name).name)
    if known is None:
        return None
    n = known.train + known.test
    if samples_per_class:
        n = min(n, known.classes * samples_per_class)
    row, columns = np.arange(n), dict[str, Any]()
    columns["labels"] = row % known.classes
    if known.test:
        columns["test"] = row >= known.train * n // (known.train + known.test)
    if known.groups:
        columns["groups"] = row * known.groups // n
        columns["test"] = row % (n // known.test if known.test else 5) == 0  # Of each group.
    if len(known.shape) == 1:
        empty, starts = np.zeros(known.shape[0] + 1, np.uint8), np.zeros(n, np.int64)
        return TextDataset(empty, starts, known.shape[0], classes=CHARACTERS, **columns)
    if known.domains:
        counts = list(known.domains.values())
        columns["domains"] = np.repeat(np.arange(len(counts)), counts)[:n]
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
