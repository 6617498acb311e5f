"""Datasets, their partitions over clients, and their splits."""

from coprefl_flwr.data.glyphs import glyphs, glyphs_in_domains
from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.load import load_dataset
from coprefl_flwr.data.partition import SCHEMES, partition
from coprefl_flwr.data.samples import Dataset, Samples, batch_slices
from coprefl_flwr.data.splits import (
    choose_classes,
    choose_domains,
    relabel,
    split_classes,
    split_in_two,
)
from coprefl_flwr.data.text import CHARACTERS, TextDataset

__all__ = [
    "CHARACTERS",
    "SCHEMES",
    "Dataset",
    "ImageDataset",
    "Samples",
    "TextDataset",
    "batch_slices",
    "choose_classes",
    "choose_domains",
    "glyphs",
    "glyphs_in_domains",
    "load_dataset",
    "partition",
    "relabel",
    "split_classes",
    "split_in_two",
]
