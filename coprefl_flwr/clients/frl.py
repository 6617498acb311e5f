"""Few-Round Learning's client: prototypical training, and a meta step from the episode's start."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from coprefl_flwr.arrays import Arrays, append_prefixed
from coprefl_flwr.clients.coprefl import CoPreFLClient
from coprefl_flwr.clients.fedpcl import ABSENT_SCORE
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.evaluation import class_means
from coprefl_flwr.learning.optimisers import CONSTANT
from coprefl_flwr.learning.training import torch_seeded
from coprefl_flwr.models import load_arrays, model_arrays, outputs_and_representation
from coprefl_flwr.options import option


class FRLClient(CoPreFLClient, StatefulClient):
    """A client of Few-Round Learning.

    z is the input of the `nn.Linear` that the network calls last; this layer gets no gradient. The
    network is always in train mode, so BatchNorm uses the statistics of the batch. With
    D(z, p) = -|z - p|^2 for the prototypes p of the classes, the losses are

        support: CE(D(z, p_batch)) + weight * CE(D(z, P)),
        query:   CE(D(z, p_i)) + weight * CE(D(z, P)).

    p_batch are the class means of the batch itself; gradients flow through them. P are the global
    prototypes, which do not exist in an episode's first round. p_i are the class means of the
    support set under the client's last support model, and the client's state. A sample whose class
    has no prototype adds 0 to a loss.
    """

    options: ClassVar[Mapping[str, Any]] = {
        "support_fraction": option(
            0.5, "fraction of a client's samples that form the support set", above=0, maximum=0.99
        ),
        **dict.fromkeys(("query_clip", "query_noise")),
    }
    injected = frozenset({"state"})

    @classmethod
    def check_network(cls, network: nn.Module, samples: Samples) -> None:
        """Raise a SettingsError without classes, or if the network does not fit."""
        if not samples.dataset.has_classes:
            raise SettingsError("method, frl: its prototypes need classes", "method")
        inputs, _ = samples.batch(slice(1), next(network.parameters()).device)
        outputs, z = outputs_and_representation(network.eval(), inputs)
        matrices = [array.shape for array in model_arrays(network).values() if array.ndim == 2]
        if not z.requires_grad or matrices[-1:] != [(outputs.shape[1], z.shape[1])]:
            needed = "trained layers, followed by the last linear layer as the last matrix"
            raise SettingsError(f"method, frl: the network needs {needed}", "method", "model")

    def fit(self, parameters: Parameters, config: Config) -> tuple[Any, int, Config]:
        """Return (the model and the client's prototypes, n, {"loss"}) after a simulated round.

        The prototypes are arrays ".prototypes/NAME". A class has the count 1, or 0 without samples.
        """
        self.load(parameters)
        support, purpose = self.training_samples(config), f"batches-{config['episode-round']}"
        loss = self.descend(support, config, purpose)
        with self.computing(), torch_seeded(*self.key(config, purpose), network=self.model):
            own = class_means(self.represent, support, config["extra"]["prototypes"], self.device)
        own["counts"] = np.sign(own["counts"])
        self.state.write(config, own)
        answer = append_prefixed(model_arrays(self.model), "prototypes", own)
        return answer, len(support), {"loss": loss}

    def query(self, parameters: Parameters, config: Config) -> tuple[Any, int, dict[str, float]]:
        """Return (phi_i, |Q|, {"loss"}) after the steps on the query set.

        The gradient of the first step is computed at theta_R, `parameters`. The step itself, with
        its weight decay, starts at phi, the extra arrays "start". Later steps are plain SGD.
        """
        self.load(parameters)
        written = f"{config['server-round']}-{config.get('attempt', 0)}"  # By `fit`.
        own = self.state.read({**config, "state-version": written})
        query, starts = self.split(config)[1], [config["extra"]["start"]]

        def move_to_start() -> None:
            while starts:
                load_arrays(self.model, model_arrays(self.model) | starts.pop())

        beta = float(config["meta-learning-rate"])
        how = replace(self.training, learning_rate=beta, schedule=CONSTANT)
        loss = self.descend(query, config, "query", own, correct=move_to_start, training=how)
        return self.weights(), len(query), {"loss": loss}

    def descend(
        self, samples: Samples, config: Config, purpose: str, own: Arrays | None = None, **how: Any
    ) -> float:
        """Train on the loss with the prototypes `own`, or of each batch, and the global ones."""
        shared, weight = config["extra"]["prototypes"], float(config["prototype-weight"])

        def objective(inputs: Tensor, targets: Tensor) -> Tensor:
            z = self.represent(inputs)
            of_own = prototype_loss(z, targets, own) if own else batch_loss(z, targets)
            return of_own + weight * prototype_loss(z, targets, shared)

        return self.train_locally(samples, config, objective, purpose=purpose, **how)

    def represent(self, inputs: Tensor) -> Tensor:
        """Return the representations z, (b, d), of a batch of inputs."""
        return outputs_and_representation(self.model, inputs)[1]


def batch_loss(z: Tensor, targets: Tensor) -> Tensor:
    """Return the `prototype_loss` with the class means of the batch itself."""
    members = one_hot(targets).to(z.dtype)
    return prototype_loss(z, targets, {"prototypes": members.T @ z, "counts": members.sum(0)})


def prototype_loss(z: Tensor, targets: Tensor, found: Mapping[str, Any]) -> Tensor:
    """Return the mean cross-entropy of the scores -|z - p_c|^2 of the classes c.

    z is (b, d) and `targets` int64 (b,). p_c is row c of "prototypes" (C, d), divided by "counts"
    (C,). A class with the count 0 has no score, and its samples add 0 to the mean over the batch.
    """
    rows, counts = (torch.as_tensor(found[n], device=z.device) for n in ("prototypes", "counts"))
    exists = counts > 0
    centres = rows / torch.where(exists, counts, 1)[:, None]
    distances = (z[:, None] - centres).square().sum(2).masked_fill(~exists, -ABSENT_SCORE)
    return (cross_entropy(-distances, targets, reduction="none") * exists[targets]).mean()
