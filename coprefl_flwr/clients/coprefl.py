"""CoPreFL's client, which trains on its support set and answers queries on its query set."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.clients.torch_client import (
    Config,
    Joint,
    Parameters,
    TorchClient,
    joint_metrics,
)
from coprefl_flwr.data import Samples, split_in_two
from coprefl_flwr.errors import SettingsError, about_settings
from coprefl_flwr.learning import together
from coprefl_flwr.learning.noise import clipped
from coprefl_flwr.models import first_names
from coprefl_flwr.options import option


class CoPreFLClient(TorchClient):
    """A client of CoPreFL in scenario I (Algorithm 1, lines 4 to 8 and 11 to 14).

    The client splits its n training samples into a support set S_j (80 % in the paper; here
    floor(0.8 n) samples by default) and a query set Q_j, which has the other samples. Both sets are
    drawn again in every round, because line 4 of Algorithm 1 is in the loop over rounds. If
    `resplit` is False, they are drawn once per client.
    """

    options: ClassVar[Mapping[str, Any]] = {
        "support_fraction": option(
            0.8, "fraction of a client's samples that form the support set", above=0, maximum=0.99
        ),
        "resplit": option(True, "draw new support and query sets every round"),
        "query_clip": option(
            0.0,
            "the query gradient is clipped to this l2 norm, and the query loss to this value; 0: "
            "no clipping",
            minimum=0,
        ),
        "query_noise": option(
            0.0,
            "standard deviation of the noise on each element of the query gradient and on the "
            "query loss, as a multiple of `query-clip`; no privacy budget is computed",
            minimum=0,
        ),
    }

    joint = frozenset({"fit", "query", "evaluate"})

    support_fraction: float
    resplit: bool
    query_clip: float
    query_noise: float

    def __init__(self, model: nn.Module, train: Samples, **more: Any) -> None:
        super().__init__(model, train, **more)
        self._check_noise(vars(self))

    @classmethod
    def check_samples(cls, fewest: int, **options: Any) -> None:
        """Raise a SettingsError if `fewest` samples give an empty support or query set."""
        with about_settings("support-fraction"):
            split_in_two(fewest, options["support_fraction"], np.random.default_rng(0))
        cls._check_noise(options)

    @classmethod
    def _check_noise(cls, options: Mapping[str, Any]) -> None:
        """Raise a SettingsError if `query_noise` is set without `query_clip`."""
        noise = options.get("query_noise", 0.0)
        if noise and not options.get("query_clip"):
            raise SettingsError(f"query-noise = {noise:g}: set query-clip, too", "query-noise")

    def split(self, config: Config) -> tuple[Samples, Samples]:
        """Return the support and the query set, a function of (seed, population, round, client)."""
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
        """Return (gradient, |Q_j|, {"loss"}) of the mean query loss at `parameters`.

        If `query_clip` is set, the gradient and the loss are clipped, and noise is added to them.
        The noise is drawn from the seed of the run.
        """
        self.load(parameters)
        query = self.split(config)[1]
        result = self.loss_and_gradient(query, config)
        gradient, loss = result.gradient, result.loss
        if self.query_clip:
            rng = seeds.generator(*self.key(config, "query-noise"), int(config.get("attempt", 0)))
            first = first_names(self.model)
            both = self.query_clip, self.query_noise
            gradient, loss = clipped(gradient, loss, *both, rng, first)
        return gradient, result.num_examples, {"loss": loss}

    def clients_at_once(self, method: str) -> tuple[int, int]:
        """Return how many clients may compute `method` as one; 1 for a query that is clipped."""
        least, most = super().clients_at_once(method)
        return least, 1 if most > 1 and method == "query" and self.query_clip else most

    @classmethod
    def query_together(
        cls, clients: Sequence[Self], parameters: Parameters, configs: Sequence[Config]
    ) -> Joint:
        """Return the results of `query` of several clients, up to rounding."""
        first = clients[0]
        first.load(parameters)
        queries = [client.split(of)[1] for client, of in zip(clients, configs, strict=True)]
        gradients, losses = together.gradients_together(first.model, queries, first.device)
        arrays = {n: gradients[of] for n, of in first_names(first.model).items() if of in gradients}
        return {n: t.numpy() for n, t in arrays.items()}, joint_metrics(queries, losses)
