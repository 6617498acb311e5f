"""Regression on a table: prices in 20 regions, and starts for six regions that are new.

python examples/targets/regression.py
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp

FEATURES, REGIONS, PER_REGION = 8, 26, 60


def table() -> tuple[TensorDataset, torch.Tensor]:
    """Return (features (n, 8), price (n, 1)) of houses, and the region (n,) of each.

    The prices of all regions depend on the features in similar ways, which are not linear.
    """
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((FEATURES, 4))
    parts = []
    for _ in range(REGIONS):
        features = rng.standard_normal((PER_REGION, FEATURES))
        weights = shared + 0.3 * rng.standard_normal(shared.shape)
        price = np.tanh(features @ weights).sum(axis=1) + rng.normal(0, 0.1, PER_REGION)
        parts.append((features, price[:, None]))
    columns = zip(*parts, strict=True)
    features, price = (torch.tensor(np.concatenate(column)).float() for column in columns)
    return TensorDataset(features, price), torch.arange(REGIONS).repeat_interleave(PER_REGION)


def absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the mean absolute error of a client's test samples."""
    return float((outputs - targets).abs().mean())


absolute_error.title, absolute_error.better = "Absolute error", "lower"


def network() -> nn.Module:
    """Return two layers, of which a task replaces the last."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))


def main(rounds: int = 60, task_rounds: int = 20) -> cp.StartsResult:
    """Pre-train across 20 regions, and compare on the six others; a task is a region."""
    houses, region = table()
    known = torch.utils.data.Subset(houses, torch.nonzero(region < 20)[:, 0].tolist())
    new = torch.utils.data.Subset(houses, torch.nonzero(region >= 20)[:, 0].tolist())
    clients = cp.partition(known, groups=region[region < 20].numpy())
    how = {"loss": nn.functional.mse_loss, "learning_rate": 0.05, "local_steps": 10}
    starts = {"random": network()} | {
        method: cp.pretrain(method, network(), clients, rounds, participants=10, quiet=True, **how)
        for method in ("fedavg", "coprefl:meta-learning-rate=0.01")
    }
    tasks = cp.tasks(new, groups=region[region >= 20].numpy(), clients=4, scheme="iid")
    return cp.evaluate_starts(
        starts, tasks, task_rounds, client_metrics=absolute_error, evaluate_every=0, **how
    )


if __name__ == "__main__":
    print(main())
