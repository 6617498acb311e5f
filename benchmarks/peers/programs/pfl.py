"""FedAvg of pfl, in its simulation in this process."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.peers.workloads import SEED, Task


class _Network(nn.Module):
    """The network with the methods that pfl calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of local training."""
        return cross_entropy(self.network(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return the loss; pfl calls this only in the first round, which is not measured."""
        return {"loss": Weighted(self.loss(inputs, labels).item() * len(labels), len(labels))}


class _Clock(TrainingProcessCallback):
    def __init__(self, after_round: Callable[[], None]) -> None:
        self.after_round = after_round

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Call `after_round`."""
        self.after_round()
        return False, Metrics()


def run(task: Task, rounds: int, after_round: Callable[[], None]) -> nn.Module:
    """Run the rounds; clients are evaluated only in the first round."""
    logging.disable(logging.INFO)  # pfl logs every round's metrics.
    np.random.seed(SEED)  # noqa: NPY002 - pfl draws clients from it.
    inputs, labels = task.shares()
    clients = [Dataset((x, y)) for x, y in zip(inputs, labels, strict=True)]
    sampler = get_user_sampler("random", list(range(task.clients)))
    users = FederatedDataset(clients.__getitem__, sampler)
    network = _Network(task.model())
    optimiser = torch.optim.SGD(network.parameters(), lr=1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=task.participants,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(network, torch.optim.SGD, optimiser),
        model_train_params=NNTrainHyperParams(
            local_batch_size=task.batch, local_num_epochs=1, local_learning_rate=task.learning_rate
        ),
        callbacks=[_Clock(after_round)],
    )
    return network.network
