"""Training, losses, gradients and the meta objective, on the data of one client or the server.

Modules that import torch are loaded at first use, because strategies use only numpy modules.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coprefl_flwr.learning.device import default_device as default_device
    from coprefl_flwr.learning.device import placed as placed
    from coprefl_flwr.learning.evaluation import EVALUATION_BATCH as EVALUATION_BATCH
    from coprefl_flwr.learning.evaluation import BatchLoss as BatchLoss
    from coprefl_flwr.learning.evaluation import LossAndGradient as LossAndGradient
    from coprefl_flwr.learning.evaluation import Metric as Metric
    from coprefl_flwr.learning.evaluation import class_means as class_means
    from coprefl_flwr.learning.evaluation import differentiable as differentiable
    from coprefl_flwr.learning.evaluation import evaluate as evaluate
    from coprefl_flwr.learning.evaluation import loss_and_gradient as loss_and_gradient
    from coprefl_flwr.learning.server_data import ServerData as ServerData
    from coprefl_flwr.learning.training import LocalTraining as LocalTraining
    from coprefl_flwr.learning.training import Objective as Objective
    from coprefl_flwr.learning.training import endless_batches as endless_batches
    from coprefl_flwr.learning.training import local_sgd as local_sgd
    from coprefl_flwr.learning.training import torch_seeded as torch_seeded


def __getattr__(name: str) -> Any:
    """Return the class, function or constant `name` from the submodule that defines it."""
    for module in ("training", "evaluation", "device", "server_data"):
        members = vars(importlib.import_module(f"{__name__}.{module}"))
        if name in members and not name.startswith("_"):
            return members[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
