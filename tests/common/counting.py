"""Toy clients that count, for tests of strategies, rounds and wrappers."""

import numpy as np
from flwr.client import NumPyClient

from coprefl_flwr.clients import client_app
from coprefl_flwr.grids import LocalGrid

START = {"w": np.float32([0.0, 0.0]), "count": np.array(10, np.int64)}


class Counter(NumPyClient):
    """A client with id + 1 samples that adds id + 1 to `w` and 2 * id + 1 to `count`."""

    def __init__(self, client_id, seen=None, fault=None):
        self.client_id, self.seen, self.fault = client_id, seen, fault

    def fit(self, parameters, config):
        if self.seen is not None:
            self.seen.append((self.client_id, dict(config)))
        w, count = parameters
        returned = [w + self.client_id + 1, count + 2 * self.client_id + 1]
        if self.fault:
            return self.fault(self.client_id, config, returned)
        return returned, self.client_id + 1, {"loss": float(self.client_id)}

    def query(self, parameters, config):
        gradient = {"w": np.float32([self.client_id, 1.0])}
        return gradient, 2, {"loss": float(self.client_id)}

    def evaluate(self, parameters, config):
        return 0.5, 4, {"correct": self.client_id % 4}


def counting_grid(nodes=2, **options):
    return LocalGrid(client_app(lambda _, i: Counter(i, **options)), nodes=nodes)
