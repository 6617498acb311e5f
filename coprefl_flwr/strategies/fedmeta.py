"""FedMeta: meta-learning an initialisation that one step adapts well."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays, behind, taken_apart, weights_of
from coprefl_flwr.options import option
from coprefl_flwr.rounds import Budget, Exchange, Mean, MessageConfig, Round, RoundStrategy, Work


@dataclass(kw_only=True, eq=False)
class FedMeta(RoundStrategy):
    """FedMeta (Chen et al. 2018, arxiv.org/abs/1802.07876), Algorithm 1.

    Clients answer with the gradient of their query loss after `inner_steps` steps on their support
    set (see `FedMetaClient`); buffers in the reply are their new values. The rates of "meta-sgd"
    travel behind the weights, as arrays "rates/NAME". With `local_steps` above 1 clients take so
    many meta steps (CoPreFL's equal local iterations) and answer with models, whose plain mean is
    the new one; one is the gradient form, to rounding.
    """

    variant: str = option(
        "maml",
        "`maml` (second order), `fomaml` (first order) or `meta-sgd` (an inner rate for every "
        "number of the model, learnt with it)",
        choices=("maml", "fomaml", "meta-sgd"),
    )
    inner_learning_rate: float = option(
        0.05, "step size alpha of the adaptation; with `meta-sgd` where the rates begin", minimum=0
    )
    inner_steps: int = option(1, "steps of the adaptation, each on all support data", minimum=1)
    meta_learning_rate: float = option(0.05, "step size beta of the meta update", minimum=0)
    local_steps: int = option(
        1,
        "meta steps of a participation, each on all its data; as in fedmeta:local-steps=5",
        minimum=1,
    )

    name = "fedmeta"
    averages = needs_only_sums = True
    client = "coprefl_flwr.clients:FedMetaClient"
    local_training = False
    actions = ("train.query",)

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Return theta - beta/|m| sum_u grad_theta L_Q(theta_u), or the mean; rates likewise."""
        learnt, steps, beta = self.learnt(arrays), self.local_steps, self.meta_learning_rate
        asked = "train.query", learnt, self.sample(server_round), Mean("")
        config: MessageConfig = {
            "meta-variant": self.variant,
            "inner-learning-rate": self.inner_learning_rate,
            "inner-steps": self.inner_steps,
        }
        if steps > 1:
            config |= {"local-steps": steps, "meta-learning-rate": beta}
        slopes = list(weights_of(learnt)) if steps == 1 else []
        replies = yield Exchange(*asked, config=config, changes=slopes)
        moved = {n: learnt[n] - beta * replies.arrays[n] for n in slopes}
        model, rates = taken_apart(replies.arrays | moved, "rates")
        if rates:
            self.state["rates"] = rates
        return model, replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the meta steps; in the second order a support gradient costs two more."""
        support, steps = work.on_part(work.options["support-fraction"]).samples, self.local_steps
        adaptation = (1 if self.variant == "fomaml" else 3) * self.inner_steps * support
        gradients = steps * work.participants * (adaptation + work.samples - support)
        sent = (4 if self.variant == "meta-sgd" else 2) * work.participants  # Rates too.
        return Budget(0.0, gradients, at_server=steps * self.meta_learning_rate, sent=sent)

    def learnt(self, arrays: Arrays) -> Arrays:
        """Return the model and, with "meta-sgd", the inner rates behind it."""
        if self.variant != "meta-sgd":
            return arrays
        rate = self.inner_learning_rate
        first = {name: np.full_like(array, rate) for name, array in weights_of(arrays).items()}
        return behind(arrays, "rates", self.kept_arrays("rates", first))
