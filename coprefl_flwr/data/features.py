"""Features of frozen networks: computed once from the images and used in place of them."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.samples import Samples, batch_slices
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.transfer import on_device

Encoder = Callable[[Tensor], Tensor]
"""Features (b, ...) of images from 0 to 1, (b, C, H, W)."""
Change = Callable[[npt.NDArray[Any]], npt.NDArray[np.float32]]
"""A change of images from 0 to 1 before they are encoded, such as noise."""
IN_MEMORY = 64 * 2**20
"""Most bytes of one client's features to keep in memory; larger ones are mapped from their file."""
ENCODING_BATCH = 64


@dataclass(frozen=True, eq=False)
class FeatureDataset:
    """A `Dataset` of features, float32 (N, ...), in memory or a mapped file."""

    values: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    groups: None = None
    test: None = None
    domains: None = None
    domain_names: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's features."""
        return tuple(self.values.shape[1:])

    def inputs(self, rows: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Return the features of `rows`, float32 (b, ...), on `device`."""
        return on_device(torch.from_numpy(np.array(self.values[rows])), device)


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
    values = _stored(file) if file is not None and file.is_file() else None
    if values is None:
        values = _computed(samples, encoders, device, change)
        if file is not None:
            content = io.BytesIO()
            np.save(content, values)
            write_atomically(file, content.getvalue())
            # Mapped where they are large.
            values = values if (kept := _stored(file)) is None else kept
    if len(values) != len(samples):
        raise SettingsError(f"{file} holds features of {len(values)} samples, not {len(samples)}")
    dataset = FeatureDataset(values, samples.labels, samples.dataset.classes)
    return Samples(dataset, np.arange(len(samples)), samples.labels)


def _stored(file: Path) -> npt.NDArray[np.float32] | None:
    """Return features that were kept, None where the file is damaged: they are made again."""
    large = file.stat().st_size > IN_MEMORY
    try:
        values: npt.NDArray[np.float32] = np.load(file, "r" if large else None, allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return None
    return values


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
    for part in batch_slices(len(images), ENCODING_BATCH):
        batch = images[part].to(device)
        batch = batch if change is not None else batch.float() / 255
        found = [encode(batch) for encode in encoders]
        parts.append((found[0] if len(found) == 1 else torch.cat(found, dim=1)).cpu().numpy())
    return np.concatenate(parts)
