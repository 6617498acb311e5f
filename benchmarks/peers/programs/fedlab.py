"""FedAvg of FedLab, with its clients in sequence in this process."""

import logging
import random
from collections.abc import Callable, Iterator

import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor, nn

from benchmarks.peers.workloads import SEED, Task


class _Clients:
    """The clients' samples, as batches for FedLab's trainer."""

    def __init__(self, task: Task) -> None:
        self.inputs, self.labels = task.shares()

    def get_dataloader(self, client: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the client's batches in a new order; torch's DataLoader would be slower."""
        inputs, labels = self.inputs[client], self.labels[client]
        for rows in torch.randperm(len(labels)).split(batch_size):
            yield inputs[rows], labels[rows]


class _Pipeline(StandalonePipeline):
    def __init__(self, *parts: object, after_round: Callable[[], None]) -> None:
        super().__init__(*parts)
        self.after_round = after_round

    def evaluate(self) -> None:
        """Call `after_round`; FedLab calls this method after every round."""
        self.after_round()


def run(task: Task, rounds: int, after_round: Callable[[], None]) -> nn.Module:
    """Run the rounds without an evaluation."""
    logging.disable(logging.INFO)
    random.seed(SEED)
    torch.manual_seed(SEED)
    trainer = FedAvgSerialClientTrainer(task.model(), task.clients)
    trainer.setup_dataset(_Clients(task))
    trainer.setup_optim(1, task.batch, task.learning_rate)
    server = FedAvgServerHandler(task.model(), rounds, task.participants / task.clients)
    _Pipeline(server, trainer, after_round=after_round).main()
    model: nn.Module = server.model
    return model
