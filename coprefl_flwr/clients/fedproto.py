"""FedProto's client: a personal model with representations close to the global prototypes."""

import torch
from torch import Tensor, nn

from coprefl_flwr.clients.fedpcl import ABSENT_SCORE, prototype_set
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.data.inputs import Inputs
from coprefl_flwr.learning.evaluation import class_means
from coprefl_flwr.models import load_arrays, model_arrays, outputs_and_representation


class FedProtoClient(StatefulClient):
    """A client that minimises cross-entropy + lambda x mean squared distance of z to a prototype.

    The prototype is the global prototype of the sample's class. The model is the client's state.
    The representation z is the input of the `nn.Linear` that the network calls last. `fit` receives
    the global set of prototypes and returns the client's set. The client's prototypes are means
    that are not normalised. The mean squared distance is over the samples of a batch and the
    elements of z. The distance of a sample whose class has no global prototype is 0. lambda is the
    request's "fedproto-mu".
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return ([prototypes, counts], n, {"loss"}) after training the model.

        The prototypes (C, d) and the counts (C,) are the client's set.
        """
        shared = prototype_set(parameters)
        load_arrays(self.model, self.own_weights(config))
        rows = torch.tensor(shared["prototypes"], device=self.device)
        exists = torch.as_tensor(shared["counts"] > 0, device=self.device)
        weight = float(config["fedproto-mu"])

        def objective(inputs: Inputs, targets: Tensor) -> Tensor:
            outputs, z = outputs_and_representation(self.model, inputs)
            squares = (z - rows[targets].to(z.dtype)) ** 2 * exists[targets][:, None]
            return self.training.loss(outputs, targets) + weight * squares.mean()

        loss = self.train_locally(self.train, config, objective=objective)
        self.state.write(config, model_arrays(self.model))
        self.model.eval()
        with self.computing():
            own = class_means(self.represent, self.train, shared, self.device)
        return [own["prototypes"], own["counts"]], len(self.train), {"loss": loss}

    def represent(self, inputs: Inputs) -> Tensor:
        """Return the representations z, (b, d), of a batch."""
        return outputs_and_representation(self.model, inputs)[1]

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return (loss, n, {"correct"}) on the test samples.

        The predicted class has the global prototype nearest to z. The loss is the cross-entropy
        with the negative squared distances as logits.
        """
        shared = prototype_set(parameters)
        load_arrays(self.model, self.own_weights(config))
        rows = torch.tensor(shared["prototypes"], device=self.device)
        exists = torch.as_tensor(shared["counts"] > 0, device=self.device)
        return self.evaluate_model(Nearness(self.model, rows, exists), config)


class Nearness(nn.Module):
    """Class scores: the negative squared distances of a network's z to the class prototypes.

    `rows` are the prototypes, (C, d). `exists`, bool (C,), is True for classes with a prototype.
    """

    def __init__(self, network: nn.Module, rows: Tensor, exists: Tensor) -> None:
        super().__init__()
        self.network, self.rows, self.exists = network, rows, exists

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return the class scores, (b, C), of a batch."""
        _, z = outputs_and_representation(self.network, named or inputs)
        squares = (z[:, None] - self.rows.to(z.dtype)).square().sum(dim=2)
        return (-squares).masked_fill(~self.exists, ABSENT_SCORE)
