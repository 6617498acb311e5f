"""Few-Round Learning: an initial model from which a few rounds of a group of clients suffice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from coprefl_flwr.arrays import Arrays, split_prefixed
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class FRL(RoundStrategy):
    """Few-Round Learning (Park et al. 2021, NeurIPS), as in the authors' `meta_PN.py`.

    A round is an episode. From the global model phi, a group of clients simulates R rounds of
    federated learning on its support sets, which end at theta_R. Each client then takes a
    first-order meta step from phi, against the gradient of its query loss at theta_R, and plain
    steps on further query batches (see `FRLClient`). The new phi is the mean of the clients'
    models. All means over clients are unweighted; those of buffers are weighted by samples.

    The losses are those of prototypes. A client sends a prototype and the count 1 for each class of
    its support set, and 0 for the other classes. The global prototype of a class is the quotient of
    the clients' means of both. Prototypes have the shape (classes, features) of the last linear
    layer, which is not trained, and whose weight must be the last matrix in `arrays`.
    """

    episode_rounds: int = option(3, "R, the simulated rounds of an episode", minimum=1)
    meta_learning_rate: float = option(0.01, "rate beta of the steps on the query set", above=0)
    prototype_weight: float = option(0.2, "weight of the loss with global prototypes", minimum=0)

    name = "frl"
    client = "coprefl_flwr.clients:FRLClient"
    actions = ("train", "train.query")
    training_defaults: ClassVar = {"learning-rate": 0.01, "weight-decay": 5e-4}

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run an episode; return the mean of the clients' models and query losses."""
        clients: Sequence[int] = ctx.sample()
        temporary = arrays
        last = [array for array in arrays.values() if array.ndim == 2][-1]
        shared = {"prototypes": np.zeros_like(last), "counts": np.zeros_like(last[:, 0])}
        config: dict[str, Any] = {"prototype-weight": self.prototype_weight}
        for number in range(1, self.episode_rounds + 1):
            support = yield Exchange(
                *("train", temporary, clients, Mean(""), {"prototypes": shared}, ("prototypes",)),
                config={**config, "episode-round": number},
                stateful=True,
            )
            clients = support.clients
            temporary, shared = split_prefixed(support.arrays, "prototypes")
        config["meta-learning-rate"] = self.meta_learning_rate
        extra = {"prototypes": shared, "start": ctx.weights(arrays)}
        query = yield Exchange("train.query", temporary, clients, Mean(""), extra, config=config)
        return query.arrays, query.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget: phi takes only the steps on the query sets, at the rate beta."""
        support, clients = work.on_fraction(work.options["support-fraction"]), work.participants
        sizes = [n - part for n, part in zip(work.sizes, support.sizes, strict=True)]
        query, rounds = replace(work, sizes=sizes), self.episode_rounds
        gradients = clients * (rounds * support.samples_seen + query.samples_seen)
        beta, represented = self.meta_learning_rate, rounds * clients * support.samples
        return Budget(0.0, gradients, beta * query.step_sum, forwards=represented)
