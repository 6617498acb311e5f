"""What the server does."""

from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from old_app.task import get_weights, make_net


def server_fn(context: Context) -> ServerAppComponents:
    """Return the strategy and the number of rounds."""
    config = context.run_config
    strategy = FedAvg(
        fraction_fit=config["fraction-fit"],
        min_available_clients=4,
        initial_parameters=ndarrays_to_parameters(get_weights(make_net())),
    )
    rounds = ServerConfig(num_rounds=config["num-server-rounds"])
    return ServerAppComponents(strategy=strategy, config=rounds)


app = ServerApp(server_fn=server_fn)
