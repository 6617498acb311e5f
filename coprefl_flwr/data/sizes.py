"""Published sizes of datasets, with which a plan counts where the data are not at hand."""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.samples import Dataset
from coprefl_flwr.data.text import CHARACTERS, TextDataset

SIZES = "sizes:"
"""Before a `data-dir`: what would have to be downloaded, or is not at its path, is a stand-in."""


class Size(NamedTuple):
    """How large a dataset is: its shape, its classes, its samples to train on and to test on.

    `domains` are samples by domain, `groups` is how many writers or speakers there are.
    """

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int = 0
    domains: tuple[tuple[str, int], ...] = ()
    groups: int = 0


_DIGITS, _BYCLASS = Size((1, 28, 28), 10, 60_000, 10_000), Size((1, 28, 28), 62, 697_932, 116_323)
_PACS = (("art_painting", 2048), ("cartoon", 2344), ("photo", 1670), ("sketch", 3929))
_OFFICE = (("amazon", 958), ("caltech", 1123), ("dslr", 157), ("webcam", 295))
_DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")

PUBLISHED_SIZES = {
    "CIFAR10": Size((3, 32, 32), 10, 50_000, 10_000),
    "CIFAR100": Size((3, 32, 32), 100, 50_000, 10_000),
    "CIFAR100:coarse": Size((3, 32, 32), 20, 50_000, 10_000),
    "EMNIST": _BYCLASS,
    "EMNIST:byclass": _BYCLASS,
    "FashionMNIST": _DIGITS,
    "KMNIST": _DIGITS,
    "MNIST": _DIGITS,
    "QMNIST": Size((1, 28, 28), 10, 60_000, 60_000),
    "SVHN": Size((3, 32, 32), 10, 73_257, 26_032),
    "USPS": Size((1, 16, 16), 10, 7_291, 2_007),
    "tiny-imagenet-200": Size((3, 64, 64), 200, 100_000, 10_000),
    "imagenet": Size((3, 224, 224), 1000, 1_281_167),
    "pacs": Size((3, 227, 227), 7, 9_991, domains=_PACS),
    "office10": Size((3, 224, 224), 10, 2_533, domains=_OFFICE),
    # FedBN's ten classes: some 2,000 images and more of each domain.
    "domainnet": Size((3, 224, 224), 10, 12_000, domains=tuple((n, 2000) for n in _DOMAINNET)),
    "mnist_m": Size((3, 32, 32), 10, 59_001, 9_001),
    "synthdigits": Size((3, 32, 32), 10, 479_400, 9_553),
    # LEAF's.
    "femnist": Size((1, 28, 28), 62, 724_737, 80_526, groups=3_550),
    "shakespeare.txt:1": Size((80,), len(CHARACTERS), 3_810_000, groups=660),
}
"""By torchvision's name, or by the last part of a path."""


class StandIn(ImageDataset):
    """Images that take no room: one empty image stands for all of them."""

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
    labels, groups, test = np.arange(n) % known.classes, None, None
    if known.test:
        test = np.arange(n) >= known.train * n // (known.train + known.test)
    if known.groups:
        groups = np.arange(n) * known.groups // n
        test = np.arange(n) % (n // known.test if known.test else 5) == 0  # Of each group.
    if len(known.shape) == 1:
        assert groups is not None
        assert test is not None
        empty, starts = np.zeros(known.shape[0] + 1, np.uint8), np.zeros(n, np.int64)
        return TextDataset(empty, starts, known.shape[0], labels, CHARACTERS, groups, test)
    channels, *sides = known.shape
    image = torch.zeros(1, channels, *([image_size] * 2 if image_size else sides)).byte()
    counts = [count for _, count in known.domains]
    return StandIn(
        image.expand(n, -1, -1, -1),
        labels,
        tuple(map(str, range(known.classes))),
        torch.zeros(channels),
        torch.ones(channels),
        groups=groups,
        test=test,
        domains=np.repeat(np.arange(len(counts)), counts)[:n] if counts else None,
        domain_names=tuple(domain for domain, _ in known.domains),
    )
