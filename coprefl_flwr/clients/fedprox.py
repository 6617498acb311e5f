"""FedProx's client: local SGD with a proximal term to the global model."""

from coprefl_flwr.clients.torch_client import Config, Parameters, TorchClient


class FedProxClient(TorchClient):
    """A client that minimises L_k(w) + mu/2 ||w - w^t||^2.

    w^t is the global model, and mu is the request's "proximal-mu".
    """

    joint = TorchClient.joint

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the trained weights, n and {"loss"}; the loss is without the proximal term."""
        self.load(parameters)
        mu = self.proximal_mu(config)
        trained = list(self.parameters().values())
        start = [p.detach().clone() for p in trained]

        def towards_start() -> None:
            for p, anchor in zip(trained, start, strict=True):
                if p.grad is not None:
                    p.grad.add_(p.detach() - anchor, alpha=mu)

        samples = self.training_samples(config)
        loss = self.train_locally(samples, config, correct=towards_start)
        return self.weights(), len(samples), {"loss": loss}

    def proximal_mu(self, config: Config) -> float:
        """Return mu of the request."""
        return float(config["proximal-mu"])
