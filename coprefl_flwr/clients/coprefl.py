"""CoPreFL's client: trains on a support set, answers queries on the rest."""

from typing import Any

from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.clients.torch_client import Config, Parameters, TorchClient
from coprefl_flwr.data import Samples, split_in_two
from coprefl_flwr.learning import EVALUATION_BATCH, LocalTraining, loss_and_gradient


class CoPreFLClient(TorchClient):
    """A client of CoPreFL in scenario I (Algorithm 1, lines 4 to 8 and 12 to 14).

    Parameters
    ----------
    support_fraction : float
        Part of the local samples that is the support set S_j (floor(0.8 n) of n in the paper);
        the rest is the query set Q_j.
    resplit : bool
        Draw the two sets anew every round, as Algorithm 1's line 4 stands in the loop; False
        draws them once per client.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Samples,
        training: LocalTraining | None = None,
        support_fraction: float = 0.8,
        resplit: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(model, train, training=training, **more)
        self.support_fraction = support_fraction
        self.resplit = resplit

    def split(self, config: Config) -> tuple[Samples, Samples]:
        """Return (support, query), a function of (seed, population, round, client)."""
        split_round = {} if self.resplit else {"server-round": 0}
        rng = seeds.generator(*self.key({**config, **split_round}, "support"))
        support, query = split_in_two(len(self.train), self.support_fraction, rng)
        return self.train.take(support), self.train.take(query)

    def training_samples(self, config: Config) -> Samples:
        """Return the support set."""
        return self.split(config)[0]

    def query(
        self, parameters: Parameters, config: Config
    ) -> tuple[dict[str, Any], int, dict[str, float]]:
        """Return the gradient of the mean query loss at `parameters`, |Q_j| and {"loss"}."""
        self.load(parameters)
        query = self.split(config)[1]
        batches = query.batches(EVALUATION_BATCH, self.device)
        result = loss_and_gradient(self.model, batches)
        return result.gradient, result.num_examples, {"loss": result.loss}
