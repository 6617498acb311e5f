"""Collaborative pre-training for Flower: a better initial model for federated learning.

```python
import coprefl_flwr as cp

clients = cp.partition(train_set, clients=100, alpha=0.5)
start = cp.pretrain(cp.CoPreFL(gamma=0.5, participants=20), Net(), clients, rounds=50)
tasks = cp.tasks(test_set, number=10, classes=5, clients=10)
result = cp.evaluate_starts({"random": Net(), "coprefl": start}, tasks, rounds=50)
```

Every name is loaded at its first use, so that the import of the package is fast.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from coprefl_flwr.api import evaluate_starts as evaluate_starts
    from coprefl_flwr.api import partition as partition
    from coprefl_flwr.api import pretrain as pretrain
    from coprefl_flwr.api import tasks as tasks
    from coprefl_flwr.choosing import choose_start as choose_start
    from coprefl_flwr.clients import query_reply as query_reply
    from coprefl_flwr.data import load_dataset as load_dataset
    from coprefl_flwr.errors import RunFailedError as RunFailedError
    from coprefl_flwr.errors import SettingsError as SettingsError
    from coprefl_flwr.federation import of_flower as of_flower
    from coprefl_flwr.learning.server_data import ServerData as ServerData
    from coprefl_flwr.models.adapters import average_adapters as average_adapters
    from coprefl_flwr.models.base import base_hash as base_hash
    from coprefl_flwr.models.weights import load_start as load_start
    from coprefl_flwr.plugins import register as register
    from coprefl_flwr.report.starts_result import StartsResult as StartsResult
    from coprefl_flwr.report.starts_result import plot_history as plot_history
    from coprefl_flwr.report.variance import variance_parts as variance_parts
    from coprefl_flwr.strategies import *  # noqa: F403
    from coprefl_flwr.studies.card import save_start as save_start
    from coprefl_flwr.studies.populations import Clients as Clients
    from coprefl_flwr.studies.task_data import Tasks as Tasks

__version__ = "0.2.0"

_NAMES = {
    "api": ("partition", "pretrain", "tasks", "evaluate_starts"),
    "choosing": ("choose_start",),
    "studies.populations": ("Clients",),
    "studies.task_data": ("Tasks",),
    "report.starts_result": ("StartsResult", "plot_history"),
    "report.variance": ("variance_parts",),
    "data": ("load_dataset",),
    "learning.server_data": ("ServerData",),
    "models.adapters": ("average_adapters",),
    "models.base": ("base_hash",),
    "models.weights": ("load_start",),
    "studies.card": ("save_start",),
    "federation": ("of_flower",),
    "clients": ("query_reply",),
    "plugins": ("register",),
    "errors": ("SettingsError", "RunFailedError"),
    "strategies": (
        *("CoPreFL", "CoPreFLStd", "HybridCoPreFL", "Cyclic", "Schedule", "ServerRefined"),
        *("Centralised", "CentralisedHybrid", "FedAdam", "FedAvg", "FedAvgM", "FedBABU", "FedDyn"),
        *("FedETF", "FedMeta", "FedPCL", "FedProto", "FedProx", "FedRep", "FedYogi", "FRL", "MOON"),
        *("PFedMe", "PerFedAvg", "QFFL", "SCAFFOLD", "Solo", "RoundStrategy"),
    ),
}
"""By module, the public names of the package."""


def __getattr__(name: str) -> _typing.Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(_importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__version__", *(name for names in _NAMES.values() for name in names)])
