"""FedAvg: the sample-weighted mean of the participants' models."""

from dataclasses import dataclass
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.rounds.combine import Mean
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class FedAvg(RoundStrategy):
    """Federated averaging (McMahan et al. 2017, arxiv.org/abs/1602.05629), Algorithm 1.

    On this base rather than Flower's own, so that it is compared with the other methods on the
    same sampling, the same seeds and the same hosting.
    """

    name: ClassVar[str] = "fedavg"
    roles: ClassVar[tuple[str, ...]] = ("pretraining", "task", "personalised")
    travels: ClassVar[str] = "the whole model"
    tested_with: ClassVar[str] = "the global model"
    wrappable: ClassVar[bool] = True

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Return w^{t+1} = sum_k n_k w_k / sum_k n_k."""
        clients = self.sample(server_round)
        replies = yield Exchange("train", arrays, clients, combine=Mean("num-examples"))
        return replies.arrays, replies.mean_metrics()
