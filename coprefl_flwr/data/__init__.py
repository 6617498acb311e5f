"""Datasets, their partitions over clients, and their splits."""

from coprefl_flwr.data.glyphs import glyphs as glyphs
from coprefl_flwr.data.glyphs import glyphs_in_domains as glyphs_in_domains
from coprefl_flwr.data.images import ImageDataset as ImageDataset
from coprefl_flwr.data.load import load_dataset as load_dataset
from coprefl_flwr.data.partition import SCHEMES as SCHEMES
from coprefl_flwr.data.partition import by_function as by_function
from coprefl_flwr.data.partition import partition as partition
from coprefl_flwr.data.partitioners import partition_with as partition_with
from coprefl_flwr.data.samples import Dataset as Dataset
from coprefl_flwr.data.samples import Samples as Samples
from coprefl_flwr.data.samples import batch_slices as batch_slices
from coprefl_flwr.data.splits import choose_classes as choose_classes
from coprefl_flwr.data.splits import choose_domains as choose_domains
from coprefl_flwr.data.splits import part_of as part_of
from coprefl_flwr.data.splits import relabel as relabel
from coprefl_flwr.data.splits import split_classes as split_classes
from coprefl_flwr.data.splits import split_in_two as split_in_two
from coprefl_flwr.data.text import CHARACTERS as CHARACTERS
from coprefl_flwr.data.text import TextDataset as TextDataset
