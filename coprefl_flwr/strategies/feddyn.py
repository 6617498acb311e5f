"""FedDyn: a dynamic regulariser makes the clients' optima agree with the global optimum."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like, zeros_like
from coprefl_flwr.federation import Exchange, Mean, Round, RoundContext, RoundStrategy
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class FedDyn(RoundStrategy):
    """FedDyn (Acar et al. 2021, arxiv.org/abs/2111.04263), Algorithm 1.

    With m clients in total, the participants P_t and their models theta_k, the server computes

        h <- h - alpha/m sum_{k in P_t} (theta_k - theta^{t-1}),
        theta^t = 1/|P_t| sum_{k in P_t} theta_k - h / alpha.

    h is zero at first. The clients' loss is in `FedDynClient`.
    """

    alpha: float = option(
        0.01,
        "weight alpha of the regulariser; FedDyn does not become FedAvg as alpha goes to 0",
        above=0,
        key="feddyn-alpha",
    )

    name = "feddyn"
    # The term h / alpha repeats a part of the steps of all earlier rounds.
    sums_steps = False
    averages = True
    client = "coprefl_flwr.clients:FedDynClient"
    roles = ("pretraining", "task")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the model theta^t; buffers are the participants' mean, weighted by samples."""
        config = {"feddyn-alpha": self.alpha}
        replies = yield Exchange(
            "train", arrays, ctx.sample(), Mean(""), config=config, stateful=True
        )
        mean = replies.arrays
        # h <- h - alpha/m sum_{k in P_t} (theta_k - theta^{t-1})
        drift = ctx.state.get("drift", zeros_like(ctx.weights(arrays)))
        part = self.alpha * len(replies.clients) / ctx.num_clients
        drift = {
            name: h - part * np.subtract(mean[name], arrays[name], dtype=h.dtype)
            for name, h in drift.items()
        }
        # theta^t = 1/|P_t| sum_{k in P_t} theta_k - h / alpha
        ctx.state["drift"] = drift
        moved = {name: mean[name] - h / self.alpha for name, h in drift.items()}
        return cast_like(mean | moved, arrays), replies.mean_metrics()
