"""Made-up data: noisy patterns, files of every format, and datasets of torch and Hugging Face."""

import struct

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from coprefl_flwr.data import load_dataset
from coprefl_flwr.errors import SettingsError

CLASSES = 8
"""The number of classes in the torch datasets below."""


def write_images(path):
    """Write an .npz of 8 classes of 30 noisy 6x6 images; each class has its own pattern."""
    rng = np.random.default_rng(11)
    labels = rng.permutation(np.repeat(np.arange(8), 30))
    patterns = rng.integers(0, 200, (8, 6, 6))
    images = patterns[labels] + rng.integers(0, 56, (len(labels), 6, 6))
    np.savez(path, images=images.astype(np.uint8), labels=labels)


def write_domain(path, seed):
    """Write an .npz of 4 classes of 60 6x6 images; only the noise depends on the seed."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(4), 60))
    patterns = np.random.default_rng(1).integers(0, 150, (4, 6, 6))
    images = patterns[labels] + rng.integers(0, 60 + 20 * seed, (len(labels), 6, 6))
    np.savez(path, images=images.clip(0, 255).astype(np.uint8), labels=labels)


def pixels(rng, *shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


def write_idx(path, array, kind=8):
    """Write an array in MNIST's big-endian format; `kind` 8 is uint8 and 12 is int32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">HBB", 0, kind, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.tobytes())


def write_npz(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)
    return str(folder / "data.npz")


def write_image(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def refused(message, name, data_dir=""):
    """Assert that the dataset is refused with an error of one line that matches `message`."""
    with pytest.raises(SettingsError, match=message) as caught:
        load_dataset(str(name), data_dir)
    assert "\n" not in str(caught.value)
    return caught.value


def images():
    """Return 240 float images (1, 6, 6) in 8 classes; each class has its own pattern."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(240) % CLASSES
    patterns = torch.rand(CLASSES, 1, 6, 6, generator=generator)
    noise = torch.rand(240, 1, 6, 6, generator=generator)
    return TensorDataset(patterns[labels] + 0.3 * noise, labels)


def table():
    """Return 240 rows of 10 numbers in 8 classes."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(240) % CLASSES
    centres = 2 * torch.randn(CLASSES, 10, generator=generator)
    return TensorDataset(centres[labels] + torch.randn(240, 10, generator=generator), labels)


def sequences():
    """Return 240 sequences of 12 tokens (of 20) in 8 classes; each class has its own token."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(240) % CLASSES
    own = torch.randint(0, 2, (240, 12), generator=generator) == 1
    others = torch.randint(0, 20, (240, 12), generator=generator)
    return TensorDataset(torch.where(own, 2 * labels[:, None], others), labels)


def on_disk(folder):
    """Write the images as a Hugging Face dataset of {"image", "label"}; load and return it."""
    import datasets

    values, labels = images().tensors
    columns = {"image": values.tolist(), "label": labels.tolist()}
    datasets.Dataset.from_dict(columns).save_to_disk(folder)
    return datasets.load_from_disk(folder).with_format("torch")
