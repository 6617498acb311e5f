"""FedAvgM: FedAvg with momentum at the server."""

from dataclasses import dataclass, replace

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like, zeros_like
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class FedAvgM(RoundStrategy):
    """FedAvg with server momentum (Hsu, Qi and Brown 2019, arxiv.org/abs/1909.06335).

    The velocity v starts at zero. With momentum 0 and a global learning rate of 1 the method equals
    FedAvg. For a float16 model the velocity is float32.
    """

    global_learning_rate: float = option(1.0, "server's step size along the velocity", above=0)
    server_momentum: float = option(0.9, "momentum beta of the server", minimum=0, maximum=0.9999)

    name = "fedavgm"
    averages = True
    roles = ("pretraining", "task")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the model w + eta v, with v <- beta v + sum_k n_k (w_k - w) / sum_k n_k.

        Buffers are the weighted mean of the clients' buffers.
        """
        replies = yield Exchange("train", arrays, ctx.sample(), Mean("num-examples"))
        weights = ctx.weights(arrays)
        mean = replies.arrays
        velocity = {
            n: self.server_momentum * v + np.subtract(mean[n], weights[n], dtype=v.dtype)
            for n, v in ctx.state.get("velocity", zeros_like(weights)).items()
        }
        ctx.state["velocity"] = velocity
        moved = {n: w + self.global_learning_rate * velocity[n] for n, w in weights.items()}
        return cast_like(mean | moved, arrays), replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return FedAvg's budget with step sizes times the server's rate, and with the momentum."""
        own, rate = super().budget(work), self.global_learning_rate
        return replace(own, step_sum=rate * own.step_sum, momentum=self.server_momentum)
