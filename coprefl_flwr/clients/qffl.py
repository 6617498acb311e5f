"""q-FFL's client: local SGD, and a weight that depends on the loss before the training."""

import torch

from coprefl_flwr.clients.torch_client import Config, Parameters, TorchClient
from coprefl_flwr.learning.evaluation import EVALUATION_BATCH, evaluate
from coprefl_flwr.learning.training import torch_seeded

SMALLEST = 1e-10
"""Constant added to the loss F_k, so that 0^(q-1) is never computed."""


class QFFLClient(TorchClient):
    """A client that trains as in FedAvg and returns the weights L F_k^q and h_k of q-FedAvg.

    F_k is the client's loss before the training. q is the request's "q". The steps must be those of
    SGD, because h_k is computed from them.
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the trained weights, n and {"loss", "loss-before", "q-weight", "q-curvature"}.

        "loss-before" is F_k, the mean loss of the global model w^t over all samples of the
        training. "q-weight" is L F_k^q with L = 1 / eta, where eta is the learning rate.
        "q-curvature" is h_k = q F_k^(q-1) L^2 ||w^t - w_k||^2 + L F_k^q, where w_k are the trained
        weights.
        """
        self.load(parameters)
        q = float(config["q"])
        if q:
            self.training.check_sgd("qffl computes gradients from the steps")
        samples = self.training_samples(config)
        batches = samples.batches(EVALUATION_BATCH, self.device)
        with torch_seeded(*self.key(config, "loss-before"), network=self.model):
            precision, loss_of = self.training.precision, self.training.loss
            before = evaluate(self.model, batches, precision=precision, loss=loss_of)["loss"]
        start = {name: p.detach().clone() for name, p in self.parameters().items()}
        loss = self.train_locally(samples, config)
        lipschitz = 1 / self.training.rate(int(config["server-round"]))
        moved = [(start[name] - p.detach()).double() for name, p in self.parameters().items()]
        norm = lipschitz**2 * float(sum(torch.sum(part**2) for part in moved))
        f = before + SMALLEST
        metrics = {
            "loss": loss,
            "loss-before": before,
            "q-weight": lipschitz * f**q,
            "q-curvature": q * f ** (q - 1) * norm + lipschitz * f**q,
        }
        return self.weights(), len(samples), metrics
