"""Strategies inside Flower's wrappers, with toy clients."""

import math

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from coprefl_flwr import strategies
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.federation.wrapped import is_one_mean
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import (
    SCAFFOLD,
    CoPreFL,
    Cyclic,
    FedAvg,
    FedAvgM,
    FedProx,
    PerFedAvg,
    RoundStrategy,
    Schedule,
)
from tests.common.counting import START, counting_grid

WRAPPED = [CoPreFL(), Cyclic(), SCAFFOLD(), Schedule([(FedAvg(), 1), (FedAvgM(), 1)])]


@pytest.mark.parametrize("strategy", WRAPPED, ids=lambda strategy: type(strategy).__name__)
def test_wrapper_around_a_round_that_is_not_one_mean_is_refused(strategy):
    """A wrapper that would treat other arrays, such as gradients, as models is refused too.

    Each phase of a schedule is checked.
    """
    seen = []
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 2)
    parts = strategy.phase_strategies if isinstance(strategy, Schedule) else [strategy]
    (part,) = (part for part in parts if type(part) is not FedAvg)
    line = f"^{type(part).__name__} has other rounds .*with them: FedAvg, FedProx, PerFedAvg"
    with pytest.raises(SettingsError, match=line):
        wrapped.start(counting_grid(seen=seen), to_record(START), 1)
    assert seen == []


def test_only_strategies_whose_round_is_one_mean_may_be_wrapped():
    """A strategy may be wrapped if its round has one exchange, whose mean is the new model."""
    ours = [cls for cls in vars(strategies).values() if isinstance(cls, type)]
    plain = [cls for cls in ours if issubclass(cls, RoundStrategy) and cls.name]
    instances = [cls() for cls in plain if not {"server", "head"} & cls.__dataclass_fields__.keys()]
    allowed = [type(cls) for cls in instances if is_one_mean(cls, START)]
    assert allowed == [FedAvg, FedProx, PerFedAvg]


def test_wrapper_around_nodes_that_send_sums_is_refused():
    hosted = DifferentialPrivacyServerSideFixedClipping(FedAvg(clients=6), 0.1, 1.0, 2)
    with pytest.raises(SettingsError, match="every node must be one client"):
        hosted.start(counting_grid(), to_record(START), 1)


def test_wrapper_around_nodes_that_are_clients_runs():
    """With noise 0 and a clipping norm that clips nothing, the wrapped mean is the plain mean."""
    start = {"w": np.float32([1.0, 2.0])}

    class Single(NumPyClient):
        def fit(self, parameters, config):
            return [parameters[0] + config["client"] + 1], 1, {}

    app = client_app(lambda _: Single())
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedProx(), 0.0, 1e6, 3)
    result = wrapped.start(LocalGrid(app, nodes=3), to_record(start), 1)
    np.testing.assert_allclose(from_record(result.arrays)["w"], [3.0, 4.0], rtol=1e-6)


def test_failed_round_inside_a_wrapper_is_not_repeated():
    """Replies to a second attempt would not go through the wrapper, which clips them."""
    fits = []

    class Single(NumPyClient):
        def fit(self, parameters, config):
            fits.append(config["client"])
            return [parameters[0] + 1], 1, {"loss": math.nan if config["client"] == 2 else 1.0}

    grid = LocalGrid(client_app(lambda _: Single()), nodes=3)
    strategy = FedAvg(min_replies=3, min_available_nodes=3)
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1e6, 3)
    with pytest.raises(RunFailedError, match="round 1: train: 2 good replies of 3, needed: 3"):
        wrapped.start(grid, to_record({"w": np.float32([1.0, 2.0])}), 2)
    assert sorted(fits) == [0, 1, 2]
