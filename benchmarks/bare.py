"""FedAvg and CoPreFL as plain PyTorch programs, with which the package is compared.

The programs use neither Flower nor this package. With the same seed they draw the same clients and
batches as the package, and end with the same model up to rounding (a test compares the models). So
the ratio of the times shows the overhead of Flower and the package.
"""

import ctypes
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, multiprocessing, nn
from torch.nn import functional

from benchmarks.workloads import (
    GAMMA,
    MEAN,
    POPULATION,
    SEED,
    STD,
    SUPPORT,
    WIDTH,
    Workload,
    data,
)

Weights = dict[str, Tensor]
Sums = list[Weights]
"""For "train" the sum of the models; for "query" the sums of g_j and of L_j g_j."""
AfterRound = Callable[[Weights], None]
Ask = Callable[[str, int, Sequence[int]], tuple[Sums, list[float]]]
"""Runs "train" or "query" on clients in a round; returns their sums and, for "query", losses."""


def settle() -> None:
    """Set one thread, and let glibc keep the memory of freed arrays for the next arrays.

    The package's processes do both. The comparison should not depend on the memory allocator.
    """
    torch.set_num_threads(1)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # Only glibc has it.
        trim_threshold, mmap_threshold = -1, -3
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 1 << 25)


def generator(*key: str | int) -> np.random.Generator:
    """Return the random generator that the package uses for `key`."""
    digest = hashlib.sha256(repr((SEED, POPULATION, *key)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def network(workload: Workload) -> nn.Module:
    """Return the network, with its arrays in the same order as in the package's network."""
    torch.manual_seed(SEED)
    if workload.model == "resnet18":
        import torchvision

        model: nn.Module = torchvision.models.resnet18(num_classes=workload.num_classes)
        model.conv1 = nn.Conv2d(workload.shape[0], 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
        return model
    if workload.heads:
        return nn.Sequential(*projection(workload), nn.Linear(WIDTH, workload.num_classes))
    channels, height, width = workload.shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(inplace=True),
        nn.Linear(128, workload.num_classes),
    )


def projection(workload: Workload) -> list[nn.Module]:
    """Return the layers of a head before its classifier."""
    return [nn.Linear(workload.shape[0], WIDTH), nn.ReLU(), nn.BatchNorm1d(WIDTH)]


def copied(weights: Weights) -> Weights:
    """Return copies of the weights, in their own memory format."""
    return {
        name: tensor.clone(memory_format=torch.preserve_format) for name, tensor in weights.items()
    }


def participants(workload: Workload, server_round: int) -> list[int]:
    """Return the drawn clients of a round, in ascending order."""
    rng = generator(server_round, "participants", 0)
    return sorted(rng.choice(workload.clients, workload.participants, replace=False).tolist())


class Clients:
    """Runs the work of clients in sequence, on one model.

    `start` are the initial weights in the network's order; None: the network's random weights.
    """

    def __init__(
        self,
        workload: Workload,
        method: str,
        device: str = "cpu",
        start: Sequence[Tensor] | None = None,
    ) -> None:
        self.workload = workload
        # CoPreFL trains on a part of a client's samples.
        self.splits = method == "coprefl"
        inputs, labels = (tensor.to(device) for tensor in data(workload))
        self.inputs = inputs.tensor_split(workload.clients)
        self.labels = labels.tensor_split(workload.clients)
        self.model = network(workload)
        self.weights = self.model.state_dict()
        for tensor, first in zip(self.weights.values(), start or (), strict=bool(start)):
            tensor.copy_(first)
        self.model.to(device).to(memory_format=torch.channels_last)
        self.weights = self.model.state_dict()
        self.parameters = dict(self.model.named_parameters())

    def ask(
        self, what: str, weights: Weights, server_round: int, clients: Sequence[int]
    ) -> tuple[Sums, list[float]]:
        """Run "train" or "query" from `weights`; see `Ask`."""
        if what == "train":
            return self.train(weights, server_round, clients), []
        return self.query(weights, server_round, clients)

    def train(self, start: Weights, server_round: int, clients: Sequence[int]) -> Sums:
        """Return the sum of the models that `clients` train from `start`."""
        total = {name: torch.zeros_like(tensor) for name, tensor in self.weights.items()}
        for client in clients:
            self.load(start)
            self.steps(server_round, client)
            for name, tensor in self.weights.items():
                total[name].add_(tensor)
        return [total]

    def load(self, start: Weights) -> None:
        """Copy weights into the model."""
        for name, tensor in start.items():
            self.weights[name].copy_(tensor)

    def steps(self, server_round: int, client: int) -> None:
        """Train the model on a client's batches by SGD, or by Adam if it is a head."""
        self.model.train()
        rate = self.workload.learning_rate
        optimiser: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        if self.workload.heads:
            optimiser = torch.optim.Adam(self.model.parameters(), lr=rate, weight_decay=1e-4)
        for inputs, labels in self.batches(server_round, client):
            optimiser.zero_grad()
            loss = functional.cross_entropy(self.model(inputs), labels)
            torch.autograd.backward(loss)
            optimiser.step()

    def batches(self, server_round: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the client's batches of this round."""
        rows = torch.arange(self.workload.samples_per_client)
        if self.splits:
            rows = self.split(server_round, client)[0]
        order = generator(server_round, client, "batches").permutation(len(rows))
        size = self.workload.batch_size
        for step in range(self.workload.local_steps):
            yield self.batch(client, rows[torch.from_numpy(order[step * size : (step + 1) * size])])

    def batch(self, client: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return a client's samples; images are normalised."""
        inputs, labels = self.inputs[client][rows], self.labels[client][rows]
        if not self.workload.heads:
            inputs = inputs.float().contiguous(memory_format=torch.channels_last)
            inputs.div_(255).sub_(MEAN).div_(STD)
        return inputs, labels

    def split(self, server_round: int, client: int) -> tuple[Tensor, Tensor]:
        """Return the positions of a client's support and query sets of this round."""
        count = self.workload.samples_per_client
        order = torch.from_numpy(generator(server_round, client, "support").permutation(count))
        first = int(SUPPORT * count + 1e-9)
        return order[:first].sort().values, order[first:].sort().values

    def query(
        self, weights: Weights, server_round: int, clients: Sequence[int]
    ) -> tuple[Sums, list[float]]:
        """Return the sums of g_j and of L_j g_j over the query sets at `weights`, and the L_j."""
        self.load(weights)
        self.model.eval()
        sums = [{n: torch.zeros_like(p) for n, p in self.parameters.items()} for _ in range(2)]
        losses = []
        for client in clients:
            self.model.zero_grad()
            inputs, labels = self.batch(client, self.split(server_round, client)[1])
            loss = functional.cross_entropy(self.model(inputs), labels)
            torch.autograd.backward(loss)
            losses.append(loss.item())
            for name, parameter in self.parameters.items():
                assert parameter.grad is not None
                sums[0][name].add_(parameter.grad)
                sums[1][name].add_(parameter.grad, alpha=losses[-1])
        self.model.zero_grad()
        return sums, losses


def mean_into(weights: Weights, total: Weights, count: int) -> None:
    """Set `weights` to `total` / `count`; BatchNorm's counters are rounded."""
    for name, tensor in weights.items():
        mean = total[name] / count
        tensor.copy_(mean if tensor.is_floating_point() else mean.round())


def fedavg(workload: Workload, weights: Weights, ask: Ask, after_round: AfterRound) -> None:
    """Run FedAvg's rounds on `weights` until `after_round` raises."""
    server_round = 0
    while True:
        server_round += 1
        clients = participants(workload, server_round)
        (total,), _ = ask("train", server_round, clients)
        mean_into(weights, total, len(clients))
        after_round(weights)


def coprefl(workload: Workload, weights: Weights, ask: Ask, after_round: AfterRound) -> None:
    """Run CoPreFL's rounds (Algorithm 1) on `weights` until `after_round` raises."""
    server_round = 0
    while True:
        server_round += 1
        clients = participants(workload, server_round)
        (total,), _ = ask("train", server_round, clients)
        mean_into(weights, total, len(clients))
        (gradient, loss_gradient), losses = ask("query", server_round, clients)
        mean, spread = sum(losses) / len(losses), (1 - GAMMA) * 2 / len(losses)
        for name, first in gradient.items():
            step = GAMMA * first + spread * (loss_gradient[name] - mean * first)
            weights[name].sub_(step, alpha=workload.meta_rate)
        after_round(weights)


METHODS = {"fedavg": fedavg, "coprefl": coprefl}


def one_process(
    workload: Workload,
    method: str,
    after_round: AfterRound,
    device: str = "cpu",
    start: Sequence[Tensor] | None = None,
) -> None:
    """Run a method's rounds in this process, with one thread, until `after_round` raises."""
    settle()
    clients = Clients(workload, method, device, start)
    weights = copied(clients.weights)

    def ask(what: str, server_round: int, chosen: Sequence[int]) -> tuple[Sums, list[float]]:
        return clients.ask(what, weights, server_round, chosen)

    METHODS[method](workload, weights, ask, after_round)


def several_processes(
    workload: Workload,
    method: str,
    after_round: AfterRound,
    device: str = "cpu",
    start: Sequence[Tensor] | None = None,
    processes: int = 2,
) -> None:
    """Run a method's rounds on `processes` processes of one thread, until `after_round` raises.

    Weights and sums are in shared memory; the pipes transport only the requests and losses.
    """
    settle()
    clients = Clients(workload, method, "cpu", start)
    weights = shared(clients.weights)
    context = multiprocessing.get_context("spawn")
    pipes: list[Any] = []
    sums: list[dict[str, Sums]] = []
    for _ in range(processes):
        queried = [shared(clients.parameters) for _ in range(2 * (method == "coprefl"))]
        sums.append({"train": [shared(clients.weights)], "query": queried})
        here, there = context.Pipe()
        arguments = (workload, method, device, weights, sums[-1], there)
        context.Process(target=work, args=arguments, daemon=True).start()
        there.close()
        pipes.append(here)
    del clients

    def ask(what: str, server_round: int, chosen: Sequence[int]) -> tuple[Sums, list[float]]:
        for number, pipe in enumerate(pipes):
            pipe.send((what, server_round, chosen[number::processes]))
        losses = [loss for pipe in pipes for loss in pipe.recv()]
        first, *others = (shares[what] for shares in sums)
        for other in others:
            for total, more in zip(first, other, strict=True):
                for name, tensor in total.items():
                    tensor.add_(more[name])
        return first, losses

    METHODS[method](workload, weights, ask, after_round)


def shared(weights: Mapping[str, Tensor]) -> Weights:
    """Return copies of the weights in shared memory."""
    copies = copied({name: tensor.detach() for name, tensor in weights.items()})
    for tensor in copies.values():
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return copies


def work(
    workload: Workload,
    method: str,
    device: str,
    weights: Weights,
    sums: dict[str, Sums],
    pipe: Connection,
) -> None:
    """Run the requests that arrive by the pipe until it closes."""
    settle()
    clients = Clients(workload, method, device)
    while True:
        try:
            what, server_round, chosen = pipe.recv()
        except EOFError:
            return
        own, losses = clients.ask(what, weights, server_round, chosen)
        for there, here in zip(sums[what], own, strict=True):
            for name, tensor in here.items():
                there[name].copy_(tensor)
        pipe.send(losses)
