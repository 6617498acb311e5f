"""Solo's client: local training of a model that is never sent."""

from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.models import load_arrays, model_arrays


class SoloClient(StatefulClient):
    """Trains its own model, which is its state; it is sent nothing and returns nothing."""

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return (no arrays, n, {"loss"})."""
        load_arrays(self.model, self.own_weights(config))
        loss = self.train_locally(self.train, config)
        self.state.write(config, model_arrays(self.model))
        return [], len(self.train), {"loss": loss}

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return the mean loss of its own model on the test samples, n and {"correct"}."""
        load_arrays(self.model, self.own_weights(config))
        return self.evaluate_model(self.model)
