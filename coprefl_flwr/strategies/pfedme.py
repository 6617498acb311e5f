"""pFedMe: clients' own models at the end of a spring that is tied to the global one."""

from dataclasses import dataclass, replace
from typing import ClassVar

from coprefl_flwr.arrays import Arrays, cast_like, weights_of
from coprefl_flwr.rounds.combine import Mean
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class PFedMe(RoundStrategy):
    """pFedMe (Dinh, Tran and Nguyen 2020, arxiv.org/abs/2006.08848), Algorithm 1.

    Parameters
    ----------
    mu : float
        lambda, the strength of the spring.
    inner_steps : int
        K steps towards the own model theta on every batch.
    meta_learning_rate : float
        eta of the clients' w <- w - eta lambda (w - theta).
    global_learning_rate : float
        beta of the server's w <- (1 - beta) w + beta mean.
    """

    mu: float = 15.0
    inner_steps: int = 5
    meta_learning_rate: float = 5e-3
    global_learning_rate: float = 1.0

    actions: ClassVar[tuple[str, ...]] = ("train",)

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        self.positive("mu", self.mu)
        self.at_least("inner_steps", self.inner_steps, 1)
        self.positive("meta_learning_rate", self.meta_learning_rate)
        self.positive("global_learning_rate", self.global_learning_rate)

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Return (1 - beta) w + beta / |S| sum_i w_i; buffers are the mean, whatever beta is."""
        clients = self.sample(server_round)
        replies = yield Exchange(
            "train",
            arrays,
            clients,
            combine=Mean(""),
            config={
                "pfedme-lambda": self.mu,
                "inner-steps": self.inner_steps,
                "meta-learning-rate": self.meta_learning_rate,
            },
            stateful=True,
        )
        mean, beta = replies.arrays, self.global_learning_rate
        moved = {n: (1 - beta) * w + beta * mean[n] for n, w in weights_of(arrays).items()}
        return cast_like(mean | moved, arrays), replies.mean_metrics()

    def evaluation_exchange(self, arrays: Arrays, clients: list[int]) -> Exchange:
        """Return the exchange that evaluates each client's own theta."""
        return replace(super().evaluation_exchange(arrays, clients), stateful=True)
