"""Per-FedAvg: FedAvg on the loss after one step of adaptation."""

from dataclasses import dataclass, replace
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.federation.messages import MessageConfig
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class PerFedAvg(RoundStrategy):
    """Per-FedAvg (Fallah, Mokhtari and Ozdaglar 2020, arxiv.org/abs/2002.07948), Algorithm 1.

    Clients minimise f(w - alpha grad f(w)), the loss after one step of adaptation (see
    `PerFedAvgClient`). In an evaluation, clients test the adapted model.
    """

    variant: str = option(
        "fo",
        "how clients compute the update of line 7 of the algorithm: `fo` leaves out the Hessian "
        "term, `hf` replaces the Hessian-vector product by a finite difference",
        choices=("fo", "hf"),
    )
    inner_learning_rate: float = option(0.05, "step size alpha of the adaptation", minimum=0)

    name = "per-fedavg"
    averages = means_models = True
    client = "coprefl_flwr.clients:PerFedAvgClient"
    roles = ("pretraining", "personalised")
    personal_defaults: ClassVar = {"inner-learning-rate": 0.01}

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the unweighted mean of the participants' models (line 11)."""
        config: MessageConfig = {
            "meta-variant": self.variant,
            "inner-learning-rate": self.inner_learning_rate,
        }
        replies = yield Exchange("train", arrays, ctx.sample(), Mean(""), config=config)
        return replies.arrays, replies.mean_metrics()

    def evaluation_exchange(self, ctx: RoundContext, arrays: Arrays) -> Exchange:
        """Return the exchange that evaluates the model after each client's own adaptation."""
        exchange = super().evaluation_exchange(ctx, arrays)
        return replace(exchange, config={"inner-learning-rate": self.inner_learning_rate})

    def budget(self, work: Work) -> Budget:
        """Return a budget with FedAvg's step sizes, and gradients on two batches per step.

        "hf" adds a Hessian-vector product: two gradients on a third batch.
        """
        each = 3 if self.variant == "hf" else 2

        def gradients(n: int) -> int:
            sizes: list[int] = work.training.batch_sizes(n, each * work.training.steps(n))
            return sum(sizes) + sum(sizes[2::3]) * (each == 3)

        return Budget(work.step_sum, work.participants * work.mean(gradients))
