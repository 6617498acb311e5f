"""Features of images by frozen networks: computed once, and used as inputs of a model."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.dataset import ImageDataset, Samples, TensorDataset, batch_slices
from coprefl_flwr.files import write_atomically

Encoder = Callable[[Tensor], Tensor]
"""Function from images (b, C, H, W), with pixels in 0..1, to their features (b, ...)."""
Change = Callable[[npt.NDArray[Any]], npt.NDArray[np.float32]]
"""Function that changes images, with pixels in 0..1, before encoding; for example adds noise."""
ENCODING_BATCH = 64


def features_of(
    samples: Samples,
    encoders: Sequence[Encoder],
    device: torch.device,
    file: Path | None = None,
    change: Change | None = None,
) -> Samples:
    """Return the same samples, with the concatenated features of all encoders as inputs.

    Parameters
    ----------
    samples : samples of an `ImageDataset`
    encoders : functions from images to features; if there are several, each must return vectors
        (b, d), which are concatenated (FedPCL, eq. 2)
    device : device on which the encoders compute
    file : .npy file in which the features are stored; if the file exists, the features are read
        from it instead of computed again; None: the features are kept in memory only
    change : function that is applied once to all images before they are encoded; None: no change
    """
    if file is None or not len(samples):
        values = torch.from_numpy(_computed(samples, encoders, device, change))
    else:
        if not file.exists():
            content = io.BytesIO()
            np.save(content, _computed(samples, encoders, device, change))
            write_atomically(file, content.getvalue())
        # The file is memory-mapped, so that the features may be larger than the memory. The mode is
        # "c" (copy on write), because torch warns of a read-only mapping.
        values = torch.from_numpy(np.load(file, "c", allow_pickle=False))
    dataset = TensorDataset(values, labels=samples.labels, classes=samples.dataset.classes)
    return Samples(dataset, np.arange(len(samples)), samples.labels)


def _computed(
    samples: Samples, encoders: Sequence[Encoder], device: torch.device, change: Change | None
) -> npt.NDArray[np.float32]:
    images = cast(ImageDataset, samples.dataset).images[torch.tensor(samples.indices)]
    if change is not None:
        scaled = images.numpy().astype(np.float32) / np.float32(255)
        images = torch.from_numpy(change(scaled))
    parts = []
    for batch_slice in batch_slices(len(images), ENCODING_BATCH):
        batch = images[batch_slice].to(device)
        batch = batch if change is not None else batch.float() / 255
        features = [encode(batch) for encode in encoders]
        together = features[0] if len(features) == 1 else torch.cat(features, dim=1)
        parts.append(together.cpu().numpy())
    return np.concatenate(parts)
