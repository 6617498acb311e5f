"""Your own data: any map-style torch Dataset, here images of stripes in six classes."""

import torch
from torch.utils.data import TensorDataset

CLASSES, SAMPLES, SIDE = 6, 60, 12


def stripes(folder, noise=0.3):
    """Return images of stripes; real files would be read from `folder`."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES * SAMPLES) % CLASSES
    period, across = 2 + labels % 3, labels >= 3
    shift = torch.randint(0, 6, labels.shape, generator=generator)
    along = (torch.arange(SIDE) + shift[:, None]) // period[:, None] % 2
    images = along[:, None, :].expand(-1, SIDE, -1).float()
    images = torch.where(across[:, None, None], images.transpose(1, 2), images)
    images = images + noise * torch.randn(images.shape, generator=generator)
    return TensorDataset((images.clamp(0, 1) * 255).to(torch.uint8), labels)
