"""A client that sums its features, for last layers that are computed without training."""

import torch

from coprefl_flwr.clients.torch_client import Config, Parameters, TorchClient
from coprefl_flwr.learning.evaluation import EVALUATION_BATCH
from coprefl_flwr.models import load_arrays, outputs_and_representation


class FeaturesClient(TorchClient):
    """A client of `LinearHead` that sums the features of its training samples.

    The features are the inputs of the last layer. The client receives arrays of zeros with the
    shapes of the sums, the model in the record "model", and the name of the last layer
    ("head-layer"). The name "" means the `nn.Linear` that the network calls last. The client
    evaluates in the same way as a `TorchClient`.
    """

    @torch.no_grad()
    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the sums, n and no metrics.

        The sums are float64: the features z of each class (C, d), the numbers of samples of each
        class (C,) and, if `parameters` has a third array, the products z^T z (d, d).
        """
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
