"""FedRep's client: its own head first, then the body that everybody shares."""

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models import first_names, load_arrays, model_arrays


class FedRepClient(StatefulClient):
    """Trains the head with the body fixed, then the body with the head fixed (Algorithm 1).

    The body is the first arrays of the network, as many as it is sent; the head is its state. Each
    of the two is trained for as long as the client's `training` says. BatchNorm's statistics in the
    body are renewed in both.
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return (the body, n, {"loss"}); the loss is the mean loss in training the body."""
        own = self.load_both(parameters, config)
        trained = self.parameters()
        try:
            for in_head in (True, False):
                for name, p in trained.items():
                    p.requires_grad_((name in own) == in_head)
                loss = self.train_locally(self.train, config)
        finally:
            for p in trained.values():
                p.requires_grad_(True)
        arrays = model_arrays(self.model)
        self.state.write(config, {name: arrays[name] for name in own})
        body = [array for name, array in arrays.items() if name not in own]
        return body, len(self.train), {"loss": loss}

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return the mean loss of the body under its own head, n and {"correct"}."""
        self.load_both(parameters, config)
        return self.evaluate_model(self.model)

    def load_both(self, parameters: Parameters, config: Config) -> Arrays:
        """Copy the body that was sent and the own head into the model; return the head."""
        names = list(self.model.state_dict())
        own_weights = self.own_weights(config)
        own = {name: own_weights[name] for name in names[len(parameters) :]}
        for name, first in first_names(self.model).items():
            if (name in own) != (first in own):
                tied = f"'{name}' and '{first}' are tied"
                raise SettingsError(f"{tied}: FedRep cannot keep one and share the other")
        body = dict(zip(names[: len(parameters)], parameters, strict=True))
        load_arrays(self.model, body | own)
        return own
