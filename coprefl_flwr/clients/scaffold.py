"""SCAFFOLD's client: local SGD corrected by control variates."""

from typing import Any

import torch

from coprefl_flwr.arrays import append_prefixed, zeros_like
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.models import model_arrays


class SCAFFOLDClient(StatefulClient):
    """A client that takes the steps y <- y - eta (g(y) - c_i + c).

    These are lines 7 to 13 of SCAFFOLD's Algorithm 1. The client's control variate c_i is its
    state. `config["extra"]["control"]` is the server's control variate c, with one array for every
    weight. `fit` returns the trained model and the change c_i^+ - c_i of the client's control
    variate, as arrays ".control/NAME". Variant II computes gradients from the steps, which must be
    those of SGD.
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Any, int, Config]:
        """Return (trained weights and change of the control variate, n, {"loss"})."""
        self.load(parameters)
        start, control = model_arrays(self.model), config["extra"]["control"]
        names = list(control)
        own = self.state.read(config) or zeros_like(control)
        samples = self.training_samples(config)
        variant = config["scaffold-variant"]
        if variant == "II":
            why = "scaffold:variant=II computes gradients from the steps"
            self.training.check_sgd(why, clipped=False)
        # Option I: the new c_i is the gradient at the global model over all local samples.
        renewed = self.loss_and_gradient(samples, config).gradient if variant == "I" else None
        added = [
            (p, torch.as_tensor(control[name] - own[name], dtype=p.dtype, device=self.device))
            for name, p in self.parameters().items()
        ]

        def correct() -> None:
            for p, term in added:
                p.grad = term.clone() if p.grad is None else p.grad.add_(term)

        loss = self.train_locally(samples, config, correct=correct)
        if renewed is None:
            trained, server_round = model_arrays(self.model), int(config["server-round"])
            # x - y is `scale` times the mean of the gradients: K eta without momentum.
            scale = self.training.rate(server_round) * self.training.step_sum(len(samples))
            renewed = {
                name: own[name] - control[name] + (start[name] - trained[name]) / scale
                for name, p in self.model.named_parameters(remove_duplicate=False)
                if scale and p.requires_grad
            }
        after = {name: renewed.get(name, own[name]).astype(own[name].dtype) for name in names}
        self.state.write(config, after)
        change = {name: after[name] - own[name] for name in names}
        answer = append_prefixed(model_arrays(self.model), "control", change)
        return answer, len(samples), {"loss": loss}
