"""SCAFFOLD: control variates correct the client drift in local SGD."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coprefl_flwr.arrays import Arrays, append_prefixed, cast_like, split_prefixed, zeros_like
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class SCAFFOLD(RoundStrategy):
    """SCAFFOLD (Karimireddy et al. 2020, arxiv.org/abs/1910.06378), Algorithm 1.

    Client i takes the steps y <- y - eta (g(y) - c_i + c), and returns y_i (see `SCAFFOLDClient`).
    The server sends its control variate c as the extra arrays "control". Clients return the changes
    c_i^+ - c_i of their control variates under the same key. With N clients in total and the
    participants S,

        x <- x + eta_g / |S| sum_{i in S} (y_i - x),    c <- c + 1/N sum_{i in S} (c_i^+ - c_i).

    All control variates are zero at first.
    """

    variant: str = option(
        "II",
        "how clients update their control variate: `I`, the gradient at the global model over all "
        "local samples, or `II`, computed from their own steps (line 12)",
        choices=("I", "II"),
    )
    global_learning_rate: float = option(
        1.0, "step size eta_g of the global model towards the mean of the local ones", above=0
    )

    name = "scaffold"
    averages = True
    client = "coprefl_flwr.clients:SCAFFOLDClient"
    roles = ("pretraining", "task")

    @classmethod
    def check_training(cls, options: Mapping[str, Any], training: Any) -> None:
        """Refuse clipping and other steps than SGD's with variant II, which uses the steps."""
        if options["variant"] == "II":
            why = "scaffold:variant=II computes gradients from the steps"
            training.check_sgd(why, clipped=False)

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run lines 3 to 17 of Algorithm 1; return the new global model x."""
        control = ctx.state.get("control", zeros_like(ctx.weights(arrays)))
        replies = yield Exchange(
            *("train", arrays, ctx.sample(), Mean("")),
            extra={"control": control},
            returned=("control",),
            changes=append_prefixed({}, "control", control),
            config={"scaffold-variant": self.variant},
            stateful=True,
        )
        mean, change = split_prefixed(replies.arrays, "control")
        # Line 16: x <- x + eta_g / |S| sum_i (y_i - x); buffers are the mean for any eta_g.
        step = self.global_learning_rate
        moved = {name: arrays[name] + step * (mean[name] - arrays[name]) for name in control}
        # Line 17: c <- c + 1/N sum_i (c_i^+ - c_i).
        part = len(replies.clients) / ctx.num_clients
        ctx.state["control"] = {name: c + part * change[name] for name, c in control.items()}
        return cast_like(mean | moved, arrays), replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget: step sizes times eta_g; for variant I also a full-batch gradient."""
        full = work.participants * work.samples if self.variant == "I" else 0.0
        gradients = work.participants * work.samples_seen + full
        return Budget(self.global_learning_rate * work.step_sum, gradients)
