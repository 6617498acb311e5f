"""Runs whose clients are computed as one: in every hosting, resumed, and with a bad client."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.client import NumPyClient

from coprefl_flwr import client_app as shipped
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient, FedProxClient, TorchClient
from coprefl_flwr.data import Samples, TensorDataset
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning import together
from coprefl_flwr.learning.together import AT_ONCE
from coprefl_flwr.strategies import CoPreFL, FedAdam, FedAvg, FedProx
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from tests.common.federation import HOSTINGS, Federation, hosted
from tests.common.networks import double_model
from tests.common.studies import tiny_study

METHODS = {
    "fedavg": (TorchClient, FedAvg, {}),
    "fedadam": (TorchClient, FedAdam, {}),
    "fedprox": (FedProxClient, FedProx, {"mu": 1.0}),
    "coprefl": (CoPreFLClient, CoPreFL, {"meta_learning_rate": 0.1}),
    "robust": (TorchClient, FedAvg, {"aggregation": "median"}),
}


@pytest.fixture
def groups(monkeypatch):
    """A counter of the sizes of all groups of clients that were computed as one."""
    sizes = Counter()
    for name in ("train_together", "gradients_together"):
        compute = getattr(together, name)

        def counted(*arguments, compute=compute, name=name, **more):
            result = compute(*arguments, **more)
            sizes[name, len(result[1])] += 1
            return result

        monkeypatch.setattr(together, name, counted)
    return sizes


def federation(count, kind=Federation.stochastic):
    """Return a federation in float64 without BatchNorm, `count` of whose clients are one."""
    made = kind()
    training = replace(made.training, together=count)
    return Federation(training, double_model(norm=False))


def run(of, client_class, strategy, hosting="1", rounds=3, **options):
    grid = of.grid(hosting, client_class)
    made = strategy(seed=3, clients=grid.clients, evaluate_every=1, **options)
    return made.start(grid, to_record(of.arrays()), rounds)


@pytest.mark.parametrize("hosting", HOSTINGS)
@pytest.mark.parametrize("method", METHODS)
def test_results_are_those_of_one_after_another(groups, method, hosting):
    """Groups of three of four clients on one node; clients of other numbers of samples."""
    client_class, strategy, options = METHODS[method]
    alone = run(federation(1), client_class, strategy, **options)
    assert not groups
    joint = run(federation(3), client_class, strategy, hosting, **options)
    for name, array in from_record(alone.arrays).items():
        found = from_record(joint.arrays)[name]
        np.testing.assert_allclose(found, array, rtol=0, atol=1e-12 * np.abs(array).max())
    for server_round in range(4):
        before, after = (one.history.of_round(server_round) for one in (alone, joint))
        measured = {name for name in before if not name.startswith("wire")}
        assert measured >= {"loss", "evaluate-loss", "evaluate-accuracy"} or not server_round
        for name in measured:
            assert after[name] == pytest.approx(before[name], rel=1e-9), name
    if hosting == "1" and method != "robust":
        assert groups["train_together", 3] == 3
        assert groups["gradients_together", 3] == 3 * (method == "coprefl")
    if hosting in ("4", "own", "plain") or method == "robust":
        assert not groups


class OneDiverges(TorchClient):
    """A client whose training fails if it is client 1: one of its numbers is not finite."""

    joint = TorchClient.joint

    def training_samples(self, config):
        if config["client"] != 1:
            return self.train
        inputs, labels = self.train.batch(slice(None), self.device)
        inputs[0] = torch.nan
        dataset = TensorDataset(inputs, labels=labels.numpy(), classes=("a", "b", "c"))
        return Samples(dataset, np.arange(len(labels)), labels.numpy())


def test_a_client_that_fails_costs_no_other_its_work(groups, caplog):
    """Client 1 diverges, and client 2 has no samples, which fails before the first step."""
    ends = []
    for count in (1, 4):
        of = federation(count)
        of.samples[2] = of.samples[2].take(np.arange(0))
        ends.append(run(of, OneDiverges, FedAvg, rounds=1, min_replies=2))
    one, other = (from_record(end.arrays) for end in ends)
    for name in one:
        assert one[name].tobytes() == other[name].tobytes()
    assert "clients are computed one after another: no samples to train on" in caplog.text
    assert caplog.text.count("client 1: metric 'loss' is nan") == 2  # One for each run.


class Wrapper(NumPyClient):
    """An attacker, which passes on all attributes of the client but its results."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def fit(self, parameters, config):
        return [0 * array for array in parameters], 1, {"loss": 0.0}


def test_a_wrapped_client_is_not_passed_over(groups):
    of = federation(4)
    grid = hosted("1", lambda _, number: Wrapper(of.client(TorchClient, number)))
    result = FedAvg(clients=4).start(grid, to_record(of.arrays()), 1)
    assert all(not array.any() for array in from_record(result.arrays).values())
    assert not groups


class Unstated(TorchClient):
    """A client of one's own, whose results might not be those of `fit_together`."""


def test_a_class_has_to_state_what_may_be_one(groups):
    run(federation(4), Unstated, FedAvg)
    assert not groups
    run(federation(4), TorchClient, FedAvg)
    assert groups


@pytest.mark.parametrize("method", ["fedprox", "coprefl"])
def test_a_resumed_run_has_the_bytes_of_a_whole_one(groups, method, tmp_path):
    client_class, strategy, options = METHODS[method]

    def start(folder, rounds, resume=False):
        of = federation(3)
        made = strategy(seed=3, clients=4, participants=3, **options)
        grid, about = of.grid("1", client_class), {"checkpoint": folder / "checkpoint"}
        return made.start(grid, to_record(of.arrays()), rounds, resume=resume, **about)

    start(tmp_path / "b", 2)
    whole, resumed = start(tmp_path / "a", 5), start(tmp_path / "b", 5, resume=True)
    assert groups["train_together", 3] == 2 + 5 + 3
    for name, array in from_record(whole.arrays).items():
        assert from_record(resumed.arrays)[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("network", "together", "stored"),
    [("plain_network", "", AT_ONCE), ("plain_network", 1, None), ("network", 4, None)],
)
def test_a_stored_start_says_how_its_clients_were_computed(
    network, together, stored, tiny_images, tmp_path
):
    """A linear network trains together unless it is off; one with BatchNorm never does."""
    config = tiny_study(tiny_images, tmp_path).to_config() | {"method": "fedavg", "tasks": 0}
    config |= {"model": f"tests.common.networks:{network}", "together": together}
    study = Settings.from_config(config)
    folder = run_study(LocalGrid(shipped.app, 1, study.to_config()), build(study))
    about = json.loads((folder / "starts" / "fedavg" / "model.json").read_text())
    assert about.get("together") == stored
