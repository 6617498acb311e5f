"""FedRep's client: it trains its personal head, and then the body that all clients share."""

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.models import load_arrays, model_arrays
from coprefl_flwr.models.frozen import travelling


class FedRepClient(StatefulClient):
    """A client that trains the head with a fixed body, then the body with a fixed head.

    This is Algorithm 1 of FedRep. If the client receives k arrays, the body is the first k arrays
    of the network. The other arrays are the head, which is the client's state. The head and the
    body are each trained for the number of steps in the client's `training`. BatchNorm's statistics
    in the body are updated in both trainings. No weight of the head may be tied to one of the body.
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return (body, n, {"loss"}); the loss is the mean batch loss while the body is trained."""
        own = self.load_both(parameters, config)
        trained = self.parameters()
        for in_head in (True, False):
            for name, p in trained.items():
                p.requires_grad_((name in own) == in_head)
            loss = self.train_locally(self.train, config)
        for p in trained.values():
            p.requires_grad_(True)
        arrays = model_arrays(self.model)
        self.state.write(config, {name: arrays[name] for name in own})
        body = [array for name, array in arrays.items() if name not in own]
        return body, len(self.train), {"loss": loss}

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return (loss, n, {"correct"}) of the body and the client's head on the test samples."""
        self.load_both(parameters, config)
        return self.evaluate_model(self.model, config)

    def load_both(self, parameters: Parameters, config: Config) -> Arrays:
        """Copy the received body and the client's head into the model; return the head by name."""
        names = list(travelling(self.model))
        own_weights = self.own_weights(config)
        own = {name: own_weights[name] for name in names[len(parameters) :]}
        body = dict(zip(names[: len(parameters)], parameters, strict=True))
        load_arrays(self.model, body | own)
        return own
