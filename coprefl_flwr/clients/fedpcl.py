"""FedPCL's client: a personal projection head, trained with the prototypes of all clients."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.data import Samples
from coprefl_flwr.learning.evaluation import class_means
from coprefl_flwr.learning.noise import Noise
from coprefl_flwr.learning.prototypes import padded, unit_rows
from coprefl_flwr.learning.training import Objective
from coprefl_flwr.models import load_arrays, model_arrays

ABSENT_SCORE = -1e9
"""Score of a class of which no client has samples; it is finite, so that losses stay finite."""


class FedPCLClient(StatefulClient):
    """A client that trains its projection head with the loss L_g + L_p (Algorithm 1 of FedPCL).

    The head is the client's state. `model` is the head: its inputs are features, and its output is
    z. z is scaled to l2 norm 1, or else exp(z . c / 0.07) would overflow for a prototype c. `fit`
    receives the global set of prototypes, and the sets of all clients in the record "local". It
    returns the client's set of prototypes. The request's "temperature" is tau, and its
    "fedpcl-variant" selects the loss. `noise` is added to the prototypes before they are sent.
    """

    network = "projection"
    injected = frozenset({"state", "initial", "noise"})

    def __init__(
        self, model: nn.Module, train: Samples, *, noise: Noise | None = None, **more: Any
    ) -> None:
        super().__init__(model, train, **more)
        self.noise = noise

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return ([prototypes, counts], n, {"loss"}) after training the head.

        The prototypes (C, d) and the counts (C,) are the client's set. The head is trained only if
        the request has the clients' prototypes and enough samples have a class with a prototype.
        """
        shared = prototype_set(parameters)
        load_arrays(self.model, self.own_weights(config))
        local = config.get("extra", {}).get("local", {})
        # A class that no client had in the last round has no prototype yet.
        known = np.flatnonzero(shared["counts"][self.train.labels] > 0)
        loss = 0.0
        # With too few samples for a step, the head is not trained, but prototypes are still sent.
        if local and len(known) >= fewest_to_train(self.model):
            objective = self.objective(shared, local, config)
            loss = self.train_locally(self.train.take(known), config, objective=objective)
        self.state.write(config, model_arrays(self.model))
        own = self.prototypes(shared)
        if self.noise:
            has_samples = own["counts"] > 0
            rng = seeds.generator(*self.key(config, "prototype-noise"))
            own["prototypes"][has_samples] = self.noise.on(own["prototypes"][has_samples], rng)
        return [own["prototypes"], own["counts"]], len(self.train), {"loss": loss}

    def represent(self, inputs: Tensor) -> Tensor:
        """Return the representations z, (b, d), of a batch of features; each row has l2 norm 1."""
        return normalize(self.model(inputs))

    def prototypes(self, like: Arrays) -> Arrays:
        """Return the client's set of prototypes (FedPCL, eq. 5); `like` has its shapes and dtypes.

        A prototype has l2 norm 1; that of a class without samples is zero.
        """
        self.model.eval()
        with self.computing():
            own = class_means(self.represent, self.train, like, self.device)
        own["prototypes"] = unit_rows(own["prototypes"])
        return own

    def objective(self, shared: Arrays, local: dict[str, Any], config: Config) -> Objective:
        """Return the loss function of a batch.

        `shared` is the global set of prototypes, and `local` has the prototypes of every client.
        """
        temperature, variant = float(config["temperature"]), str(config["fedpcl-variant"])
        groups = {"global": shared["prototypes"][None], "local": np.stack(list(local.values()))}
        chosen = [sets for name, sets in groups.items() if variant in (name, "both")]
        if not chosen:
            return lambda x, targets: supervised_contrast(self.represent(x), targets, temperature)
        sizes = list(map(len, chosen))
        # One tensor: for a small head, L_g and L_p take longer apart than together.
        together = torch.tensor(np.concatenate(chosen), device=self.device)
        exists = torch.as_tensor(shared["counts"] > 0, device=self.device)

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            z = self.represent(inputs)
            losses = prototype_contrast(z, targets, together, exists, temperature)
            return torch.stack([group.mean() for group in torch.split(losses, sizes)]).sum()

        return loss

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return (loss, n, {"correct"}) on the test samples, with the client's padded prototypes.

        The predicted class has the prototype with the largest dot product with z. The loss is the
        cross-entropy with these dot products as logits.
        """
        shared = prototype_set(parameters)
        load_arrays(self.model, self.own_weights(config))
        own = self.prototypes(shared)
        rows = torch.as_tensor(padded(own, shared), device=self.device)
        exists = torch.as_tensor(own["counts"] + shared["counts"] > 0, device=self.device)
        return self.evaluate_model(nn.Sequential(self.model, Similarity(rows, exists)), config)


class Similarity(nn.Module):
    """Class scores: the dot products of z, scaled to l2 norm 1, with the class prototypes.

    `rows` are the prototypes, (C, d). `exists`, bool (C,), is True for classes with a prototype.
    """

    def __init__(self, rows: Tensor, exists: Tensor) -> None:
        super().__init__()
        self.rows, self.exists = rows, exists

    def forward(self, z: Tensor) -> Tensor:
        """Return the class scores, (b, C)."""
        return (normalize(z) @ self.rows.to(z.dtype).T).masked_fill(~self.exists, ABSENT_SCORE)


def fewest_to_train(model: nn.Module) -> int:
    """Return the number of samples that a step needs: 2 if the model has BatchNorm1d, or else 1."""
    return 2 if any(isinstance(module, nn.BatchNorm1d) for module in model.modules()) else 1


def prototype_set(parameters: Parameters) -> Arrays:
    """Return the set of prototypes in the two arrays that a client received."""
    return dict(zip(("prototypes", "counts"), parameters, strict=True))


def prototype_contrast(
    z: Tensor, targets: Tensor, sets: Tensor, exists: Tensor, temperature: float
) -> Tensor:
    """Return FedPCL's loss of each set p of prototypes, (m,), the mean over a batch.

    It is eq. 8 for the global set; eq. 9 is its mean over the clients' sets. The loss of a sample
    of class y is -log[exp(z . C_p^(y) / tau) / sum_{a != y} exp(z . C_p^(a) / tau)].
    As in the paper, the denominator has only the other classes, so the loss may be negative.

    z is (b, d). `targets`, int64 (b,), are classes that exist. `sets` are the prototypes,
    (m, C, d). `exists`, bool (C,), is True for the classes of which a client has samples. The other
    classes are not used as negatives.
    """
    # A matrix product over sets and classes, as an einsum is slower on small heads.
    scores = linear(z, sets.to(z.dtype).flatten(0, 1)) / temperature
    scores = scores.reshape(len(z), *sets.shape[:2])
    own = targets[:, None] == torch.arange(len(exists), device=z.device)
    negatives = scores.masked_fill((own | ~exists)[:, None], -torch.inf)
    positives = scores.gather(2, targets[:, None, None].expand(-1, len(sets), 1)).squeeze(2)
    return (negatives.logsumexp(dim=2) - positives).mean(dim=0)


def supervised_contrast(z: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss of a batch (Khosla et al. 2020, eq. 2).

    P(i) is the set of the other samples with the class of sample i. The loss of sample i is
    -1/|P(i)| sum_{p in P(i)} log[exp(z_i . z_p / tau) / sum_{a != i} exp(z_i . z_a / tau)].
    The result is the mean over all samples with a non-empty P(i), or 0 if there are none.
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    scores = (z @ z.T / temperature).masked_fill(itself, ABSENT_SCORE)
    logs = scores - scores.logsumexp(dim=1, keepdim=True)
    alike = (targets[:, None] == targets) & ~itself
    anchors = alike.any(dim=1)
    if not anchors.any():
        return z.sum() * 0
    terms = (logs * alike).sum(dim=1)[anchors] / alike.sum(dim=1)[anchors]
    return -terms.mean()
