"""FedDyn's client: local SGD with a dynamic regulariser."""

import torch

from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.models import as_array


class FedDynClient(StatefulClient):
    """Minimises L_k(w) - <lambda_k, w> + alpha/2 ||w - w^t||^2; its state is lambda_k.

    Afterwards lambda_k <- lambda_k - alpha (w_k - w^t). lambda_k begins at zero (it is the gradient
    of L_k at the last local optimum), alpha is the request's "feddyn-alpha".
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the weights, n and {"loss"}, the loss without the regulariser."""
        self.load(parameters)
        alpha = float(config["feddyn-alpha"])
        trained = self.parameters()
        # In float32 for weights of 16 bits: lambda_k, which is added up over rounds, is too.
        start = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in trained.items()
        }
        dual = {name: torch.zeros_like(p) for name, p in start.items()}
        for name, array in (self.state.read(config) or {}).items():
            dual[name] = torch.from_numpy(array).to(self.device)

        def regularise() -> None:
            for name, p in trained.items():
                term = alpha * (p.detach() - start[name]) - dual[name]
                p.grad = term.to(p.dtype) if p.grad is None else p.grad.add_(term)

        samples = self.training_samples(config)
        loss = self.train_locally(samples, config, correct=regularise)
        after = {
            name: as_array(dual[name] - alpha * (p.detach() - start[name]), name)
            for name, p in trained.items()
        }
        self.state.write(config, after)
        return self.weights(), len(samples), {"loss": loss}
