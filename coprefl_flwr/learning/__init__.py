"""Learning on the data of one client or the server: training, losses, gradients, meta objective.

Modules that need torch are loaded at first use, since strategies need only the numpy parts.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coprefl_flwr.learning.device import default_device, placed
    from coprefl_flwr.learning.measures import (
        EVALUATION_BATCH,
        LossAndGradient,
        LossFn,
        class_means,
        differentiable,
        evaluate,
        loss_and_gradient,
    )
    from coprefl_flwr.learning.server_data import ServerData
    from coprefl_flwr.learning.training import (
        AdamTraining,
        LocalTraining,
        Objective,
        endless_batches,
        local_sgd,
        shuffled_batches,
        torch_seeded,
    )

__all__ = [
    "EVALUATION_BATCH",
    "AdamTraining",
    "LocalTraining",
    "LossAndGradient",
    "LossFn",
    "Objective",
    "ServerData",
    "class_means",
    "default_device",
    "differentiable",
    "endless_batches",
    "evaluate",
    "local_sgd",
    "loss_and_gradient",
    "placed",
    "shuffled_batches",
    "torch_seeded",
]


def __getattr__(name: str) -> Any:
    """Load what is named from the module that has it."""
    if name in __all__:
        for module in ("training", "measures", "device", "server_data"):
            found = importlib.import_module(f"{__name__}.{module}")
            if name in vars(found):
                return vars(found)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
