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
from coprefl_flwr.strategies import (
    FedAvg,
)
from tests.common.by_hand import record_samples
from tests.common.counting import START, Counter, counting_grid
from tests.common.federation import pair


def test_weighted_mean_of_int64_is_rounded_once():
    """Clients 0 and 1 (weights 1 and 2) return counters 11 and 13: 37/3 = 12.33 rounds to 12."""
    result = FedAvg(clients=2).start(counting_grid(), to_record(START), 1)
    arrays = from_record(result.arrays)
    assert arrays["count"] == 12
    assert arrays["count"].dtype == np.int64
    np.testing.assert_allclose(arrays["w"], np.float32([5 / 3, 5 / 3]))


def test_sampling_is_a_function_of_seed_and_round_not_of_nodes():
    drawn = {}
    for seed, nodes in ((0, 1), (0, 3), (1, 1)):
        seen = []
        grid = counting_grid(nodes=nodes, seen=seen)
        FedAvg(participants=5, seed=seed, clients=20).start(grid, to_record(START), 3)
        drawn[seed, nodes] = [
            sorted(client for client, config in seen if config["server-round"] == r)
            for r in (1, 2, 3)
        ]
    assert drawn[0, 1] == drawn[0, 3]
    assert drawn[0, 1] != drawn[1, 1]
    assert drawn[0, 1][0] != drawn[0, 1][1]
    assert all(len(set(clients)) == 5 for clients in drawn[0, 1])


def test_every_message_names_run_population_round_and_the_apps_settings():
    seen = []
    FedAvg(run_name="r", population="pretrain", seed=4, clients=2).start(
        counting_grid(seen=seen),
        to_record(START),
        1,
        train_config=ConfigRecord({"x": 3}),
    )
    client, config = sorted(seen, key=lambda entry: entry[0])[1]
    assert client == 1
    assert config == {
        "x": 3,
        "run": "r",
        "population": "pretrain",
        "server-round": 1,
        "seed": 4,
        "attempt": 0,
        "client": 1,
    }


def test_more_participants_than_clients_is_refused_before_any_work():
    seen = []
    with pytest.raises(SettingsError, match="participants = 9: there are only 6 clients"):
        FedAvg(participants=9, clients=6).start(counting_grid(seen=seen), to_record(START), 1)
    assert seen == []


NO_FOLDERS = ["", ".", "..", ".x", "-x", "a/b", "a\\b", "../a", "/a", "a b", "a\n"]


@pytest.mark.parametrize("option", ["run_name", "population"])
def test_names_that_cannot_name_a_folder_are_refused(option):
    for value in NO_FOLDERS:
        with pytest.raises(SettingsError, match=re.escape(f"{option} = {value!r}: ")):
            FedAvg(**{option: value})
    for value in ("r", "7", "_", "task-3", "2024-05.a_B"):
        assert getattr(FedAvg(**{option: value}), option) == value


def test_nodes_that_name_their_own_clients():
    """In a deployment, node i is client i: its id, and so the sampling, comes from partition-id."""
    seen = []
    app = client_app(lambda _, i: Counter(i, seen=seen))
    FedAvg(participants=2, seed=1).start(LocalGrid(app, nodes=5), to_record(START), 2)
    hosted = []
    grid = counting_grid(nodes=1, seen=hosted)
    FedAvg(participants=2, seed=1, clients=5).start(grid, to_record(START), 2)
    assert [client for client, _ in seen] == [client for client, _ in hosted]


def test_a_client_that_has_its_nodes_id():
    """Node 3 hosts clients 2 and 3; if asked for client 3, it must not run its partition-id, 1."""
    seen = []
    app = client_app(lambda _, i: Counter(i, seen=seen), clients=pair)
    strategy = FedAvg(participants=1, min_available_nodes=2)
    record_samples(strategy, lambda drawn: [drawn, 3][1:])
    strategy.start(LocalGrid(app, nodes=2), to_record(START), 1)
    assert [client for client, _ in seen] == [3]


def test_a_run_whose_nodes_have_one_partition_id_says_so_when_it_ends(caplog):
    """The server waits for more nodes, and then the error message names the reason."""
    app = client_app(lambda _, i: Counter(i), clients=[3])
    line = r"client 3 is reported by 2 nodes \(2, 3\): .* give each node its own partition-id"
    with pytest.raises(RunFailedError, match=f"waited 0.01 s; {line}$"):
        FedAvg().start(LocalGrid(app, nodes=2), to_record(START), 1, timeout=0.01)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert re.fullmatch(line, warning)


def test_more_replies_wanted_than_participants():
    with pytest.raises(SettingsError, match="min_replies = 3: must be at most participants = 2"):
        FedAvg(participants=2, min_replies=3)


OURS = [
    "server-round",
    "run",
    "population",
    "seed",
    "attempt",
    "client",
    "clients",
    "combine",
    "bounds",
    "state-version",
    "state-kept",
]


@pytest.mark.parametrize("what", ["train_config", "evaluate_config"])
@pytest.mark.parametrize("key", OURS)
def test_settings_under_our_own_names_are_refused_before_any_work(what, key):
    """Before, these settings were dropped without an error message."""
    seen = []
    line = f"^{what}: '{key}' is set by the strategy itself; choose another name$"
    with pytest.raises(SettingsError, match=line):
        FedAvg(clients=6).start(
            counting_grid(seen=seen), to_record(START), 1, **{what: ConfigRecord({key: 1})}
        )
    assert seen == []
