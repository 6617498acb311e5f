"""One client per node: 1 raises, 2 returns NaN, 3 never answers, 4 kills its worker process."""

import os
import signal
import time

import numpy as np
from flwr.client import NumPyClient

from coprefl_flwr.clients import client_app


class Faulty(NumPyClient):
    def __init__(self, client_id):
        self.client_id = client_id

    def fit(self, parameters, config):
        if self.client_id == 1:
            raise ArithmeticError("boom")
        if self.client_id == 2:
            return [np.full_like(parameters[0], np.nan)], 1, {}
        if self.client_id == 3:
            # Beyond the time limit; Flower's engine ends only after the last client ends.
            time.sleep(30)
        if self.client_id == 4 and config["server-round"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return [parameters[0] + 1], 1, {"loss": 0.0}


app = client_app(lambda _, client_id: Faulty(client_id))
