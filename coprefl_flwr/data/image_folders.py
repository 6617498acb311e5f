"""Read folders of images, by class or by domain and class, and reduce datasets of images."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr import seeds
from coprefl_flwr.data.dataset import Dataset, ImageDataset, Rows, make_dataset
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import read_text

FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that Pillow may try, for any file name."""

_RESIZED_AT_ONCE = 1000
"""Number of images that are resized at a time. The resize computes in float32, which needs four
times the memory of uint8."""


@dataclass(frozen=True)
class Reduction:
    """Reduction of a dataset of images in image size and in number of samples.

    Images become squares with a side of `image_size` pixels; 0: the original size. At most
    `samples_per_class` samples of each class are kept, drawn by `seed`; 0: all samples. Classes
    with fewer samples are kept whole.
    """

    image_size: int = 0
    samples_per_class: int = 0
    seed: int = 0

    def rows(self, labels: npt.NDArray[Any]) -> Rows:
        """Return the indices of the drawn samples, ascending, given the labels (N,) of all samples.

        Each class is drawn independently of the others.
        """
        if not self.samples_per_class:
            return np.arange(len(labels))
        drawn = []
        for label in np.unique(labels):
            rng = seeds.generator(self.seed, "samples-per-class", int(label))
            drawn.append(rng.permutation(np.flatnonzero(labels == label))[: self.samples_per_class])
        return np.sort(np.concatenate(drawn)).astype(np.int64)

    def resized(self, images: Tensor) -> Tensor:
        """Resize images from uint8 (..., C, H, W) to uint8 (..., C, image_size, image_size).

        The shorter side is resized as by torchvision's Resize (bilinear, antialiased); then the
        middle is cropped as by CenterCrop.
        """
        size = self.image_size
        if not size or images.shape[-2:] == (size, size):
            return images
        # Imported here, because the import takes seconds and the glyphs do not need torchvision.
        from torchvision.transforms import functional

        shorter = functional.resize(images, [size], antialias=True)
        resized: Tensor = functional.center_crop(shorter, [size, size])
        return resized

    def of(self, source: str, dataset: Dataset) -> Dataset:
        """Return the reduced dataset, normalised by the mean and std of the remaining images.

        Raises a SettingsError if the dataset has no images. `source` is its name in the message.
        """
        if not (self.image_size or self.samples_per_class):
            return dataset
        if not isinstance(dataset, ImageDataset):
            line = "image-size and samples-per-class need images, but this dataset has none"
            raise SettingsError(f"{source}: {line}")
        rows = self.rows(dataset.labels)
        images = torch.split(dataset.images[torch.from_numpy(rows)], _RESIZED_AT_ONCE)
        columns = {name: getattr(dataset, name) for name in ("groups", "test", "domains")}
        return make_dataset(
            source,
            torch.cat([self.resized(part) for part in images]),
            dataset.labels[rows],
            dataset.classes,
            domain_names=dataset.domain_names,
            **{name: column[rows] for name, column in columns.items() if column is not None},
        )


