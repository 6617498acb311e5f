"""Write folders of images as a Hugging Face dataset, which `dataset: hf:OUT` reads.

python examples/data/image_folder.py FOLDER OUT               CLASS/FILE, or train/CLASS/FILE with
                                                              test/ and val/, or Tiny-ImageNet
python examples/data/image_folder.py FOLDER OUT --domains     DOMAIN/CLASS/FILE, as in PACS; then
                                                              dataset: hf:OUT:domains=domain

With `--image-size 64` the images are resized to 64 x 64 pixels, as the setting `image-size` does.
Tiny-ImageNet is read as it is unpacked; its validation images, which have labels, are the test
split. Classes are numbered in the order of their folders' names.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset
from torchvision.transforms.functional import to_pil_image

from coprefl_flwr.data.reduction import Reduction

Sample = tuple[str, int, str]
"""(file, label, domain)"""


def convert(folder: Path, out: Path, domains: bool, image_size: int) -> None:
    """Write the images of `folder` as columns image, label and domain ("" without domains)."""
    annotations = folder / "val/val_annotations.txt"
    parts = {"train": [folder]}  # {split: folders of CLASS/FILE}
    if domains:
        parts = {"train": folders_in(folder)}
    elif folders_in(folder / "train"):
        splits = {"train": "train", "val": "validation", "test": "test"}
        parts = {name: [folder / part] for part, name in splits.items() if (folder / part).is_dir()}
    if annotations.exists():
        parts = {"train": [folder / "train"]}
    of_folders = [part for several in parts.values() for part in several]
    classes = sorted({one.name for part in of_folders for one in folders_in(part)})
    numbers = {name: number for number, name in enumerate(classes)}
    samples = {
        split: [
            (file, label, part.name if domains else "")
            for part in several
            for file, label in make_dataset(str(part), numbers, IMG_EXTENSIONS, allow_empty=True)
        ]
        for split, several in parts.items()
    }
    if annotations.exists():
        lines = [line.split("\t") for line in annotations.read_text().splitlines()]
        images = annotations.parent / "images"
        samples["test"] = [(str(images / file), numbers[name], "") for file, name, *_ in lines]
        words = (folder / "words.txt").read_text().splitlines()
        named = dict(line.split("\t", 1) for line in words)
        classes = [named.get(name, name) for name in classes]
    write(out, samples, classes, image_size)


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder by name, without hidden ones."""
    found = folder.iterdir() if folder.is_dir() else []
    return sorted(one for one in found if one.is_dir() and not one.name.startswith("."))


def write(out: Path, samples: dict[str, list[Sample]], classes: list[str], image_size: int) -> None:
    """Write the samples of each split as a folder of the library `datasets`."""
    columns = {"label": datasets.ClassLabel(names=classes), "domain": datasets.Value("string")}
    features = datasets.Features({"image": datasets.Image(), **columns})
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as cache:
        parts = {
            split: datasets.Dataset.from_generator(
                rows,
                features,
                cache,
                gen_kwargs={"samples": listed, "image_size": image_size},
                num_proc=min(os.cpu_count() or 1, 1 + len(listed) // 1000),
                split=split,
            )
            for split, listed in samples.items()
            if listed
        }
        datasets.DatasetDict(parts).save_to_disk(out)


def rows(samples: list[Sample], image_size: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split; images are grey or RGB, and stored without loss."""
    for file, label, domain in samples:
        with Image.open(file) as image:
            grey = image.mode in ("1", "L", "LA")
            pixels = np.array(image.convert("L" if grey else "RGB"))
        channels_last = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1))
        resized = Reduction(image_size).resized(channels_last.permute(2, 0, 1))
        yield {"image": to_pil_image(resized), "label": label, "domain": domain}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--domains", action="store_true")
    parser.add_argument("--image-size", type=int, default=0, metavar="PIXELS")
    convert(**vars(parser.parse_args()))
