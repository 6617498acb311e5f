"""What tests of clients with a state have in common: settings, clients and requests."""

from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import model_arrays
from tests.common.federation import CPU

CONFIG = {"seed": 3, "run": "r", "population": "p", "server-round": 2, "attempt": 0, "client": 1}
FULL_BATCH = LocalTraining(local_steps=3, batch_size=1000, learning_rate=0.1)


def make(client_class, model, federation, folder, training=FULL_BATCH):
    """Return a client with the samples of client 1, and the arrays of the model."""
    samples = federation.samples[1]
    client = client_class(model, samples, state=ClientState(folder), training=training, device=CPU)
    return client, list(model_arrays(model).values())


def later(config, **changes):
    """Return the config of the next round, for a client whose state was committed."""
    version = f"{config['server-round']}-{config['attempt']}"
    number = config["server-round"] + 1
    return {**config, "server-round": number, "state-version": version, **changes}
