"""FedAvg as a plain PyTorch program, with which the packages are compared."""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.bare import settle
from benchmarks.peers.workloads import SEED, Task


def run(task: Task, rounds: int, after_round: Callable[[], None]) -> nn.Module:
    """Run the rounds on one model; each client starts from the global weights."""
    settle()
    chosen = random.Random(SEED)
    inputs, labels = task.shares()
    # PyTorch's convolutions on a CPU are faster in this format.
    layout = torch.channels_last if len(task.shape) == 3 else torch.contiguous_format
    model = task.model().to(memory_format=layout)
    weights = list(model.parameters())
    start = [weight.detach().clone() for weight in weights]
    model.train()
    for _ in range(rounds):
        totals = [torch.zeros_like(weight) for weight in start]
        for client in chosen.sample(range(task.clients), task.participants):
            _train(task, model, start, inputs[client], labels[client])
            torch._foreach_add_(totals, [weight.detach() for weight in weights])
        start = [total.div_(task.participants) for total in totals]
        after_round()
    _load(weights, start)
    return model


def _train(
    task: Task, model: nn.Module, start: list[Tensor], inputs: Tensor, labels: Tensor
) -> None:
    """Run the SGD steps of a client from `start`."""
    weights = list(model.parameters())
    _load(weights, start)
    optimiser = torch.optim.SGD(weights, lr=task.learning_rate)
    for rows in torch.randperm(task.samples).split(task.batch):
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs[rows]), labels[rows])
        torch.autograd.backward(loss)
        optimiser.step()


@torch.no_grad()
def _load(weights: list[nn.Parameter], start: list[Tensor]) -> None:
    for weight, value in zip(weights, start, strict=True):
        weight.copy_(value)
