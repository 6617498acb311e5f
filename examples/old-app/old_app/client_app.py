"""What a node does."""

from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from old_app.task import get_weights, load_data, make_net, set_weights, test, train


class SpiralClient(NumPyClient):
    """Trains and evaluates on one node's points."""

    def __init__(self, partition_id, learning_rate):
        self.model, self.learning_rate = make_net(), learning_rate
        self.training = load_data(partition_id, 0, 100)
        self.evaluation = load_data(partition_id, 150, 200)

    def fit(self, parameters, config):
        """Train the global model."""
        set_weights(self.model, parameters)
        loss = train(self.model, self.training, self.learning_rate)
        return get_weights(self.model), len(self.training.dataset), {"train_loss": loss}

    def evaluate(self, parameters, config):
        """Evaluate the global model."""
        set_weights(self.model, parameters)
        loss, accuracy = test(self.model, self.evaluation)
        return loss, len(self.evaluation.dataset), {"accuracy": accuracy}


def client_fn(context: Context):
    """Return the client of a node."""
    rate = context.run_config["learning-rate"]
    return SpiralClient(context.node_config["partition-id"], rate).to_client()


app = ClientApp(client_fn)
