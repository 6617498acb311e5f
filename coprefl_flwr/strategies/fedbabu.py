"""FedBABU: FedAvg of the body; the last layer keeps its random initial weights."""

from typing import ClassVar

from coprefl_flwr.strategies.fedavg import FedAvg


class FedBABU(FedAvg):
    """FedBABU (Oh, Kim and Yun 2022, arxiv.org/abs/2106.06042), Algorithm 1.

    The last layer is drawn once and never trained. Clients train the other layers, the body, and
    the server averages the bodies. In a study the package freezes the last layer. In your own app,
    freeze it at the server and at every client: `model.fc.requires_grad_(False)`.
    """

    name = "fedbabu"
    trains_head = False
    roles: ClassVar[tuple[str, ...]] = ("pretraining",)
