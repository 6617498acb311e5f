"""What a method may ask of the network that its clients train."""

from typing import NamedTuple, Protocol

from coprefl_flwr.arrays import Arrays


class HeadLayer(NamedTuple):
    """The last linear layer of a network: its module's name, and those of its arrays.

    `bias` is "" for a layer without.
    """

    module: str
    weight: str
    bias: str = ""


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
