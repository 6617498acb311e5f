"""Published image datasets, read by torchvision."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.errors import SettingsError

_IDX_FILES = "raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
# The files that torchvision looks for, so that they can be put on a machine without internet.
_FILES = {
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
_COARSE = "CIFAR100:coarse"
PUBLISHED = (*_FILES, _COARSE, "EMNIST:byclass")

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
def load_published(name: str, data_dir: Path) -> ImageDataset:
    """Load the dataset called `name`, one of PUBLISHED, downloading it where it is missing.

    QMNIST's groups are its writers. CIFAR-100 with coarse labels shares the images of the fine one.
    "EMNIST:byclass" and "EMNIST" are the same; EMNIST's merged classes are not offered. Raises a
    SettingsError if the download fails; its line says where to put the files by hand.
    """
    if name == _COARSE:
        fine = load_published("CIFAR100", data_dir)
        superclass_of = np.array(_SUPERCLASS_OF, dtype=np.int64)
        return replace(fine, labels=superclass_of[fine.labels], classes=_SUPERCLASSES)
    if name == "EMNIST:byclass":
        return load_published("EMNIST", data_dir)
    try:
        parts = [_part(name, data_dir, train) for train in (True, False)]
    except ImportError as error:
        needed = f"needs a package: pip install {error.name}"
        raise SettingsError(f"dataset '{name}' {needed}") from error
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().replace("\n", " ")
        raise SettingsError(
            f"dataset '{name}' is neither in {data_dir} nor could it be downloaded ({reason}); "
            f"put {_FILES[name]} there by hand"
        ) from error
    # Labels (N,), or QMNIST's (N, 8), of which 0 is the digit and 2 the writer.
    column = "labels" if name == "SVHN" else "targets"
    targets = np.concatenate([np.asarray(getattr(p, column), dtype=np.int64) for p in parts])
    return ImageDataset.of(
        f"dataset '{name}'",
        torch.cat([_channels_first(name, torch.as_tensor(part.data)) for part in parts]),
        targets[:, 0] if name == "QMNIST" else targets,
        getattr(parts[0], "classes", tuple("0123456789")),
        groups=targets[:, 2] if name == "QMNIST" else None,
        test=np.repeat([False, True], [len(part.data) for part in parts]),
    )


def _part(name: str, data_dir: Path, train: bool) -> Any:
    # Importing torchvision costs seconds, and the glyphs do without.
    from torchvision import datasets

    if name == "SVHN":
        return datasets.SVHN(data_dir, split="train" if train else "test", download=True)
    which: dict[str, dict[str, Any]] = {"EMNIST": {"split": "byclass"}, "QMNIST": {"compat": False}}
    return getattr(datasets, name)(data_dir, train=train, download=True, **which.get(name, {}))


def _channels_first(name: str, images: Tensor) -> Tensor:
    if name == "EMNIST":
        # The files hold every character transposed, and torchvision leaves it so.
        images = images.transpose(1, 2)
    if images.ndim == 3:
        return images.unsqueeze(1)
    return images if name == "SVHN" else images.permute(0, 3, 1, 2)
