"""What a method may ask of the network that its clients train."""

from typing import Protocol

from coprefl_flwr.arrays import Arrays


class Network(Protocol):
    """A network, as `RoundStrategy.initial` is given it."""

    @property
    def name(self) -> str:
        """Its name, for errors."""

    @property
    def arrays(self) -> Arrays:
        """Its weights and buffers, in the order of its `state_dict`."""

    @property
    def num_classes(self) -> int:
        """How many classes the clients' labels have."""

    @property
    def outputs(self) -> int:
        """How many numbers it returns for a sample."""

    @property
    def representation(self) -> int:
        """How many numbers enter its last linear layer for a sample."""

    @property
    def head(self) -> frozenset[str]:
        """Names of the arrays of its last linear layer."""
