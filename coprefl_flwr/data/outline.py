"""Datasets in outline: as many samples, classes and domains as a known one has, and no content.

For sums that need sizes alone, where the data need not be at hand. Classes are taken to be of equal
size, and so are writers and speakers.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.samples import Dataset
from coprefl_flwr.data.text import CHARACTERS, TextDataset


@dataclass(frozen=True)
class Known:
    """How large a dataset is: its shape, its classes, samples to train on and to test on.

    `domains` are samples by domain, `groups` how many writers or speakers there are.
    """

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int = 0
    domains: tuple[tuple[str, int], ...] = ()
    groups: int = 0


_DIGITS = Known((1, 28, 28), 10, 60_000, 10_000)
_BYCLASS = Known((1, 28, 28), 62, 697_932, 116_323)
_PACS = (("art_painting", 2048), ("cartoon", 2344), ("photo", 1670), ("sketch", 3929))
_OFFICE = (("amazon", 958), ("caltech", 1123), ("dslr", 157), ("webcam", 295))
_DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")

PUBLISHED = {
    "CIFAR10": Known((3, 32, 32), 10, 50_000, 10_000),
    "CIFAR100": Known((3, 32, 32), 100, 50_000, 10_000),
    "CIFAR100:coarse": Known((3, 32, 32), 20, 50_000, 10_000),
    "EMNIST": _BYCLASS,
    "EMNIST:byclass": _BYCLASS,
    "FashionMNIST": _DIGITS,
    "KMNIST": _DIGITS,
    "MNIST": _DIGITS,
    "QMNIST": Known((1, 28, 28), 10, 60_000, 60_000),
    "SVHN": Known((3, 32, 32), 10, 73_257, 26_032),
    "USPS": Known((1, 16, 16), 10, 7_291, 2_007),
}
"""By torchvision's name."""

FILES = {
    "tiny-imagenet-200": Known((3, 64, 64), 200, 100_000, 10_000),
    "imagenet": Known((3, 224, 224), 1000, 1_281_167),
    "pacs": Known((3, 227, 227), 7, 9_991, domains=_PACS),
    "office10": Known((3, 224, 224), 10, 2_533, domains=_OFFICE),
    # FedBN's ten classes: some 2,000 images and more of each domain.
    "domainnet": Known((3, 224, 224), 10, 12_000, domains=tuple((n, 2000) for n in _DOMAINNET)),
    "mnist_m": Known((3, 32, 32), 10, 59_001, 9_001),
    "synthdigits": Known((3, 32, 32), 10, 479_400, 9_553),
    # LEAF's.
    "femnist": Known((1, 28, 28), 62, 724_737, 80_526, groups=3_550),
    "shakespeare.txt:1": Known((80,), len(CHARACTERS), 3_810_000, groups=660),
}
"""By the last part of a path, where there is nothing at that path."""


class Outline(ImageDataset):
    """Images that take no room: one empty image stands for all of them."""

    def measured_on(self, rows: object) -> "Outline":
        """Return it as it is: nothing depends on how its pixels are normalised."""
        return self


def outline_of(name: str, image_size: int = 0, samples_per_class: int = 0) -> Dataset | None:
    """Return a dataset of the size that `name` is known to have, None where that is not known.

    `image_size` and `samples_per_class` are as in `load_dataset`.
    """
    known = PUBLISHED.get(name) or FILES.get(Path(name).name)
    if known is None:
        return None
    n = known.train + known.test
    if samples_per_class:
        n = min(n, known.classes * samples_per_class)
    labels = np.arange(n) % known.classes
    test = np.arange(n) >= known.train * n // (known.train + known.test) if known.test else None
    groups = None
    if known.groups:
        groups = np.arange(n) * known.groups // n
        test = np.arange(n) % (n // known.test) == 0 if known.test else None  # Of each group.
    if len(known.shape) == 1:
        assert groups is not None
        empty, last = np.zeros(known.shape[0] + 1, np.uint8), np.arange(n) % 5 == 4
        starts = np.zeros(n, np.int64)
        return TextDataset(empty, starts, known.shape[0], labels, CHARACTERS, groups, last)
    channels, *sides = known.shape
    sides = [image_size] * 2 if image_size else sides
    names, sizes = zip(*known.domains, strict=True) if known.domains else ((), ())
    return Outline(
        torch.zeros(1, channels, *sides, dtype=torch.uint8).expand(n, -1, -1, -1),
        labels,
        tuple(map(str, range(known.classes))),
        torch.zeros(channels),
        torch.ones(channels),
        groups=groups,
        test=test,
        domains=np.repeat(np.arange(len(sizes)), sizes)[:n] if known.domains else None,
        domain_names=names,
    )
