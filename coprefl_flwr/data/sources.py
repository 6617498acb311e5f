"""A dataset from its name: embedded, of torchvision, of Hugging Face, a file, a folder, or own."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
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

_EMBEDDED = {"glyphs": glyphs, "glyphs:domains": glyphs_in_domains}
_IDX_FILES = "raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
# The files that torchvision looks for, so that they can be put on a machine without internet.
_TORCHVISION = {
    "CIFAR10": "cifar-10-python.tar.gz",
    "CIFAR100": "cifar-100-python.tar.gz",
    "EMNIST": "EMNIST/raw/gzip.zip",
    "FashionMNIST": f"FashionMNIST/{_IDX_FILES}",
    "KMNIST": f"KMNIST/{_IDX_FILES}",
    "MNIST": f"MNIST/{_IDX_FILES}",
    "QMNIST": "QMNIST/raw/qmnist-{train,test}-{images-idx3-ubyte,labels-idx2-int}.gz",
    "SVHN": "{train,test}_32x32.mat",
    "USPS": "usps.bz2 and usps.t.bz2",
}
_COARSE, _BYCLASS = "CIFAR100:coarse", "EMNIST:byclass"
PUBLISHED = (*_TORCHVISION, _COARSE, _BYCLASS)
"""Names of torchvision's datasets."""
_NAMES = (*_EMBEDDED, *PUBLISHED)


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
        takes: a torch Dataset, a DataLoader, a Hugging Face Dataset, or one of ours
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
    (N, H, W) or (N, H, W, C), labels integers (N,) or (N, 1). NAME stands in place of `labels`,
    and NAME_classes in place of `classes`. Images of a folder are all of one size unless they are
    resized, and become RGB unless every one is grey.

    Raises a SettingsError if the name is unknown, the path does not exist, the files are not as
    described, labels without names have gaps, the download fails, or a text shall be reduced.
    """
    if str(data_dir).startswith(SIZES):
        data_dir = str(data_dir).removeprefix(SIZES)
        found = stand_in(name, image_size, samples_per_class)
        if found and (name in PUBLISHED or not expanded(name).exists()):
            return found
    folder = Path(data_dir) if str(data_dir) else Path("~/.cache/coprefl_flwr")
    # Without a draw, the dataset is the same for all seeds, and loaded once for them.
    drawn_by = seed if samples_per_class else 0
    reduction = Reduction(image_size, samples_per_class, drawn_by)
    own = (plugins.hash_at("dataset", name) or "none") if _is_own(name) else ""
    written = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files_of(name)]
    return _load(name, expanded(folder), reduction, own or str(written), relabel)


@functools.lru_cache(maxsize=8)
def _load(name: str, data_dir: Path, reduction: Reduction, version: str, relabel: bool) -> Dataset:
    path = expanded(name)
    if name and name not in _NAMES and path.is_dir() and not any((path / "train").glob("*.json")):
        found = read_image_folder(path, reduction)
        return renumbered(str(path), found) if relabel else found
    return reduction.of(f"dataset '{name}'", _whole(name, data_dir, version, relabel))


@functools.lru_cache(maxsize=2)
def _whole(name: str, data_dir: Path, _: str, relabel: bool) -> Dataset:
    """Load a dataset without a reduction, another `_` anew."""
    what, path = f"dataset '{name}'", expanded(name)
    # Labels may be ids, too many to have names: these readers renumber them.
    if _is_own(name):
        made = plugins.call(name, plugins.find("dataset", name), (data_dir,))
        return as_dataset(what, made, relabel)
    if name.startswith(HUGGING_FACE):
        return read_hugging_face(name, relabel)
    file, _, part = name.rpartition(":")
    if path.suffix == ".npz" and path.is_file():
        return read_npz(path, relabel=relabel)
    if file.endswith(".npz") and expanded(file).is_file():
        return read_npz(expanded(file), part, relabel)
    found = _with_names(name, data_dir)
    if relabel and isinstance(found, TextDataset):
        line = "relabel is for images and values; the classes of a text are its characters"
        raise SettingsError(f"{what}: {line}")
    return renumbered(what, found) if relabel else found


def _with_names(name: str, data_dir: Path) -> Dataset:
    """Load a dataset whose classes have names."""
    what, path = f"dataset '{name}'", expanded(name)
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    if name in PUBLISHED:
        return _published(name, data_dir)
    if name and path.is_dir():
        return read_leaf(path)
    if path.is_file() and path.suffix == ".txt":
        return read_text(path)
    file, _, stride = name.rpartition(":")
    if file.endswith(".txt") and expanded(file).is_file():
        if not stride.isdecimal() or not int(stride):
            line = "after the colon stands how many characters apart windows begin, 1 or more"
            raise SettingsError(f"{what}: {line}")
        return read_text(expanded(file), int(stride))
    paths = "the path of an .npz or a .txt file, or of a folder"
    if path.is_file():
        raise SettingsError(f"{what}: the file is neither .npz nor .txt")
    if path.suffix.startswith((".npz", ".txt")) or len(path.parts) > 1:
        raise SettingsError(f"{what}: the path does not exist; allowed is {paths}")
    known = [*_NAMES, *plugins.brought("dataset")]
    raise SettingsError(f"{unknown('dataset', name, known)} (or {paths}, hf:NAME, or module:NAME)")


def _is_own(name: str) -> bool:
    """Return whether a dataset's name is the place of a user's own function."""
    families = {one.partition(":")[0] for one in _NAMES}
    if name.partition(":")[0] in families or ".npz:" in name or name.startswith(HUGGING_FACE):
        return False
    return not expanded(name).exists() and plugins.is_place("dataset", name)


# ---- torchvision ---------------------------------------------------------------------------------

_SUPERCLASSES = (
    "aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables",
    "household_electrical_devices", "household_furniture", "insects", "large_carnivores",
    "large_man-made_outdoor_things", "large_natural_outdoor_scenes",
    "large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates", "people",
    "reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2",
)  # fmt: skip
# The superclass of each of CIFAR-100's classes, which torchvision does not read.
_SUPERCLASS_OF = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11,
    6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5,
    5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17,
    10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13,
    16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)  # fmt: skip


@functools.lru_cache(maxsize=2)
def _published(name: str, data_dir: Path) -> Dataset:
    """Load one of PUBLISHED by torchvision, downloading it where it is missing.

    QMNIST's groups are its writers. CIFAR-100 with coarse labels shares the images of the fine one.
    "EMNIST:byclass" and "EMNIST" are the same; EMNIST's merged classes are not offered. Raises a
    SettingsError if the download fails; its line says where to put the files by hand.
    """
    if name == _COARSE:
        fine = _published("CIFAR100", data_dir)
        return replace(fine, labels=np.array(_SUPERCLASS_OF)[fine.labels], classes=_SUPERCLASSES)
    if name == _BYCLASS:
        return _published("EMNIST", data_dir)
    # Importing torchvision takes seconds, and the glyphs do without.
    from torchvision import datasets

    options: dict[str, Any] = {"EMNIST": {"split": "byclass"}, "QMNIST": {"compat": False}}
    try:
        parts = [
            getattr(datasets, name)(
                data_dir, download=True, **options.get(name, {}),
                **({"split": part} if name == "SVHN" else {"train": part == "train"}),
            )
            for part in ("train", "test")
        ]  # fmt: skip
    except ImportError as error:
        needed = f"needs a package: pip install {error.name}"
        raise SettingsError(f"dataset '{name}' {needed}") from error
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().replace("\n", " ")
        raise SettingsError(
            f"dataset '{name}' is neither in {data_dir} nor could it be downloaded ({reason}); "
            f"put {_TORCHVISION[name]} there by hand"
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


# ---- sizes of datasets that are not at hand ------------------------------------------------------

SIZES = "sizes:"
"""Before a `data-dir`: what would have to be downloaded, or is not at its path, is a stand-in."""


class _Size(NamedTuple):
    """Shape of an input, classes, samples to train and to test on; samples by domain; groups."""

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int = 0
    domains: dict[str, int] | None = None
    groups: int = 0


_DIGITS, _CHARS = _Size((1, 28, 28), 10, 60_000, 10_000), _Size((1, 28, 28), 62, 697_932, 116_323)
_DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
PUBLISHED_SIZES = {
    "CIFAR10": _Size((3, 32, 32), 10, 50_000, 10_000),
    "CIFAR100": _Size((3, 32, 32), 100, 50_000, 10_000),
    _COARSE: _Size((3, 32, 32), 20, 50_000, 10_000),
    "EMNIST": _CHARS,
    _BYCLASS: _CHARS,
    "FashionMNIST": _DIGITS,
    "KMNIST": _DIGITS,
    "MNIST": _DIGITS,
    "QMNIST": _Size((1, 28, 28), 10, 60_000, 60_000),
    "SVHN": _Size((3, 32, 32), 10, 73_257, 26_032),
    "USPS": _Size((1, 16, 16), 10, 7_291, 2_007),
    "tiny-imagenet-200": _Size((3, 64, 64), 200, 100_000, 10_000),
    "imagenet": _Size((3, 224, 224), 1000, 1_281_167),
    "pacs": _Size(
        (3, 227, 227), 7, 9_991,
        domains={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
    ),
    "office10": _Size(
        (3, 224, 224), 10, 2_533,
        domains={"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295},
    ),
    # FedBN's ten classes: some 2,000 images and more of each domain.
    "domainnet": _Size((3, 224, 224), 10, 12_000, domains=dict.fromkeys(_DOMAINNET, 2000)),
    "mnist_m": _Size((3, 32, 32), 10, 59_001, 9_001),
    "synthdigits": _Size((3, 32, 32), 10, 479_400, 9_553),
    # LEAF's.
    "femnist": _Size((1, 28, 28), 62, 724_737, 80_526, groups=3_550),
    "shakespeare.txt:1": _Size((80,), len(CHARACTERS), 3_810_000, groups=660),
}  # fmt: skip
"""By torchvision's name, or by the last part of a path."""


class StandIn(ImageDataset):
    """Images of a published size without content, of which one image is in memory."""

    def measured_on(self, rows: object) -> "StandIn":
        """Return it as it is: nothing depends on how its pixels are normalised."""
        return self


@functools.lru_cache(maxsize=4)
def stand_in(name: str, image_size: int = 0, samples_per_class: int = 0) -> Dataset | None:
    """Return a dataset without content of the size that `name` is published to have, if it is.

    Classes are of equal size, and so are groups. `image_size` and `samples_per_class` are as in
    `load_dataset`.
    """
    known = PUBLISHED_SIZES.get(Path(name).name)
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
