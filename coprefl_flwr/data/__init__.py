"""Datasets, their partitions over clients, and their splits."""

from coprefl_flwr.data.dataset import ClientData as ClientData
from coprefl_flwr.data.dataset import Dataset as Dataset
from coprefl_flwr.data.dataset import ImageDataset as ImageDataset
from coprefl_flwr.data.dataset import Samples as Samples
from coprefl_flwr.data.dataset import TensorDataset as TensorDataset
from coprefl_flwr.data.dataset import make_dataset as make_dataset
from coprefl_flwr.data.dataset import pooled as pooled
from coprefl_flwr.data.fractals import fractals as fractals
from coprefl_flwr.data.glyphs import glyphs as glyphs
from coprefl_flwr.data.glyphs import glyphs_in_domains as glyphs_in_domains
from coprefl_flwr.data.partition import partition as partition
from coprefl_flwr.data.sources import load_dataset as load_dataset
from coprefl_flwr.data.splits import Datasets as Datasets
from coprefl_flwr.data.splits import DataSettings as DataSettings
from coprefl_flwr.data.splits import split_in_two as split_in_two
from coprefl_flwr.data.text import CHARACTERS as CHARACTERS
from coprefl_flwr.data.text import TextDataset as TextDataset
from coprefl_flwr.data.user_data import as_dataset as as_dataset
from coprefl_flwr.data.user_data import as_samples as as_samples
