"""FedAvg as a plain PyTorch program: what all else is measured against.

No Flower, and of this package only the model and the seeds: it trains on the very batches that the
package's FedAvg draws and ends with the same model to rounding (a test compares them), so that
the ratio of their times is overhead and nothing else.
"""

from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor, multiprocessing, nn
from torch.nn import functional

from benchmarks.workloads import POPULATION, SEED, Workload, dataset
from coprefl_flwr import seeds

Weights = dict[str, Tensor]


def copied(weights: Weights) -> Weights:
    """Return copies of the weights, in their own memory format."""
    return {
        name: tensor.clone(memory_format=torch.preserve_format) for name, tensor in weights.items()
    }


def participants(workload: Workload, server_round: int) -> list[int]:
    """Draw the round's clients, ascending."""
    rng = seeds.generator(SEED, POPULATION, server_round, "participants", 0)
    return sorted(rng.choice(workload.clients, workload.participants, replace=False).tolist())


class Trainer:
    """Local SGD on one model, client after client, adding their weights up."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        data = dataset(workload)
        self.images = data.images.tensor_split(workload.clients)
        self.labels = torch.from_numpy(data.labels).tensor_split(workload.clients)
        self.mean = data.mean[:, None, None]
        self.std = data.std[:, None, None]
        self.model: nn.Module = workload.build().to(memory_format=torch.channels_last)
        self.weights = self.model.state_dict()

    def add_up(
        self, start: Weights, total: Weights, server_round: int, clients: Sequence[int]
    ) -> None:
        """Set `total` to the sum of the models that `clients` train from `start`."""
        for tensor in total.values():
            tensor.zero_()
        for client in clients:
            for name, tensor in start.items():
                self.weights[name].copy_(tensor)
            self.train(server_round, client)
            for name, tensor in self.weights.items():
                total[name].add_(tensor)

    def train(self, server_round: int, client: int) -> None:
        """Take one client's SGD steps."""
        self.model.train()
        optimiser = torch.optim.SGD(self.model.parameters(), lr=self.workload.learning_rate)
        for images, labels in self.batches(server_round, client):
            optimiser.zero_grad()
            loss = functional.cross_entropy(self.model(images), labels)
            torch.autograd.backward(loss)
            optimiser.step()

    def batches(self, server_round: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the client's normalised batches of this round."""
        rng = seeds.generator(SEED, POPULATION, server_round, client, "batches")
        order = torch.from_numpy(rng.permutation(self.workload.samples_per_client))
        size = self.workload.batch_size
        for step in range(self.workload.local_steps):
            rows = order[step * size : (step + 1) * size]
            images = self.images[client][rows].float().contiguous(memory_format=torch.channels_last)
            yield images.div_(255).sub_(self.mean).div_(self.std), self.labels[client][rows]


def mean_into(start: Weights, totals: Sequence[Weights], count: int) -> None:
    """Set `start` to the sum of `totals` over `count`; BatchNorm's counters are rounded."""
    for name, tensor in start.items():
        total = sum((part[name] for part in totals[1:]), totals[0][name]) / count
        tensor.copy_(total if tensor.is_floating_point() else total.round())


def one_process(workload: Workload, threads: int, after_round: Callable[[Weights], None]) -> None:
    """Run rounds in this process with `threads` threads until `after_round` raises."""
    torch.set_num_threads(threads)
    trainer = Trainer(workload)
    start, total = copied(trainer.weights), copied(trainer.weights)
    server_round = 0
    while True:
        server_round += 1
        trainer.add_up(start, total, server_round, participants(workload, server_round))
        mean_into(start, [total], workload.participants)
        after_round(start)


def several_processes(
    workload: Workload, processes: int, after_round: Callable[[Weights], None]
) -> None:
    """Run rounds on `processes` processes of one thread until `after_round` raises.

    Weights and sums lie in memory that all of them share; the pipes only say when.
    """
    torch.set_num_threads(1)
    weights = Trainer(workload).weights
    start = shared(weights)
    totals = [shared(weights) for _ in range(processes)]
    context = multiprocessing.get_context("spawn")
    pipes = []
    for total in totals:
        here, there = context.Pipe()
        context.Process(target=work, args=(workload, start, total, there), daemon=True).start()
        there.close()
        pipes.append(here)
    server_round = 0
    while True:
        server_round += 1
        clients = participants(workload, server_round)
        for number, pipe in enumerate(pipes):
            pipe.send((server_round, clients[number::processes]))
        for pipe in pipes:
            pipe.recv()
        mean_into(start, totals, workload.participants)
        after_round(start)


def shared(weights: Weights) -> Weights:
    """Return copies of the weights in shared memory."""
    copies = copied(weights)
    for tensor in copies.values():
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return copies


def work(workload: Workload, start: Weights, total: Weights, pipe: Connection) -> None:
    """Train shares of rounds until the pipe closes."""
    torch.set_num_threads(1)
    trainer = Trainer(workload)
    while True:
        try:
            server_round, clients = pipe.recv()
        except EOFError:
            return
        trainer.add_up(start, total, server_round, clients)
        pipe.send(None)
