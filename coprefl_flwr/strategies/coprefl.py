"""CoPreFL, scenario I: collaborative pre-training by meta-updating a temporary global model."""

from dataclasses import dataclass

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Exchange, LossMoments, Mean, Round, RoundContext, RoundStrategy
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.learning.meta import Losses, Terms, descend, meta_gradient, sum_and_variance
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class CoPreFL(RoundStrategy):
    """CoPreFL with all data at the clients ("Rethinking the Starting Point", Algorithm 1)."""

    gamma: float = option(
        0.5, "balance: 1 the sum of the query losses, 0 their variance", minimum=0, maximum=1
    )
    meta_learning_rate: float = option(0.05, "step size zeta of the meta update", minimum=0)

    name = "coprefl"
    averages = True
    client = "coprefl_flwr.clients:CoPreFLClient"
    actions = ("train", "train.query")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run lines 3 to 17 of Algorithm 1; the comments name its lines (ICLR text)."""
        # Line 3: a random set m of participants.
        participants = ctx.sample()
        # Lines 4 to 11: local SGD on the support sets, averaged into the temporary global model.
        support = yield Exchange("train", arrays, participants, Mean("num-examples"))
        temporary, clients, metrics = support.arrays, support.clients, support.mean_metrics()
        del support  # Its sums, which take twice a model, are needed no more.
        # Lines 12 to 14: every participant's query loss and gradient at the temporary model.
        query = yield Exchange("train.query", temporary, clients, LossMoments())
        losses, rule = query.metrics["loss"], (self.terms, self.robust)
        # Lines 15 to 17: the meta update, by the gradient of the customised query meta-loss.
        gradient, of_queries = meta_gradient(query.sums, losses, self.gamma, *rule)
        return descend(temporary, gradient, self.meta_learning_rate), metrics | of_queries

    def terms(self, losses: Losses) -> Terms:
        """Return the two terms of the meta objective, which gamma balances."""
        return sum_and_variance(losses)

    def budget(self, work: Work) -> Budget:
        """Return the steps on the support sets and the meta step; queries count as gradients."""
        support = work.on_fraction(work.options["support-fraction"])
        local = Budget(support.travel, work.participants * support.samples_seen)
        queries = work.participants * (work.samples - support.samples)
        meta = self.meta_learning_rate * self.weight_of_gradients(work.participants)
        return local.and_server(meta, queries)

    def weight_of_gradients(self, participants: int) -> float:
        """Return the sum of the c_j: that of the variance's is 0."""
        return self.gamma * participants
