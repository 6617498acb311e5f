"""q-FFL's client: local SGD, and a weight from its loss before training."""

import torch

from coprefl_flwr.clients.torch_client import Config, Parameters, TorchClient
from coprefl_flwr.learning import EVALUATION_BATCH, evaluate

SMALLEST = 1e-10
"""Added to F_k, so that 0^(q-1) is never taken."""


class QFFLClient(TorchClient):
    """Trains as in FedAvg, and reports q-FedAvg's L F_k^q and h_k; the request sends q."""

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the weights, n and {"loss", "loss-before", "q-weight", "q-curvature"}.

        F_k ("loss-before") is the loss at w^t over all local samples; L = 1 / eta.
        """
        self.load(parameters)
        q = float(config["q"])
        samples = self.training_samples(config)
        batches = samples.batches(EVALUATION_BATCH, self.device)
        before = evaluate(self.model, batches, precision=self.training.precision)["loss"]
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
