"""q-FFL: clients with a larger loss have a larger weight."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class QFFL(RoundStrategy):
    """q-FedAvg (Li et al. 2020, arxiv.org/abs/1905.10497), Algorithm 2.

    F_k is client k's loss at the global model w^t, before its training. w_k is its trained model,
    and L = 1 / eta for the learning rate eta. Then

        Delta_k = F_k^q L (w^t - w_k),  h_k = q F_k^{q-1} ||L (w^t - w_k)||^2 + L F_k^q,
        w^{t+1} = w^t - sum_k Delta_k / sum_k h_k.

    A client reports `q-weight` = L F_k^q and `q-curvature` = h_k (see `QFFLClient`), so that the
    server needs only sums of the models. Clients take FedAvg's steps, but the size of the server's
    step depends on the losses, so the summed step size is not known. F_k costs only forward passes.
    """

    q: float = option(
        1.0,
        "exponent of the losses: 0 is the unweighted mean of the models; a larger q gives more "
        "uniform losses",
        minimum=0,
    )

    name = "qffl"
    client = "coprefl_flwr.clients:QFFLClient"
    roles = ("pretraining", "task")

    @classmethod
    def check_training(cls, options: Mapping[str, Any], training: Any) -> None:
        """Refuse other steps than SGD's: with L = 1 / eta, w^t - w_k is a sum of gradients."""
        if options["q"]:
            training.check_sgd("qffl computes gradients from the steps")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the model w^{t+1} = w^t - sum_k Delta_k / sum_k h_k."""
        config, rule = {"q": self.q}, Mean("q-weight")
        replies = yield Exchange(
            "train", arrays, ctx.sample(), rule, config=config, positive=("q-curvature",)
        )
        weight = replies.metrics["q-weight"].sum()
        curvature = replies.metrics["q-curvature"].sum()
        # sum_k Delta_k = weight w^t - sum_k (q-weight_k) w_k, in float64: w^t - w_k is small.
        total = replies.sums["sum"]
        moved = {
            name: array - (weight * array.astype(np.float64) - total[name]) / curvature
            for name, array in ctx.weights(arrays).items()
        }
        return cast_like(replies.arrays | moved, arrays), replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return FedAvg's budget plus the forward passes for F_k on all local samples.

        The summed step size is nan, except for q = 0, which is FedAvg with equal weights.
        """
        budget = replace(super().budget(work), forwards=work.participants * work.samples)
        return replace(budget, step_sum=math.nan) if self.q else budget
