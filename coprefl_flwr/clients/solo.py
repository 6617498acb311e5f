"""Solo's client: local training of a personal model that is never sent."""

from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.models import load_arrays, model_arrays


class SoloClient(StatefulClient):
    """A client that trains a personal model, which is its state.

    The client receives no arrays and returns no arrays.
    """

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return ([], n, {"loss"}) after training the client's model."""
        load_arrays(self.model, self.own_weights(config))
        loss = self.train_locally(self.train, config)
        self.state.write(config, model_arrays(self.model))
        return [], len(self.train), {"loss": loss}

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return (mean loss, n, {"correct"}) of the client's model on the test samples."""
        load_arrays(self.model, self.own_weights(config))
        return self.evaluate_model(self.model, config)
