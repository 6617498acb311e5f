"""FedMeta: meta-learning of an initial model that clients adapt in a few steps."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coprefl_flwr.arrays import Arrays, append_prefixed, split_prefixed
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class FedMeta(RoundStrategy):
    """FedMeta (Chen et al. 2018, arxiv.org/abs/1802.07876), Algorithm 1.

    A client takes `inner_steps` steps on its support set, and returns the gradient of its query
    loss at the adapted model (see `FedMetaClient`). For buffers, it returns their new values. With
    "meta-sgd" the server also sends the learnt rates as the extra arrays "rates", and clients
    return the gradients of the rates. With `local_steps` above 1 a client takes this number of meta
    steps (CoPreFL's equal local iterations) and returns its model. The new global model is then the
    unweighted mean of these models. For 1 step, both forms give the same model except for rounding.
    """

    variant: str = option(
        "maml",
        "`maml` (second order), `fomaml` (first order) or `meta-sgd` (with learnt inner rates)",
        choices=("maml", "fomaml", "meta-sgd"),
    )
    inner_learning_rate: float = option(
        0.05, "step size alpha of the adaptation (its initial value for `meta-sgd`)", minimum=0
    )
    inner_steps: int = option(1, "steps of the adaptation, each on all support data", minimum=1)
    meta_learning_rate: float = option(0.05, "step size beta of the meta update", minimum=0)
    local_steps: int = option(
        1, "meta steps of a client in a round, each on all of the client's data", minimum=1
    )

    name = "fedmeta"
    averages = True
    client = "coprefl_flwr.clients:FedMetaClient"
    actions = ("train.query",)

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the model theta - beta/|m| sum_u grad_theta L_Q(theta_u), or the mean of models.

        The rates of "meta-sgd" are updated in the same way.
        """
        steps, beta = self.local_steps, self.meta_learning_rate
        config: dict[str, Any] = {
            "meta-variant": self.variant,
            "inner-learning-rate": self.inner_learning_rate,
            "inner-steps": self.inner_steps,
        }
        if steps > 1:
            config |= {"local-steps": steps, "meta-learning-rate": beta}
        extra = self.rates(ctx, arrays)
        learnt = append_prefixed(arrays, "rates", extra.get("rates", {}))
        slopes = list(ctx.weights(learnt)) if steps == 1 else []
        replies = yield Exchange(
            *("train.query", arrays, ctx.sample(), Mean("")),
            extra=extra,
            returned=tuple(extra),
            config=config,
            changes=slopes,
        )
        moved = {n: learnt[n] - beta * replies.arrays[n] for n in slopes}
        model, rates = split_prefixed(replies.arrays | moved, "rates")
        if rates:
            ctx.state["rates"] = rates
        return model, replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget: a second-order gradient on the support set counts as three."""
        support = work.on_fraction(work.options["support-fraction"]).samples
        steps = self.local_steps
        adaptation = (1 if self.variant == "fomaml" else 3) * self.inner_steps * support
        gradients = steps * work.participants * (adaptation + work.samples - support)
        return Budget(0.0, gradients, at_server=steps * self.meta_learning_rate)

    def rates(self, ctx: RoundContext, arrays: Arrays) -> dict[str, Arrays]:
        """Return {"rates": learnt inner rates of "meta-sgd"}, or {} for the other variants."""
        if self.variant != "meta-sgd":
            return {}
        rate = self.inner_learning_rate
        first = {name: np.full_like(array, rate) for name, array in ctx.weights(arrays).items()}
        return {"rates": ctx.state.get("rates", first)}
