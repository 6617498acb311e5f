"""FedAdam: Adam on the server, with the clients' mean model change as its gradient."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like, zeros_like
from coprefl_flwr.federation import Exchange, Mean, Round, RoundContext, RoundStrategy
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class FedAdam(RoundStrategy):
    """FedAdam (Reddi et al. 2021, arxiv.org/abs/2003.00295), Algorithm 2.

    With Delta = sum_k n_k (x_k - x) / sum_k n_k, for the global model x and client k's model x_k
    trained on n_k samples,

        m <- beta1 m + (1 - beta1) Delta,    v <- beta2 v + (1 - beta2) Delta^2,
        x <- x + eta m / (sqrt(v) + tau).

    The moments start at m = 0 and v = tau^2. There is no bias correction as in Adam.
    """

    global_learning_rate: float = option(0.1, "server's step size eta", above=0)
    beta1: float = option(0.9, "decay of the first moment m", minimum=0, maximum=0.999999)
    beta2: float = option(0.99, "decay of the second moment v", minimum=0, maximum=0.999999)
    tau: float = option(1e-3, "degree of adaptivity: added to the square root of v", above=0)

    name = "fedadam"
    # The server's step changes each weight by about eta, independently of the clients' steps.
    sums_steps = False
    averages = True
    roles = ("pretraining", "task")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the model x + eta m / (sqrt(v) + tau); buffers are the clients' weighted mean."""
        replies = yield Exchange("train", arrays, ctx.sample(), Mean("num-examples"))
        x = {name: array.astype(np.float64) for name, array in ctx.weights(arrays).items()}
        delta = {name: replies.arrays[name] - array for name, array in x.items()}
        first_v = {name: np.full_like(array, self.tau**2) for name, array in x.items()}
        last_m, last_v = ctx.state.get("m", zeros_like(x)), ctx.state.get("v", first_v)
        # m <- beta1 m + (1 - beta1) Delta
        m = {name: self.beta1 * last_m[name] + (1 - self.beta1) * d for name, d in delta.items()}
        v = {name: self.second_moment(last_v[name], d**2) for name, d in delta.items()}
        ctx.state["m"], ctx.state["v"] = m, v
        rate, tau = self.global_learning_rate, self.tau
        moved = {n: array + rate * m[n] / (np.sqrt(v[n]) + tau) for n, array in x.items()}
        return cast_like(replies.arrays | moved, arrays), replies.mean_metrics()

    def second_moment(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Return the new second moment, v <- beta2 v + (1 - beta2) Delta^2."""
        return self.beta2 * v + (1 - self.beta2) * square
