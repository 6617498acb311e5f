"""FedAvg of fluke, with all data in memory and clients that keep no model between rounds."""

from collections.abc import Callable
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver
from torch import nn

from benchmarks.peers.workloads import SEED, Task


class _Shares:
    """Assigns the samples of the workload to the clients, instead of fluke's partition."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def assign(self, _clients: int, batch_size: int) -> Any:
        """Return ((training samples, test samples) of the clients, test samples of the server)."""
        loaders = [
            FastDataLoader(
                *samples, num_labels=self.task.classes, batch_size=batch_size, shuffle=True
            )
            for samples in zip(*self.task.shares(), strict=True)
        ]
        return (loaders, [None] * len(loaders)), None


class _Clock(FederationObserver):
    def __init__(self, after_round: Callable[[], None]) -> None:
        self.after_round = after_round

    def end_round(self, round: int) -> None:  # noqa: A002, ARG002 - fluke's name.
        """Call `after_round`."""
        self.after_round()


def run(task: Task, rounds: int, after_round: Callable[[], None]) -> nn.Module:
    """Run the rounds without an evaluation."""
    environment = FlukeENV()
    environment.set_seed(SEED)
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    client = DDict(
        batch_size=task.batch,
        local_epochs=1,
        loss=nn.CrossEntropyLoss,
        optimizer=DDict(name=torch.optim.SGD, lr=task.learning_rate),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        persistency=False,
    )
    settings = DDict(client=client, server=DDict(weighted=True), model=task.model())
    federation = FedAVG(task.clients, _Shares(task), settings)
    federation.set_callbacks([_Clock(after_round)])
    # After the last measured round, fluke evaluates all clients that took part.
    federation.finalize = lambda: None
    federation.run(rounds, task.participants / task.clients)
    model: nn.Module = federation.server.model
    return model