def read_image_folder(root: Path, reduction: Reduction) -> Dataset:
    """Read a folder of images with a layout that `load_dataset` describes.

    Only the images that `reduction` draws are decoded. The classes are the union of the class
    folders of all splits or domains, in the order of their names. In Tiny-ImageNet (Le and Yang
    2015) the folders are WordNet ids, and words.txt has the names of the classes. Tiny-ImageNet has
    500 training images and 50 validation images per class; the validation images are the test
    split, because its test images have no labels.

    Raises a SettingsError if there are no images, if an image cannot be read or has no class, or if
    the images differ in size and are not resized.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS
    from torchvision.datasets.folder import make_dataset as images_in

    folders, train, annotations = _folders(root), root / "train", root / "val/val_annotations.txt"
    inside = (file for folder in folders for file in folder.iterdir())
    has_images = any(file.suffix.lower() in IMG_EXTENSIONS for file in inside)
    parts, is_domains = [root], False
    if annotations.is_file():
        parts = [train]
    elif _folders(train):  # If "train" is the folder of a class, it has no subfolders.
        parts = [train, *(root / name for name in ("val", "test") if (root / name).is_dir())]
    elif len(folders) > 1 and not has_images:
        # The subfolders are domains if no images are directly in them and if all of them have at
        # least two class folders in common.
        shared = set.intersection(*({folder.name for folder in _folders(part)} for part in folders))
        is_domains = len(shared) > 1
        parts = folders if is_domains else parts
    # Labels are numbered over all splits, so that they agree even if a split lacks a class.
    classes = sorted({folder.name for part in parts for folder in _folders(part)})
    numbers = {name: label for label, name in enumerate(classes)}
    images_of_parts = [
        images_in(str(part), numbers, IMG_EXTENSIONS, allow_empty=True) for part in parts if classes
    ]
    if annotations.is_file():
        parts.append(root / "test")
        images_of_parts.append(_annotated(annotations, numbers))
        words = dict(line.split("\t", 1) for line in _lines(root / "words.txt") if "\t" in line)
        classes = [words.get(wnid, wnid) for wnid in classes]
    files = [file for part in images_of_parts for file, _ in part]
    if not files:
        raise SettingsError(f"{root}: no images found; write them as class/file")
    labels = np.array([label for part in images_of_parts for _, label in part])
    rows = reduction.rows(labels)
    part_of_row = np.repeat(np.arange(len(parts)), list(map(len, images_of_parts)))[rows]
    is_test = np.array([part == root / "test" and not is_domains for part in parts])
    return make_dataset(
        str(root),
        _read_images([Path(files[row]) for row in rows], reduction),
        labels[rows],
        classes,
        test=is_test[part_of_row] if is_test.any() else None,
        domains=part_of_row if is_domains else None,
        domain_names=[part.name for part in parts],
    )


def _annotated(annotations: Path, numbers: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (path of the file, label) for each validation image of Tiny-ImageNet."""
    images = []
    for line in _lines(annotations):
        file, wnid = (*line.split("\t"), "")[:2]
        if wnid not in numbers:
            raise SettingsError(f"{annotations}: '{line}' names no class folder of train/")
        images.append((str(annotations.parent / "images" / file), numbers[wnid]))
    return images


def _folders(parent: Path) -> list[Path]:
    entries = sorted(parent.iterdir()) if parent.is_dir() else []
    return [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _lines(file: Path) -> list[str]:
    """Return the lines of a text file, or [] if the file does not exist."""
    return read_text(file).splitlines() if file.exists() else []


# ---- image files ---------------------------------------------------------------------------------


def _read_images(files: Sequence[Path], reduction: Reduction) -> Tensor:
    """Return images uint8 (len(files), C, H, W); C is 1 if all images are grey, and otherwise 3."""
    # Each image is resized right after it is read: ImageNet in full size does not fit into memory.
    from PIL import Image

    def read(file: Path) -> Tensor:
        try:
            with Image.open(file, formats=FORMATS) as image:
                if image.mode.startswith(("I", "F")):
                    line = f"{file}: has pixels of mode {image.mode}; allowed are 8-bit images"
                    raise SettingsError(line)
                grey = image.mode in ("1", "L", "LA")
                pixels = np.array(image.convert("L" if grey else "RGB"))
        except SettingsError:
            raise
        except Exception as error:  # Pillow raises any type of error.
            why = f"{one_line(error)}; allowed are {', '.join(FORMATS)}"
            raise SettingsError(f"{file}: not a readable image ({why})") from error
        channels_last = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1))
        return reduction.resized(channels_last.permute(2, 0, 1))

    def read_alike(file: Path) -> Tensor:
        image = read(file)
        (height, width), size = image.shape[1:], first.shape[1:]
        if (height, width) != size:
            raise SettingsError(
                f"{file}: is {width}x{height} but {files[0]} is {size[1]}x{size[0]}; all images "
                "must have one size: set image-size"
            )
        return image

    with ThreadPoolExecutor() as pool:
        first = read(files[0])
        images = list(pool.map(read_alike, files))
    channels = max(len(image) for image in images)
    return torch.stack([image.expand(channels, -1, -1) for image in images])
