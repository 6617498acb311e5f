"""Means of the models of several rounds, by hand: a model's weights are its round's number."""

import numpy as np
import pytest
import torch
from flwr.client import NumPyClient

import coprefl_flwr as cp
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import Cyclic, FedAvg, FedAvgM, Schedule
from tests.common.checks import Killed, refusal
from tests.common.data import images
from tests.common.networks import network

START = {"w": np.zeros(2, np.float32), "count": np.zeros((), np.int64)}
MEANS = {
    "average_window": {1: 8, 3: (6 + 7 + 8) / 3, 4: (5 + 6 + 7 + 8) / 4, 20: 4.5},
    # m <- d m + (1 - d) w from m = 1 on: w - m is d + d^2 + ... + d^7 after round 8.
    "average_decay": {0.5: 8 - sum(0.5**k for k in range(1, 8)), 0.9: 8 - 9 * (1 - 0.9**7)},
}
CASES = [(name, value) for name, of in MEANS.items() for value in of]


class Counts(NumPyClient):
    """Adds 1 to the weights in each round."""

    def fit(self, parameters, config):
        return [array + 1 for array in parameters], 4, {"loss": 1.0}


def run(strategy, rounds=8, **more):
    strategy.clients, strategy.evaluate_every = 2, 0
    grid = LocalGrid(client_app(lambda _, i: Counts()))
    return strategy.start(grid, to_record(START), rounds, **more)


def assert_mean(result, mean, last=8):
    assert from_record(result.arrays)["w"] == pytest.approx([last, last])
    assert result.average["w"] == pytest.approx([mean, mean], rel=1e-6)
    assert result.average["w"].dtype == np.float32
    assert result.average["count"].dtype == np.int64
    assert result.average["count"] == np.rint(mean)


@pytest.mark.parametrize(("name", "value"), CASES)
def test_mean_by_hand_does_not_change_the_training(name, value):
    assert_mean(run(FedAvg(**{name: value})), MEANS[name][value])
    assert run(FedAvg()).average is None


@pytest.mark.parametrize(("name", "value"), [("average_window", 4), ("average_decay", 0.5)])
def test_interrupted_run_has_the_same_mean(tmp_path, name, value):
    def kill(report):
        if report.round == 6:
            raise Killed

    path = tmp_path / "run"
    with pytest.raises(Killed):
        run(FedAvg(**{name: value}), checkpoint=path, checkpoint_every=2, hooks=[kill])
    resumed = run(FedAvg(**{name: value}), checkpoint=path, resume=True)
    whole = run(FedAvg(**{name: value}))
    assert resumed.average["w"].tobytes() == whole.average["w"].tobytes()
    assert_mean(resumed, MEANS[name][value])


def test_mean_of_a_schedule_is_that_of_its_last_phase():
    phases = [(Cyclic(participants=1), 5), (FedAvg(average_window=20), 3)]
    assert_mean(run(Schedule(phases)), (6 + 7 + 8) / 3)
    phases[0] = (Cyclic(participants=1, average_window=5), 5)
    line = refusal(Schedule, phases)
    assert line == "average_window: the mean is that of the last phase; set it there"


@pytest.mark.parametrize("method", ["fedavg", "fedmeta", "centralised", FedAvgM(participants=2)])
def test_start_is_the_mean_of_the_last_models(method):
    """The global models are those that a hook gets in a run without the mean."""
    clients, models = cp.partition(images(), clients=4, scheme="iid", min_samples=4), []
    how = {"rounds": 5, "quiet": True, "seed": 3}
    averaged = f"{method}:average-window=3"
    if not isinstance(method, str):
        averaged = FedAvgM(participants=2, average_window=3)
        del how["seed"]
    torch.manual_seed(0)
    model = network(len(clients.classes))
    cp.pretrain(method, model, clients, **how, hooks=[lambda report: models.append(report.arrays)])
    start = cp.pretrain(averaged, model, clients, **how).state_dict()
    for name in models[0]:
        expected = np.mean([one[name] for one in models[2:]], axis=0, dtype=np.float64)
        assert start[name].numpy() == pytest.approx(expected, abs=1e-7)
        if name.endswith("weight"):
            assert (start[name].numpy() != models[-1][name]).any()


def test_mean_that_would_not_be_the_result_is_refused():
    with pytest.raises(SettingsError, match="average-decay: set one of them"):
        FedAvg(average_window=2, average_decay=0.5)
    clients = cp.partition(images(), clients=4, scheme="iid", min_samples=4)
    model = network(len(clients.classes))
    for text in ("fedavg:average-window=2", "fedavg:average-decay=0.5"):
        line = refusal(cp.pretrain, text, model, clients, 3, keep="accuracy", quiet=True)
        assert (
            "keep = accuracy: the model of one round is kept, not the mean; set model=last" in line
        )
    text = "cyclic:average-window=2+fedavg"
    line = refusal(cp.pretrain, text, model, clients, 3, quiet=True)
    assert line.endswith("average-window: set it in the last phase")
    line = refusal(cp.pretrain, "fedavg:average-window=0", model, clients, 3, quiet=True)
    assert "average-window = 0: must be at least 1" in line
