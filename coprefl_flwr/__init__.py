"""Collaborative pre-training for Flower: a good and fair starting model for federated learning.

```python
import coprefl_flwr as cp

clients = cp.partition(train_set, clients=100, alpha=0.5)
start = cp.pretrain(cp.CoPreFL(gamma=0.5, participants=20), Net(), clients, rounds=50)
tasks = cp.tasks(test_set, number=10, classes=5, clients=10)
result = cp.evaluate_starts({"random": Net(), "coprefl": start}, tasks, rounds=50)
```

The names of `FOUND` are loaded on first use: importing the package takes no time.
"""

import importlib
from typing import TYPE_CHECKING, Any

from coprefl_flwr.plugins import register as register

if TYPE_CHECKING:
    from coprefl_flwr.clients import query_reply as query_reply
    from coprefl_flwr.data import load_dataset as load_dataset
    from coprefl_flwr.federation import of_flower as of_flower
    from coprefl_flwr.front import Clients as Clients
    from coprefl_flwr.front import StartsResult as StartsResult
    from coprefl_flwr.front import Tasks as Tasks
    from coprefl_flwr.front import evaluate_starts as evaluate_starts
    from coprefl_flwr.front import partition as partition
    from coprefl_flwr.front import plot_history as plot_history
    from coprefl_flwr.front import pretrain as pretrain
    from coprefl_flwr.front import tasks as tasks
    from coprefl_flwr.learning import ServerData as ServerData
    from coprefl_flwr.strategies import *  # noqa: F403

__version__ = "0.2.0"

FOUND = {
    "front": (
        *("partition", "pretrain", "tasks", "evaluate_starts", "plot_history"),
        *("Clients", "Tasks", "StartsResult"),
    ),
    "data": ("load_dataset",),
    "learning": ("ServerData",),
    "federation": ("of_flower",),
    "clients": ("query_reply",),
    "strategies": (
        *("CoPreFL", "CoPreFLStd", "HybridCoPreFL", "Cyclic", "Schedule", "ServerRefined"),
        *("Centralised", "CentralisedHybrid", "FedAdam", "FedAvg", "FedAvgM", "FedDyn", "FedMeta"),
        *("FedPCL", "FedProto", "FedProx", "FedRep", "FedYogi", "MOON", "PFedMe", "PerFedAvg"),
        *("QFFL", "SCAFFOLD", "Solo", "RoundStrategy"),
    ),
}
"""By room, the names that the package has besides `register`."""


def __getattr__(name: str) -> Any:
    for room, names in FOUND.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(name for names in FOUND.values() for name in names)])
