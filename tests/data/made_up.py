"""Files of made-up data, and the check that bad ones are refused."""

import struct

import numpy as np
import pytest
from PIL import Image

from coprefl_flwr.data import load_dataset
from coprefl_flwr.errors import SettingsError


def pixels(rng, *shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


def write_idx(path, array, kind=8):
    """Write MNIST's format, big-endian; `kind` 8 is uint8 and 12 int32."""
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
    """Assert that the dataset is refused in one line that matches `message`."""
    with pytest.raises(SettingsError, match=message) as caught:
        load_dataset(str(name), data_dir)
    assert "\n" not in str(caught.value)
    return caught.value
