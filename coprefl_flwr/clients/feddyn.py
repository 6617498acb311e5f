"""FedDyn's client: local SGD with a dynamic regulariser."""

import torch

from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.models import as_array


class FedDynClient(StatefulClient):
    """A client of FedDyn that minimises L_k(w) - <lambda_k, w> + alpha/2 ||w - w^t||^2.

    The client's state is lambda_k. w^t is the global model, and alpha is the request's
    "feddyn-alpha". lambda_k is zero at first. After the training, lambda_k <- lambda_k - alpha (w_k
    - w^t) with the trained weights w_k, so lambda_k is the gradient of L_k at the last local
    optimum.
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the trained weights, n and {"loss"}; the loss is without the regulariser."""
        self.load(parameters)
        alpha = float(config["feddyn-alpha"])
        trained = self.parameters()
        # For 16-bit weights, w^t and lambda_k are float32, because lambda_k is summed over rounds.
        start = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in trained.items()
        }
        dual = {name: torch.zeros_like(p) for name, p in start.items()}
        for name, array in (self.state.read(config) or {}).items():
            dual[name] = torch.tensor(array, device=self.device)

        def regularise() -> None:
            for name, p in trained.items():
                term = alpha * (p.detach() - start[name]) - dual[name]
                p.grad = term.to(p.dtype) if p.grad is None else p.grad.add_(term)

        samples = self.training_samples(config)
        loss = self.train_locally(samples, config, correct=regularise)
        after = {
            name: as_array(dual[name] - alpha * (p.detach() - start[name]))
            for name, p in trained.items()
        }
        self.state.write(config, after)
        return self.weights(), len(samples), {"loss": loss}
