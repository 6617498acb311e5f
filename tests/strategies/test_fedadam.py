"""Compare FedAdam with a calculation by hand."""

import numpy as np
import pytest

from coprefl_flwr.clients import TorchClient
from coprefl_flwr.strategies import FedAdam
from tests.common.by_hand import assert_equal, is_statistic, means_by_hand, run


def by_hand(federation, rounds, strategy, second):
    """Run Algorithm 2 line by line; `second(v, square)` returns the new second moment."""
    x = federation.arrays()
    weights = [name for name in x if not is_statistic(name)]
    m = {name: np.zeros_like(x[name]) for name in weights}
    v = {name: np.zeros_like(x[name]) + strategy.tau**2 for name in weights}
    for clients in rounds:
        average = means_by_hand(federation, x, clients)
        for name in weights:
            delta = average[name] - x[name]
            m[name] = strategy.beta1 * m[name] + (1 - strategy.beta1) * delta
            v[name] = second(v[name], delta * delta)
            step = m[name] / (np.sqrt(v[name]) + strategy.tau)
            average[name] = x[name] + strategy.global_learning_rate * step
        x = average
    return x


@pytest.mark.parametrize("options", [{}, {"beta1": 0.3, "beta2": 0.6, "tau": 0.1}])
def test_three_rounds_by_hand(exact_federation, options):
    strategy = FedAdam(participants=3, global_learning_rate=0.05, **options)
    start = exact_federation.arrays()
    arrays, rounds = run(strategy, exact_federation.app(TorchClient), start, rounds=3)

    def second(v, square):
        return strategy.beta2 * v + (1 - strategy.beta2) * square

    assert len(rounds) == 3
    assert_equal(arrays, by_hand(exact_federation, rounds, strategy, second))
