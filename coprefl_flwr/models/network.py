"""A network with what a method may ask of it before the first round."""

import functools
from dataclasses import dataclass

import torch
from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.models.arrays import model_arrays
from coprefl_flwr.models.representation import outputs_and_representation


@dataclass(eq=False)
class Network:
    """A module, and what it was before anything was loaded into it.

    Parameters
    ----------
    name : str
        As error messages call it.
    module : nn.Module
        May be shared by all clients of a process, which load their weights into it.
    num_classes : int
        Classes of the data.
    input_shape : tuple[int, ...]
        Of one sample.
    head : frozenset[str]
        Names of the arrays of the last layer.
    """

    name: str
    module: nn.Module
    num_classes: int
    input_shape: tuple[int, ...]
    head: frozenset[str]

    def __post_init__(self) -> None:
        """Keep the first weights."""
        self.arrays: Arrays = model_arrays(self.module)

    @functools.cached_property
    def outputs(self) -> int:
        """How many numbers it gives for a sample."""
        with torch.no_grad():
            return int(self.module.eval()(torch.zeros(1, *self.input_shape)).shape[1])

    @functools.cached_property
    def representation(self) -> int:
        """How many numbers enter its last linear layer."""
        with torch.no_grad():
            sample = torch.zeros(1, *self.input_shape)
            return int(outputs_and_representation(self.module.eval(), sample)[1].shape[1])
