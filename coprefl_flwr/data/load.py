"""A dataset from its name; the last few are kept in memory."""

import functools
from pathlib import Path

from coprefl_flwr import plugins
from coprefl_flwr.data.folders import is_tiny_imagenet, load_folder, load_tiny_imagenet
from coprefl_flwr.data.glyphs import glyphs, glyphs_in_domains
from coprefl_flwr.data.hugging_face import PREFIX, files_of, load_hugging_face
from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.labels import renumbered
from coprefl_flwr.data.leaf import is_leaf, load_leaf
from coprefl_flwr.data.npz import load_npz
from coprefl_flwr.data.of_torch import as_dataset
from coprefl_flwr.data.published import PUBLISHED, load_published
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.data.samples import Dataset
from coprefl_flwr.data.sizes import SIZES, stand_in
from coprefl_flwr.data.text import TextDataset, load_text
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.files import expanded

_EMBEDDED = {"glyphs": glyphs, "glyphs:domains": glyphs_in_domains}
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
        - a .txt file of what people say, for predicting its next character (`text.load_text`), with
          a window at every tenth character; PATH.txt:1 has one at each, as LEAF has
        - a folder with FEMNIST as LEAF writes it, `train/*.json` and `test/*.json`
        - Tiny-ImageNet's folder (`folders.load_tiny_imagenet`)
        - a folder of images laid out as class/file, as train/class/file with test/ or val/
          (ImageNet), or as domain/class/file with the same classes in all domains (PACS)

        or "hf:NAME" of the Hugging Face Hub, or "hf:FOLDER" of a `save_to_disk`, and behind it, as
        in "hf:cifar100:label=fine_label,image=img", the columns `label`, `image` and `groups`, and
        the `name` of its configuration; its parts train, validation and test are used
        or the place of a user's own function of `data_dir`, `Path`, that returns what `as_dataset`
        takes: a torch Dataset, a DataLoader, a Hugging Face Dataset, or one of ours
    data_dir : where torchvision keeps and downloads its files; "" is ~/.cache/coprefl_flwr; behind
        `SIZES` nothing is downloaded (see `data.sizes`)
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
    described, the download fails, or a text shall be reduced.
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
    own = (plugins.hash_at("dataset", name) or "none") if is_own(name) else ""
    written = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files_of(name)]
    version = own or str(written)
    return _load(name, expanded(folder), reduction, version, relabel)


def is_own(name: str) -> bool:
    """Return whether a dataset's name is the place of a user's own function."""
    families = {one.partition(":")[0] for one in _NAMES}
    if name.partition(":")[0] in families or ".npz:" in name or name.startswith(PREFIX):
        return False
    if expanded(name).exists():
        return False
    return plugins.is_place("dataset", name)


@functools.lru_cache(maxsize=8)
def _load(name: str, data_dir: Path, reduction: Reduction, version: str, relabel: bool) -> Dataset:
    path = expanded(name)
    if name and name not in _NAMES and path.is_dir():
        found: Dataset = _of_folder(path, reduction)
        return renumbered(str(path), found) if relabel else found
    whole = _whole(name, data_dir, version, relabel)
    if reduction == Reduction():
        return whole
    if not isinstance(whole, ImageDataset):
        line = "image-size and samples-per-class are for images, and it has none"
        raise SettingsError(f"dataset '{name}': {line}")
    return reduction.of(f"dataset '{name}'", whole)


def _of_folder(path: Path, reduction: Reduction) -> ImageDataset:
    if is_leaf(path):
        return reduction.of(str(path), load_leaf(path))
    return (load_tiny_imagenet if is_tiny_imagenet(path) else load_folder)(path, reduction)


def _stride(name: str, text: str) -> int:
    """Return how many characters apart windows begin, as the name of a text says."""
    if not text.isdecimal() or not int(text):
        line = "after the colon stands how many characters apart windows begin, 1 or more"
        raise SettingsError(f"dataset '{name}': {line}")
    return int(text)


@functools.lru_cache(maxsize=2)
def _whole(name: str, data_dir: Path, _: str, relabel: bool) -> Dataset:
    found = _as_it_is(name, data_dir, relabel)
    if not relabel:
        return found
    if isinstance(found, TextDataset):
        line = "relabel is for images and values; the classes of a text are its characters"
        raise SettingsError(f"dataset '{name}': {line}")
    return renumbered(f"dataset '{name}'", found)


def _as_it_is(name: str, data_dir: Path, relabel: bool) -> Dataset:
    """Load a dataset; labels may be ids, too many to have names, where they are relabelled."""
    if is_own(name):
        made = plugins.call(name, plugins.find("dataset", name), (data_dir,))
        return as_dataset(f"dataset '{name}'", made, relabel)
    if name.startswith(PREFIX):
        return load_hugging_face(name, relabel)
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    if name in PUBLISHED:
        return load_published(name, data_dir)
    path = expanded(name)
    if path.is_file() and path.suffix == ".npz":
        return load_npz(path, relabel=relabel)
    if path.is_file() and path.suffix == ".txt":
        return load_text(path)
    file, _, part = name.rpartition(":")
    if file.endswith(".npz") and expanded(file).is_file():
        return load_npz(expanded(file), part, relabel)
    if file.endswith(".txt") and expanded(file).is_file():
        return load_text(expanded(file), _stride(name, part))
    paths = "the path of an .npz or a .txt file, or of a folder"
    if path.is_file():
        raise SettingsError(f"dataset '{name}': the file is neither .npz nor .txt")
    if path.suffix.startswith((".npz", ".txt")) or len(path.parts) > 1:
        raise SettingsError(f"dataset '{name}': the path does not exist; allowed is {paths}")
    known = [*_NAMES, *plugins.brought("dataset")]
    raise SettingsError(f"{unknown('dataset', name, known)} (or {paths}, hf:NAME, or module:NAME)")
