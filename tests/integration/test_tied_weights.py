"""Tied weights: a tensor with two names takes one step, and both names have the new values."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from coprefl_flwr.clients import (
    CoPreFLClient,
    FedDynClient,
    FedMetaClient,
    FedProxClient,
    MOONClient,
    PerFedAvgClient,
    PFedMeClient,
    QFFLClient,
    SCAFFOLDClient,
    TorchClient,
)
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.strategies import (
    MOON,
    QFFL,
    SCAFFOLD,
    CoPreFL,
    FedAvg,
    FedDyn,
    FedMeta,
    FedProx,
    HybridCoPreFL,
    PerFedAvg,
    PFedMe,
    ServerRefined,
)
from tests.common.by_hand import assert_equal, run_on
from tests.common.federation import CPU, Federation
from tests.common.networks import CLASSES
from tests.common.runs import run_of

TIED, FIRST = "second.weight", "first.weight"


class Tied(nn.Module):
    """Two layers that share a weight, which has two names in `state_dict`, and a head."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.head = nn.Linear(16, CLASSES)

    def forward(self, images):
        hidden = torch.tanh(self.first(images.double().flatten(1)))
        return self.head(torch.tanh(self.second(hidden)))


class Bias(nn.Module):
    """A linear layer that has only a bias; the caller passes another layer's weight."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Linear(16, 16).bias

    def forward(self, hidden, weight):
        return functional.linear(hidden, weight, self.bias)


class Once(Tied):
    """The network `Tied` with one name for the shared weight, an input of the second layer."""

    def __init__(self):
        super().__init__()
        self.second = Bias()

    def forward(self, images):
        hidden = torch.tanh(self.first(images.double().flatten(1)))
        return self.head(torch.tanh(self.second(hidden, self.first.weight)))


def seeded(network):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return network().double()


def federations():
    """Return a federation with the network `Tied`, and a federation with the network `Once`."""
    training = LocalTraining(batch_size=1000, learning_rate=0.1)
    tied = Federation(training, model=seeded(Tied))
    once = Federation(training, model=seeded(Once))
    start = {name: array for name, array in tied.arrays().items() if name != TIED}
    assert start.keys() == once.start.keys()
    once.start = start
    tied.uneven = once.uneven = True
    return tied, once


def doubled(arrays):
    """Return the arrays in the order of `Tied`, with the tied weight under both of its names."""
    names = [FIRST, "first.bias", TIED, "second.bias", "head.weight", "head.bias"]
    return {name: arrays[FIRST if name == TIED else name] for name in names}


def server_of(federation):
    return ServerData(federation.model, federation.samples[3], CPU)


def refined(federation):
    inner = FedAvg(participants=3)
    return ServerRefined(inner, server_of(federation), steps=2, learning_rate=0.1)


def hybrid(federation):
    server = server_of(federation)
    return HybridCoPreFL(server=server, gamma=0.25, meta_learning_rate=0.5, participants=3)


def fedmeta(variant):
    return FedMeta(variant=variant, inner_learning_rate=0.7, meta_learning_rate=0.4, participants=3)


METHODS = {
    "fedavg": (lambda _: FedAvg(participants=3), TorchClient),
    "refined": (refined, TorchClient),
    "coprefl": (
        lambda _: CoPreFL(gamma=0.25, meta_learning_rate=0.5, participants=3),
        CoPreFLClient,
    ),
    "coprefl-hybrid": (hybrid, TorchClient),
    "maml": (lambda _: fedmeta("maml"), FedMetaClient),
    "fomaml": (lambda _: fedmeta("fomaml"), FedMetaClient),
    "meta-sgd": (lambda _: fedmeta("meta-sgd"), FedMetaClient),
    "fedprox": (lambda _: FedProx(mu=0.5, participants=3), FedProxClient),
    "qffl": (lambda _: QFFL(q=2.0, participants=3), QFFLClient),
    "scaffold I": (lambda _: SCAFFOLD(variant="I", participants=3), SCAFFOLDClient),
    "scaffold II": (lambda _: SCAFFOLD(participants=3), SCAFFOLDClient),
    "feddyn": (lambda _: FedDyn(alpha=0.3, participants=3), FedDynClient),
    "moon": (lambda _: MOON(mu=1.0, participants=3), MOONClient),
    "pfedme": (lambda _: PFedMe(meta_learning_rate=0.01, participants=3), PFedMeClient),
    "per-fedavg": (lambda _: PerFedAvg(inner_learning_rate=0.3), PerFedAvgClient),
    "per-fedavg hf": (
        lambda _: PerFedAvg(variant="hf", inner_learning_rate=0.3),
        PerFedAvgClient,
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_method_with_a_tied_weight_equals_the_method_with_one_name(name, tmp_path):
    """Four rounds give the weights, losses and states of the network without a tied weight.

    SCAFFOLD's control variate and the rates of meta-SGD have the tied weight under both names.
    """
    make, client = METHODS[name]
    ends, losses, learnt = [], [], []
    for number, federation in enumerate(federations()):
        strategy = make(federation)
        strategy.evaluate_every = 4
        stateful = "state" in client.injected
        states = {"states": tmp_path / str(number)} if stateful else {}
        grid = federation.grid("2", client, **states)
        ends.append(run_on(strategy, grid, federation.arrays(), 4)[0])
        losses.append(run_of(strategy).evaluation.metrics["loss"])
        learnt.append(
            {k: a for k, a in run_of(strategy).state.items() if k in ("control", "rates")}
        )
        begun = federation.arrays()
    assert_equal(ends[0], doubled(ends[1]))
    assert learnt[0].keys() == learnt[1].keys()
    for key, arrays in learnt[1].items():
        assert abs(arrays[FIRST]).max() > 1e-3
        assert_equal(learnt[0][key], doubled(arrays))
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-12)
    assert abs(ends[1][FIRST] - begun[FIRST]).max() > 1e-3
