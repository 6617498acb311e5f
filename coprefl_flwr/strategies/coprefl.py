"""CoPreFL, scenario I: collaborative pre-training by meta-updating a temporary global model."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Exchange, LossMoments, Mean, Round, RoundContext, RoundStrategy
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.learning.meta import OBJECTIVES, MetaObjective, descend, meta_gradient
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class CoPreFL(RoundStrategy):
    """CoPreFL if only clients have data ("Rethinking the Starting Point", Algorithm 1).

    The participants train Phi on their support sets. The sample-weighted mean of their models is
    the temporary global model Phi'. Each participant j computes its query loss L_j at Phi'. The
    server takes one step along the first-order gradient of the meta objective,

        L_meta = gamma sum_j L_j + (1 - gamma) var_j L_j,    Phi <- Phi' - zeta grad L_meta

    (see `coprefl_flwr.learning.meta`).
    """

    gamma: float = option(
        0.5,
        "balance of the two terms: 1 is the sum of the query losses, 0 is their variance",
        minimum=0,
        maximum=1,
    )
    meta_learning_rate: float = option(0.05, "step size zeta of the meta update", minimum=0)
    meta_reduction: str = option(
        "sum",
        "first term: `sum` of the losses, as in the paper, which missing clients shorten, or "
        "`mean`",
        choices=tuple(OBJECTIVES),
        later=True,
    )

    name = "coprefl"
    averages = means_models = True
    client = "coprefl_flwr.clients:CoPreFLClient"
    actions = ("train", "train.query")

    @property
    def terms(self) -> MetaObjective:
        """The two terms of the meta objective, which gamma balances."""
        return OBJECTIVES[self.meta_reduction]

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run lines 3 to 17 of Algorithm 1; the comments name its lines (ICLR text)."""
        # Line 3: a random set m of participants.
        participants = ctx.sample()
        # Lines 4 to 10: local SGD on the support sets, averaged into the temporary global model.
        support = yield Exchange("train", arrays, participants, Mean("num-examples"))
        temporary, clients, metrics = support.arrays, support.clients, support.mean_metrics()
        del support  # Its float64 sums take twice the memory of a model.
        # Lines 11 to 14: each participant's query loss and its gradient at the temporary model.
        query = yield Exchange("train.query", temporary, clients, LossMoments())
        losses, rule = query.metrics["loss"], (self.terms, self.robust)
        # Lines 15 to 17: the meta update, by the gradient of the meta-loss (see `learning.meta`).
        gradient, of_queries = meta_gradient(query.sums, losses, self.gamma, *rule)
        return descend(temporary, gradient, self.meta_learning_rate), metrics | of_queries

    def budget(self, work: Work) -> Budget:
        """Return the budget of the local SGD on the support sets and of the meta step."""
        support = work.on_fraction(work.options["support-fraction"])
        local = Budget(support.step_sum, work.participants * support.samples_seen)
        queries = work.participants * (work.samples - support.samples)
        # The sum of the coefficients c_j of the gradients. Those of the second term add up to 0.
        weight = self.gamma * (work.participants / self.terms(np.zeros(work.participants)).count)
        return local.and_server(self.meta_learning_rate * weight, queries)
