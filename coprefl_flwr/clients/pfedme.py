"""pFedMe's client: a personal model that is regularised towards the global model."""

import torch

from coprefl_flwr import seeds
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.learning.training import backward, torch_seeded
from coprefl_flwr.models import load_arrays, model_arrays, train_mode


class PFedMeClient(StatefulClient):
    """A client that trains a personal model theta and the local copy w of the global model.

    On every batch, the client first takes K steps of theta to minimise
    f(theta) + lambda/2 ||theta - w||^2. Then it takes one step of w towards theta,
    w <- w - eta lambda (w - theta). theta and w both start from the global model in each round.
    theta is not reset between batches, and is the client's state. lambda, K and eta are the
    request's "pfedme-lambda", "inner-steps" and "meta-learning-rate". The client's `training` sets
    the batches and the optimiser of theta.
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return (w, n, {"loss"}); the loss is the mean batch loss of theta without the penalty."""
        self.load(parameters)
        penalty, rate = float(config["pfedme-lambda"]), float(config["meta-learning-rate"])
        own = list(self.parameters().values())
        w = [p.detach().clone() for p in own]
        key = self.key(config, "batches")
        server_round, losses = int(config["server-round"]), []
        optimiser = self.training.new_optimiser(self.model, server_round)
        how = optimiser, self.train, server_round, seeds.generator(*key), self.device
        train_mode(self.model)
        with torch_seeded(*key, network=self.model), self.computing():
            for batches in self.training.batches_of_steps(*how):
                for _ in range(int(config["inner-steps"])):
                    optimiser.zero_grad()
                    loss = backward(batches, lambda *b: self.training.loss.of_batch(self.model, b))
                    for p, centre in zip(own, w, strict=True):
                        spring = penalty * (p.detach() - centre)
                        p.grad = spring if p.grad is None else p.grad + spring
                    self.training.clip(self.model)
                    optimiser.step()
                    losses.append(loss)
                for p, centre in zip(own, w, strict=True):
                    centre.sub_(centre - p.detach(), alpha=rate * penalty)
        self.state.write(config, model_arrays(self.model))
        with torch.no_grad():
            for p, centre in zip(own, w, strict=True):
                p.copy_(centre)
        mean_loss = float(torch.stack(losses).mean()) if losses else 0.0
        return self.weights(), len(self.train), {"loss": mean_loss}

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return (mean loss, n, {"correct"}) of the personal model theta on the test samples.

        If the client has not taken part in a round yet, theta is the global model.
        """
        self.load(parameters)
        own = self.state.read(config)
        if own:
            load_arrays(self.model, own)
        return self.evaluate_model(self.model, config)
