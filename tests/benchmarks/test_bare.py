"""The plain loop that everything is measured against does what FedAvg does."""

import numpy as np
import pytest

from benchmarks.bare import one_process, several_processes
from benchmarks.federation import client, run_rounds
from benchmarks.workloads import WORKLOADS
from coprefl_flwr.grids import LocalGrid

ROUNDS = 2
TINY = WORKLOADS["tiny"]


class EnoughError(Exception):
    """Ends an endless loop."""


def plain_weights(loop, workers):
    found = []

    def after_round(weights):
        found.append({name: tensor.numpy().copy() for name, tensor in weights.items()})
        if len(found) == ROUNDS:
            raise EnoughError

    with pytest.raises(EnoughError):
        loop(TINY, workers, after_round)
    return found[-1]


@pytest.fixture(scope="module")
def fedavg_weights():
    found = []
    grid = LocalGrid(client, run_config={"workload": "tiny", "method": "fedavg", "hosting": True})
    run_rounds(grid, TINY, "fedavg", ROUNDS, 1, lambda report: found.append(report.arrays))
    return found[-1]


def assert_trained_alike(weights, expected):
    start = TINY.build().state_dict()
    assert list(weights) == list(expected) == list(start)
    for name, array in weights.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=name)
    assert max(np.abs(expected[n] - t.numpy()).max() for n, t in start.items()) > 1e-5


def test_one_process_gives_fedavgs_weights(fedavg_weights):
    assert_trained_alike(plain_weights(one_process, 1), fedavg_weights)


def test_two_processes_give_fedavgs_weights(fedavg_weights):
    assert_trained_alike(plain_weights(several_processes, 2), fedavg_weights)
