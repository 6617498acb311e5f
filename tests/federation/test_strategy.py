"""The base class of all strategies, tested with toy clients that count."""

import logging
import re

import numpy as np
import pytest
from flwr.app import ConfigRecord

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import FedAvg
from tests.common.counting import START, Counter, counting_grid


def test_weighted_mean_of_int64_is_rounded_once():
    """Clients 0 and 1 (weights 1 and 2) return counters 11 and 13: 37/3 = 12.33 rounds to 12."""
    result = FedAvg(clients=2).start(counting_grid(), to_record(START), 1)
    arrays = from_record(result.arrays)
    assert arrays["count"] == 12
    assert arrays["count"].dtype == np.int64
    np.testing.assert_allclose(arrays["w"], np.float32([5 / 3, 5 / 3]))


def test_sampling_depends_on_seed_population_and_round_but_not_on_nodes():
    drawn = {}
    for seed, nodes, population in ((0, 1, "a"), (0, 3, "a"), (1, 1, "a"), (0, 1, "b")):
        seen = []
        grid = counting_grid(nodes=nodes, seen=seen)
        strategy = FedAvg(participants=5, seed=seed, population=population, clients=20)
        strategy.start(grid, to_record(START), 3)
        drawn[seed, nodes, population] = [
            sorted(client for client, config in seen if config["server-round"] == r)
            for r in (1, 2, 3)
        ]
    first, with_3_nodes, other_seed, other_population = drawn.values()
    assert first == with_3_nodes
    assert first not in (other_seed, other_population)
    assert first[0] != first[1]
    assert all(len(set(clients)) == 5 for clients in first)


def test_every_message_names_run_population_round_and_the_settings_of_the_app():
    seen = []
    strategy = FedAvg(run_name="r", population="pretrain", seed=4, clients=1)
    config = ConfigRecord({"x": 3})
    strategy.start(counting_grid(seen=seen), to_record(START), 1, train_config=config)
    names = {"run": "r", "population": "pretrain", "server-round": 1}
    assert seen == [(0, {"x": 3, **names, "seed": 4, "attempt": 0, "client": 0})]


def test_too_many_participants_are_refused_before_any_work():
    seen = []
    with pytest.raises(SettingsError, match="participants = 9: there are only 6 clients"):
        FedAvg(participants=9, clients=6).start(counting_grid(seen=seen), to_record(START), 1)
    assert seen == []
    with pytest.raises(SettingsError, match="min_replies: must be at most participants = 2"):
        FedAvg(participants=2, min_replies=3)


def test_nodes_that_are_clients_are_sampled_like_hosted_clients():
    """In a deployment, node i is client i: its id, and so the sampling, comes from partition-id."""
    seen = []
    app = client_app(lambda _, i: Counter(i, seen=seen))
    FedAvg(participants=2, seed=1).start(LocalGrid(app, nodes=5), to_record(START), 2)
    hosted = []
    grid = counting_grid(nodes=1, seen=hosted)
    FedAvg(participants=2, seed=1, clients=5).start(grid, to_record(START), 2)
    assert [client for client, _ in seen] == [client for client, _ in hosted]


def test_run_whose_nodes_have_the_same_partition_id_ends_with_the_reason(caplog):
    """The server waits for more nodes, and then the error message names the reason."""
    app = client_app(lambda _, i: Counter(i), clients=[3])
    strategy = FedAvg(min_available_nodes=2)
    line = (
        "node 3 does not get client 3: node 2 named it first; give each node its own partition-id"
    )
    with pytest.raises(RunFailedError, match=f"waited 0.01 s; {line}$"):
        strategy.start(LocalGrid(app, nodes=2), to_record(START), 1, timeout=0.01)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert re.fullmatch(line, warning)


@pytest.mark.parametrize("what", ["train_config", "evaluate_config"])
@pytest.mark.parametrize("key", ["seed", "client", "combine", "state-version"])
def test_settings_with_a_reserved_name_are_refused_before_any_work(what, key):
    """Before, these settings were dropped without an error message."""
    seen = []
    line = f"^{what}: '{key}' is set by the strategy itself$"
    with pytest.raises(SettingsError, match=line):
        FedAvg(clients=6).start(
            counting_grid(seen=seen), to_record(START), 1, **{what: ConfigRecord({key: 1})}
        )
    assert seen == []
