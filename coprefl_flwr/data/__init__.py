"""Where images come from, and how they are shared out: sources, partitions, splits."""

from coprefl_flwr.data.glyphs import glyphs
from coprefl_flwr.data.images import ImageDataset, Samples, batch_slices, load_images
from coprefl_flwr.data.partition import SCHEMES, partition
from coprefl_flwr.data.splits import relabel, split_classes, split_in_two

__all__ = [
    "SCHEMES",
    "ImageDataset",
    "Samples",
    "batch_slices",
    "glyphs",
    "load_images",
    "partition",
    "relabel",
    "split_classes",
    "split_in_two",
]
