"""Compare FedYogi with a calculation by hand."""

import numpy as np
import pytest

from coprefl_flwr.clients import TorchClient
from coprefl_flwr.strategies import FedYogi
from tests.common.by_hand import assert_equal, run
from tests.strategies.test_fedadam import by_hand


@pytest.mark.parametrize("options", [{}, {"beta1": 0.3, "beta2": 0.6, "tau": 0.002}])
def test_three_rounds_by_hand(exact_federation, options):
    strategy = FedYogi(participants=3, global_learning_rate=0.05, **options)
    start = exact_federation.arrays()
    arrays, rounds = run(strategy, exact_federation.app(TorchClient), start, rounds=3)
    grown, shrunk = [], []

    def second(v, square):
        """Return the new v: v plus or minus (1 - beta2) * square.

        v grows where the square is larger than v, and shrinks elsewhere.
        """
        larger = square > v
        grown.append(larger.any())
        shrunk.append((~larger).any())
        return np.where(
            larger, v + (1 - strategy.beta2) * square, v - (1 - strategy.beta2) * square
        )

    assert_equal(arrays, by_hand(exact_federation, rounds, strategy, second))
    assert any(grown)
    assert any(shrunk)
