"""Per-FedAvg's client: SGD on the loss after one adaptation step."""

import torch
from torch import Tensor

from coprefl_flwr import seeds
from coprefl_flwr.clients.torch_client import Config, Parameters, TorchClient
from coprefl_flwr.learning.training import Batch, torch_seeded
from coprefl_flwr.models.frozen import train_mode
from coprefl_flwr.models.outputs import outputs_of
from coprefl_flwr.models.precision import computing

DELTA = 1e-3
"""Step of the finite difference that approximates the Hessian-vector product, variant "hf"."""


class PerFedAvgClient(TorchClient):
    """A client that minimises the loss after one adaptation step (Per-FedAvg).

    Line 7 of the algorithm is the step
    w <- w - beta (I - alpha H(w; D'')) grad f(w - alpha grad f(w; D); D').
    D, D' and D'' are different batches. The variant "fo" omits the Hessian H and uses two batches
    per step. The variant "hf" uses three batches per step, and approximates the Hessian-vector
    product H v by [grad f(w + delta v; D'') - grad f(w - delta v; D'')] / (2 delta). An epoch has
    as many steps as in FedAvg, so it passes over the data two or three times. beta is the client's
    learning rate, and alpha is the request's "inner-learning-rate".
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the trained weights, n and {"loss"}; the loss is the mean after adaptation."""
        self.load(parameters)
        samples = self.training_samples(config)
        alpha = float(config["inner-learning-rate"])
        key = self.key(config, "batches")
        train_mode(self.model)
        server_round, losses = int(config["server-round"]), []
        optimiser = self.training.new_optimiser(self.model, server_round)
        each = 3 if config["meta-variant"] == "hf" else 2
        how = optimiser, samples, server_round, seeds.generator(*key), self.device, each
        with torch_seeded(*key, network=self.model):
            for number, batches in enumerate(self.training.batches_of_steps(*how)):
                first, second, *third = batches
                with self.computing():
                    _, inner = self.gradient(first)
                    adapted, step = self.gradient(second, moved=(inner, -alpha))
                for batch in third:
                    curved = self.hessian_product(batch, step, (*key, "hessian", number))
                    step = [g - alpha * h for g, h in zip(step, curved, strict=True)]
                for p, g in zip(self.parameters().values(), step, strict=True):
                    p.grad = g
                self.training.clip(self.model)
                optimiser.step()
                losses.append(adapted)
        loss = float(torch.stack(losses).mean()) if losses else 0.0
        return self.weights(), len(samples), {"loss": loss}

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return (loss, n, {"correct"}) of the adapted model on the test samples.

        The adapted model is w - alpha grad f(w). This is the model that Per-FedAvg personalises
        for a client. The gradient is over all training samples of the client, in eval mode. If the
        request has no "inner-learning-rate", w is evaluated without adaptation.
        """
        self.load(parameters)
        alpha = float(config.get("inner-learning-rate", 0.0))
        if alpha:
            gradient = self.loss_and_gradient(self.train, config).gradient
            with torch.no_grad():
                for name, p in self.parameters().items():
                    p.sub_(torch.as_tensor(gradient[name], device=p.device), alpha=alpha)
        return self.evaluate_model(self.model, config)

    def hessian_product(
        self, batch: Batch, direction: list[Tensor], key: tuple[str | int, ...]
    ) -> list[Tensor]:
        """Return the Hessian-vector product H v by a finite difference along v = `direction`.

        `key` is the seed key of dropout. The weights must be float32 or float64: the two gradients
        of 16-bit weights would differ only by rounding.
        """
        sides = []
        for delta in (DELTA, -DELTA):
            # Both gradients need the same dropout.
            with torch_seeded(*key, network=self.model), computing(self.model):
                sides.append(self.gradient(batch, moved=(direction, delta))[1])
        return [(up - down) / (2 * DELTA) for up, down in zip(*sides, strict=True)]

    def gradient(
        self, batch: Batch, moved: tuple[list[Tensor], float] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of a batch and the gradient of the loss.

        They are computed at w if `moved` is None. If `moved` is (direction, scale), they are
        computed at w + scale x direction.
        """
        weights: dict[str, Tensor] = {**self.parameters()}
        if moved:
            direction, scale = moved
            weights = {
                name: torch.add(p.detach(), d, alpha=scale).requires_grad_()
                for (name, p), d in zip(weights.items(), direction, strict=True)
            }
        inputs, targets = batch
        loss = self.training.loss(outputs_of(self.model, inputs, weights), targets)
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        both = zip(weights.values(), gradients, strict=True)
        return loss.detach(), [torch.zeros_like(p) if g is None else g for p, g in both]
