"""pFedMe: personal models of the clients, regularised towards the global model."""

from dataclasses import dataclass

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class PFedMe(RoundStrategy):
    """pFedMe (Dinh, Tran and Nguyen 2020, arxiv.org/abs/2006.08848), Algorithm 1.

    Clients train personal models theta and a copy of the global model w (see `PFedMeClient`). The
    server computes w <- (1 - beta) w + beta / |S| sum_i w_i from the copies w_i.
    """

    mu: float = option(
        15.0, "lambda, how strongly the personal model is drawn to the global model", above=0
    )
    inner_steps: int = option(
        5, "K, steps towards the personal model theta on every batch", minimum=1
    )
    meta_learning_rate: float = option(
        5e-3, "eta of the clients' w <- w - eta lambda (w - theta)", above=0
    )
    global_learning_rate: float = option(
        1.0, "beta of the server's w <- (1 - beta) w + beta mean", above=0
    )

    name = "pfedme"
    averages = True
    client = "coprefl_flwr.clients:PFedMeClient"
    roles = ("personalised",)

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the model (1 - beta) w + beta / |S| sum_i w_i; buffers are the clients' mean."""
        config = {
            "pfedme-lambda": self.mu,
            "inner-steps": self.inner_steps,
            "meta-learning-rate": self.meta_learning_rate,
        }
        replies = yield Exchange(
            "train", arrays, ctx.sample(), Mean(""), config=config, stateful=True
        )
        mean, beta = replies.arrays, self.global_learning_rate
        moved = {n: (1 - beta) * w + beta * mean[n] for n, w in ctx.weights(arrays).items()}
        return cast_like(mean | moved, arrays), replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget: per batch a step beta * eta of w, and K gradients for theta."""
        outer = self.global_learning_rate * self.meta_learning_rate * work.mean(work.training.steps)
        inner = work.participants * self.inner_steps * work.samples_seen
        return Budget(0.0, inner, at_server=outer)
