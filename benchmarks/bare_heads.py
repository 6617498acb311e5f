"""FedPCL as a plain PyTorch program; FedAvg and CoPreFL are in `benchmarks.bare`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.bare import AfterRound, Clients, Weights, copied, participants, projection, settle
from benchmarks.workloads import SEED, TEMPERATURE, WIDTH, Workload


class Heads(Clients):
    """Trains the clients' heads in sequence, on one model."""

    def __init__(
        self, workload: Workload, device: str, start: Sequence[Tensor] | None = None
    ) -> None:
        super().__init__(workload, "fedpcl", device)
        torch.manual_seed(SEED)
        self.model = nn.Sequential(*projection(workload)).to(device)
        self.weights = self.model.state_dict()
        for tensor, first in zip(self.weights.values(), start or (), strict=bool(start)):
            tensor.copy_(first)
        self.own = [copied(self.weights) for _ in range(workload.clients)]
        self.everyone = torch.zeros(0, workload.num_classes, WIDTH, device=device)
        self.everywhere = torch.zeros(workload.num_classes, WIDTH, device=device)

    def fit(self, server_round: int, client: int) -> tuple[Tensor, Tensor]:
        """Train a client's head if prototypes exist; return the client's prototypes and counts."""
        self.load(self.own[client])
        if len(self.everyone):
            self.train_head(server_round, client)
            self.own[client] = copied(self.weights)
        self.model.eval()
        with torch.no_grad():
            z = normalize(self.model(self.inputs[client]))
        labels = self.labels[client]
        sums = torch.zeros_like(self.everywhere).index_add_(0, labels, z)
        counts = torch.bincount(labels, minlength=len(sums))
        return normalize(sums / counts[:, None]), counts

    def train_head(self, server_round: int, client: int) -> None:
        """Minimise L_g + L_p (eq. 10) by Adam."""
        self.model.train()
        rate = self.workload.learning_rate
        optimiser = torch.optim.Adam(self.model.parameters(), lr=rate, weight_decay=1e-4)
        for inputs, labels in self.batches(server_round, client):
            optimiser.zero_grad()
            z = normalize(self.model(inputs))
            loss = contrast(z, labels, self.everywhere[None]) + contrast(z, labels, self.everyone)
            torch.autograd.backward(loss)
            optimiser.step()


def contrast(z: Tensor, labels: Tensor, sets: Tensor) -> Tensor:
    """Return the loss of eq. 8 or 9 of z (b, d) with prototypes (m, classes, d) of every class."""
    scores = torch.einsum("bd,pcd->bpc", z, sets) / TEMPERATURE
    rows = torch.arange(len(z), device=z.device)
    positives = scores[rows, :, labels]
    others = scores.clone()
    others[rows, :, labels] = -torch.inf
    return (others.logsumexp(dim=2) - positives).mean()


def fedpcl(
    workload: Workload,
    after_round: AfterRound,
    device: str = "cpu",
    start: Sequence[Tensor] | None = None,
) -> None:
    """Run FedPCL's rounds in this process, with one thread, until `after_round` raises.

    All clients take part. `after_round` gets the global prototypes and their counts.
    """
    settle()
    heads, server_round = Heads(workload, device, start), 0
    while True:
        server_round += 1
        answers = [heads.fit(server_round, c) for c in participants(workload, server_round)]
        heads.everyone = torch.stack([prototypes for prototypes, _ in answers])
        counts = torch.stack([count for _, count in answers])
        weighted = (heads.everyone * counts[:, :, None]).sum(dim=0)
        heads.everywhere = normalize(weighted / counts.sum(dim=0)[:, None])
        result: Weights = {"prototypes": heads.everywhere, "counts": counts.sum(dim=0)}
        after_round(result)
