"""Features of frozen networks: computed once from the images and used instead of them."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.dataset import ImageDataset, Samples, TensorDataset, batch_slices
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically

Encoder = Callable[[Tensor], Tensor]
"""Features (b, ...) of images from 0 to 1, (b, C, H, W)."""
Change = Callable[[npt.NDArray[Any]], npt.NDArray[np.float32]]
"""A change of images from 0 to 1 before they are encoded, such as noise."""
ENCODING_BATCH = 64


def features_of(
    samples: Samples,
    encoders: Sequence[Encoder],
    device: torch.device,
    file: Path | None = None,
    change: Change | None = None,
) -> Samples:
    """Return the same samples with the features of all encoders, concatenated, as inputs.

    Parameters
    ----------
    samples : of an `ImageDataset`
    encoders : where there are several, each must give vectors (FedPCL, eq. 2)
    file : an .npy file to keep the features in, which is read if it exists, so that no other
        process need compute them again; None keeps them in memory only
    change : applied to the images, all at once
    """
    values = None if file is None else _stored(file)
    if values is None:
        values = torch.from_numpy(_computed(samples, encoders, device, change))
        if file is not None:
            content = io.BytesIO()
            np.save(content, values.numpy())
            write_atomically(file, content.getvalue())
            stored = _stored(file)
            values = values if stored is None else stored
    if len(values) != len(samples):
        raise SettingsError(f"{file} holds features of {len(values)} samples, not {len(samples)}")
    dataset = TensorDataset(values, labels=samples.labels, classes=samples.dataset.classes)
    return Samples(dataset, np.arange(len(samples)), samples.labels)


def _stored(file: Path) -> Tensor | None:
    """Return stored features, None without a file or of a damaged one: they are computed again."""
    try:
        # Mapped, so that features larger than the memory can be used. torch warns of a mapping that
        # cannot be written to; "c" would copy the pages that are.
        return torch.from_numpy(np.load(file, "c", allow_pickle=False))
    except (ValueError, TypeError, EOFError, OSError):
        return None


def _images(samples: Samples) -> Tensor:
    """Return the images, uint8 (b, C, H, W)."""
    source = samples.dataset
    if not isinstance(source, ImageDataset):
        raise SettingsError(f"features are made of images, not of a {type(source).__name__}")
    return source.images[torch.from_numpy(samples.indices)]


def plain_images(samples: Samples) -> npt.NDArray[np.float32]:
    """Return images with pixels from 0 to 1, (b, C, H, W), as a `Change` is given them."""
    return np.asarray(_images(samples).numpy().astype(np.float32) / np.float32(255))


def _computed(
    samples: Samples, encoders: Sequence[Encoder], device: torch.device, change: Change | None
) -> npt.NDArray[np.float32]:
    images = _images(samples)
    if change is not None:
        images = torch.from_numpy(change(plain_images(samples)))
    parts = []
    for batch_slice in batch_slices(len(images), ENCODING_BATCH):
        batch = images[batch_slice].to(device)
        batch = batch if change is not None else batch.float() / 255
        features = [encode(batch) for encode in encoders]
        together = features[0] if len(features) == 1 else torch.cat(features, dim=1)
        parts.append(together.cpu().numpy())
    return np.concatenate(parts)
