"""A client that adds up its features, for last layers that need no training."""

import torch

from coprefl_flwr.clients.torch_client import Config, Parameters, TorchClient
from coprefl_flwr.learning import EVALUATION_BATCH
from coprefl_flwr.models import load_arrays, outputs_and_representation


class FeaturesClient(TorchClient):
    """Answers `LinearHead`: sums over the training samples of what enters the last layer.

    It is sent zeros to fill, the model next to them, and the name of the layer ("head-layer"); ""
    is the `nn.Linear` that the network calls last. Evaluation is that of a `TorchClient`.
    """

    @torch.no_grad()
    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return (sums (C, d), counts (C,) and, if asked, products (d, d)), n and no metrics."""
        load_arrays(self.model, config["extra"]["model"])
        self.model.eval()
        totals = [torch.zeros(a.shape, dtype=torch.float64, device=self.device) for a in parameters]
        sums, counts, *products = totals
        layer = str(config.get("head-layer", ""))
        with self.computing():
            for inputs, targets in self.train.batches(EVALUATION_BATCH, self.device):
                z = outputs_and_representation(self.model, inputs, layer)[1].double()
                sums.index_add_(0, targets, z)
                counts.index_add_(0, targets, torch.ones_like(targets, dtype=torch.float64))
                for total in products:
                    total += z.T @ z
        return [tensor.cpu().numpy() for tensor in totals], len(self.train), {}
