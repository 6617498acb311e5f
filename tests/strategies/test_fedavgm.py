"""Compare FedAvgM with a calculation by hand, and with FedAvg if the momentum is 0."""

import numpy as np
import pytest

from coprefl_flwr.clients import TorchClient
from coprefl_flwr.strategies import FedAvg, FedAvgM
from tests.common.by_hand import assert_equal, is_statistic, means_by_hand, run
from tests.common.federation import Federation
from tests.common.runs import run_of


@pytest.mark.parametrize(("momentum", "rate"), [(0.9, 1.0), (0.5, 0.3)])
def test_three_rounds_by_hand(exact_federation, momentum, rate):
    strategy = FedAvgM(server_momentum=momentum, global_learning_rate=rate, participants=3)
    start = exact_federation.arrays()
    arrays, rounds = run(strategy, exact_federation.app(TorchClient), start, rounds=3)
    expected, velocity = start, {}
    for clients in rounds:
        average = means_by_hand(exact_federation, expected, clients)
        for name in start:
            if not is_statistic(name):
                change = average[name] - expected[name]
                velocity[name] = momentum * velocity.get(name, 0) + change
                average[name] = expected[name] + rate * velocity[name]
        expected = average
    assert len(rounds) == 3
    assert_equal(arrays, expected)


def test_fedavgm_without_momentum_is_fedavg(exact_federation):
    start = exact_federation.arrays()
    app = exact_federation.app(TorchClient)
    plain, _ = run(FedAvg(participants=3), app, start, rounds=3)
    arrays, _ = run(FedAvgM(server_momentum=0.0, participants=3), app, start, rounds=3)
    assert_equal(arrays, plain)


class Pushed(TorchClient):
    """A client that adds 1 to every weight in round 1 and changes nothing in later rounds."""

    def fit(self, parameters, config):
        push = np.float16(config["server-round"] == 1)
        return [array + push for array in parameters], len(self.train), {"loss": 0.0}


def test_velocity_of_a_float16_model_is_float32():
    """In float16, 0.9999 * 1 rounds to 1, so a float16 velocity would never decrease."""
    federation = Federation.full_batch()
    rounds, momentum, rate = 60, 0.9999, 0.01
    start = {"weight": np.zeros(3, np.float16)}
    strategy = FedAvgM(server_momentum=momentum, global_learning_rate=rate)
    arrays, _ = run(strategy, federation.app(Pushed), start, rounds)
    w, v = np.zeros(3, np.float16), np.zeros(3, np.float32)
    for server_round in range(rounds):
        v = np.float32(momentum) * v + np.float32(server_round == 0)
        w = (w + np.float32(rate) * v).astype(np.float16)
    assert v[0] == pytest.approx(momentum ** (rounds - 1), rel=1e-5)
    assert_equal(arrays, {"weight": w}, 0)
    assert_equal(run_of(strategy).state["velocity"], {"weight": v}, 0)
