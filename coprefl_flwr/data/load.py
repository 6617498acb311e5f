"""A dataset from its name, held once per process."""

import functools
from difflib import get_close_matches
from pathlib import Path

from coprefl_flwr.data.folders import load_folder
from coprefl_flwr.data.glyphs import glyphs
from coprefl_flwr.data.leaf import is_leaf, load_leaf
from coprefl_flwr.data.npz import load_npz
from coprefl_flwr.data.published import PUBLISHED, load_published
from coprefl_flwr.data.samples import Dataset
from coprefl_flwr.data.text import load_text
from coprefl_flwr.errors import SettingsError

_EMBEDDED = "glyphs"
_NAMES = (_EMBEDDED, *PUBLISHED)


def load_dataset(name: str, data_dir: str | Path = "") -> Dataset:
    """Load a dataset; a second call in the same process returns the same object.

    Parameters
    ----------
    name : "glyphs" (drawn by this package), a torchvision dataset (CIFAR10, CIFAR100, EMNIST
        byclass, FashionMNIST, KMNIST, MNIST, QMNIST, SVHN, USPS), "CIFAR100:coarse" for its 20
        superclasses, or the path of

        - an .npz file; PATH.npz:NAME reads other labels of it
        - a .txt file of what people say, for predicting its next character (`text.load_text`)
        - a folder with FEMNIST as LEAF writes it, train/*.json and test/*.json
        - a folder of images laid out as class/file, or as train/class/file with test/ or val/
    data_dir : where torchvision keeps its files and downloads them to if they are missing;
        "" is ~/.cache/coprefl_flwr.

    Notes
    -----
    An .npz holds `images` and `labels`, or `train_images`, `train_labels`, `test_images` and
    `test_labels` (and `val_images`, `val_labels`), and may hold `classes` and, named like the
    labels, `groups`. Images are uint8 (N, H, W) or (N, H, W, C), labels integers (N,) or (N, 1).
    NAME stands in place of `labels`, and NAME_classes in place of `classes`. Images of a folder
    are all of one size and become RGB unless every one is grey.

    Raises
    ------
    SettingsError
        An unknown name, a missing path, files that are not as described, or a failed download.
    """
    folder = Path(data_dir) if str(data_dir) else Path("~/.cache/coprefl_flwr")
    return _load(name, folder.expanduser())


@functools.cache
def _load(name: str, data_dir: Path) -> Dataset:
    if name == _EMBEDDED:
        return glyphs()
    if name in PUBLISHED:
        return load_published(name, data_dir)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return load_leaf(path) if is_leaf(path) else load_folder(path)
    if path.is_file() and path.suffix == ".npz":
        return load_npz(path)
    if path.is_file() and path.suffix == ".txt":
        return load_text(path)
    file, _, labels = name.rpartition(":")
    if file.endswith(".npz") and Path(file).expanduser().is_file():
        return load_npz(Path(file).expanduser(), labels)
    raise SettingsError(_not_found(name, path))


def _not_found(name: str, path: Path) -> str:
    allowed = f"{', '.join(_NAMES)}, the path of an .npz or a .txt file, or of a folder"
    if path.is_file():
        return f"dataset '{name}': the file is neither .npz nor .txt; allowed are {allowed}"
    if path.suffix.startswith((".npz", ".txt")) or len(path.parts) > 1:
        return f"dataset '{name}': the path does not exist; allowed are {allowed}"
    spelled = {known.lower(): known for known in _NAMES}
    near = get_close_matches(name.lower(), spelled, n=1)
    hint = f" (nearest: {spelled[near[0]]})" if near else ""
    return f"dataset '{name}' is not known{hint}; allowed are {allowed}"
