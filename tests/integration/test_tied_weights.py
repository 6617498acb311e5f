"""Tied weights: a tensor with two names takes one step, and both names have the new values."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coprefl_flwr import seeds
from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedDynClient,
    FedMetaClient,
    FedProxClient,
    FedRepClient,
    MOONClient,
    PerFedAvgClient,
    PFedMeClient,
    QFFLClient,
    SCAFFOLDClient,
    TorchClient,
)
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.strategies import (
    MOON,
    QFFL,
    SCAFFOLD,
    CoPreFL,
    FedAvg,
    FedDyn,
    FedMeta,
    FedProx,
    FedRep,
    HybridCoPreFL,
    PerFedAvg,
    PFedMe,
    ServerRefined,
)
from tests.common.by_hand import assert_equal, run, run_on
from tests.common.federation import CPU, SIZES, Federation
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


def loss_of(w, data):
    inputs, targets = data
    hidden = torch.tanh(inputs.double().flatten(1) @ w[FIRST].T + w["first.bias"])
    hidden = torch.tanh(hidden @ w[FIRST].T + w["second.bias"])
    return functional.cross_entropy(hidden @ w["head.weight"].T + w["head.bias"], targets)


def moved(w, loss, rate, create_graph=False):
    """Return w - rate grad loss; `rate` is a number, or a dict with a rate for each name."""
    slopes = torch.autograd.grad(loss, list(w.values()), create_graph=create_graph)
    rates = rate if isinstance(rate, dict) else dict.fromkeys(w, rate)
    return {name: p - rates[name] * g for (name, p), g in zip(w.items(), slopes, strict=True)}


def leaves(arrays):
    return {
        name: torch.tensor(np.array(array), requires_grad=True) for name, array in arrays.items()
    }


def trained(start, data, steps):
    w = leaves(start)
    for _ in range(steps):
        w = {n: p.detach().requires_grad_() for n, p in moved(w, loss_of(w, data), 0.1).items()}
    return {name: p.detach().numpy() for name, p in w.items()}


def sets(federation, client, server_round):
    """Return the support and the query set of a client, each (inputs, targets)."""
    inputs, targets = federation.whole(client)
    key = (0, "train", server_round, client, "support")
    support, query = split_in_two(SIZES[client], 0.8, seeds.generator(*key))
    return (inputs[support], targets[support]), (inputs[query], targets[query])


def meta_step_by_hand(temporary, queries, gamma, zeta):
    """Return the temporary model after a step against the gradient of L_meta, by autograd."""
    w = leaves(temporary)
    losses = torch.stack([loss_of(w, data) for data in queries])
    meta = gamma * losses.sum() + (1 - gamma) * ((losses - losses.mean()) ** 2).mean()
    return {name: p.detach().numpy() for name, p in moved(w, meta, zeta).items()}


def mean_of(states, weights):
    return {n: np.average([state[n] for state in states], 0, weights) for n in states[0]}


def test_a_round_of_coprefl_by_hand():
    """Two rounds: the meta step must change the tied weight, not only the other weights."""
    tied, once = federations()
    strategy = CoPreFL(gamma=0.25, meta_learning_rate=0.5, participants=3)
    found, asked = run(strategy, tied.app(CoPreFLClient), tied.arrays())
    expected = once.arrays()
    for number, clients in enumerate(asked, start=1):
        parts = [sets(tied, client, number) for client in clients]
        states = [trained(expected, s, j + 1) for j, (s, _) in zip(clients, parts, strict=True)]
        temporary = mean_of(states, [len(support[1]) for support, _ in parts])
        expected = meta_step_by_hand(temporary, [query for _, query in parts], 0.25, 0.5)
        assert abs(expected[FIRST] - temporary[FIRST]).max() > 1e-3
    assert_equal(found, doubled(expected))


def test_a_round_of_coprefl_in_scenario_two_by_hand():
    tied, once = federations()
    server = ServerData(seeded(Tied), tied.samples[3], CPU)
    strategy = HybridCoPreFL(server=server, gamma=0.25, meta_learning_rate=0.5, participants=3)
    found, asked = run(strategy, tied.app(TorchClient), tied.arrays())
    expected, (inputs, targets) = once.arrays(), tied.whole(3)
    for number, clients in enumerate(asked, start=1):
        states = [trained(expected, tied.whole(j), j + 1) for j in clients]
        temporary = mean_of(states, [SIZES[j] for j in clients])
        order = seeds.generator(0, "train", number, "server-parts").permutation(31)
        queries = [(inputs[part], targets[part]) for part in np.array_split(order, len(clients))]
        expected = meta_step_by_hand(temporary, queries, 0.25, 0.5)
    assert_equal(found, doubled(expected))


@pytest.mark.parametrize("variant", ["maml", "fomaml", "meta-sgd"])
def test_a_round_of_fedmeta_by_hand(variant):
    """Two rounds of FedMeta, compared with a computation by autograd.

    The rates that "meta-sgd" learns are in the strategy's state. For a tied weight, the state has
    the rates under both names.
    """
    tied, once = federations()
    strategy = FedMeta(
        variant=variant, inner_learning_rate=0.7, meta_learning_rate=0.4, participants=3
    )
    found, asked = run(strategy, tied.app(FedMetaClient), tied.arrays())
    theta = once.arrays()
    rates = {name: np.full_like(array, 0.7) for name, array in theta.items()}
    for number, clients in enumerate(asked, start=1):
        slopes = []
        for client in clients:
            support, query = sets(tied, client, number)
            w, a = leaves(theta), leaves(rates)
            adapted = moved(w, loss_of(w, support), a, create_graph=variant != "fomaml")
            learnt = [*w.values(), *a.values()]
            slopes.append(torch.autograd.grad(loss_of(adapted, query), learnt))
        step = [0.4 * torch.stack(parts).mean(0).numpy() for parts in zip(*slopes, strict=True)]
        theta = {n: p - s for (n, p), s in zip(theta.items(), step[: len(theta)], strict=True)}
        if variant == "meta-sgd":
            rates = {n: p - s for (n, p), s in zip(rates.items(), step[len(theta) :], strict=True)}
    assert_equal(found, doubled(theta))
    if variant == "meta-sgd":
        assert_equal(run_of(strategy).state["rates"], doubled(rates))


def refined(federation):
    server = ServerData(federation.model, federation.samples[3], CPU)
    return ServerRefined(FedAvg(participants=3), server, steps=2, learning_rate=0.1)


METHODS = {
    "fedavg": (lambda _: FedAvg(participants=3), TorchClient),
    "refined": (refined, TorchClient),
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
def test_every_method_treats_a_tied_weight_as_one(name, tmp_path):
    """Four rounds give the weights and losses of the same network without a tied weight."""
    make, client = METHODS[name]
    ends, losses = [], []
    for number, federation in enumerate(federations()):
        strategy = make(federation)
        strategy.evaluate_every = 4
        stateful = "state" in client.injected
        states = {"states": tmp_path / str(number)} if stateful else {}
        grid = federation.grid("2", client, **states)
        ends.append(run_on(strategy, grid, federation.arrays(), 4)[0])
        losses.append(run_of(strategy).evaluation.metrics["loss"])
        begun = federation.arrays()
    assert_equal(ends[0], doubled(ends[1]))
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-12)
    assert abs(ends[1][FIRST] - begun[FIRST]).max() > 1e-3


def test_scaffold_keeps_the_variate_of_a_tied_weight_under_both_names(tmp_path):
    tied, once = federations()
    variates = []
    for number, federation in enumerate((tied, once)):
        strategy = SCAFFOLD(participants=3)
        grid = federation.grid("2", SCAFFOLDClient, states=tmp_path / str(number))
        run_on(strategy, grid, federation.arrays(), 3)
        variates.append(run_of(strategy).state["control"])
    assert abs(variates[1][FIRST]).max() > 1e-3
    assert_equal(variates[0], doubled(variates[1]))


class SharedNorm(nn.Module):
    """A network whose BatchNorm layer has two names, so that its statistics have two names too."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.same, self.head = self.norm, nn.Linear(16, CLASSES)

    def forward(self, images):
        return self.head(self.same(self.first(images.double().flatten(1))))


def test_fedmeta_renews_the_statistics_of_a_tied_batchnorm_under_both_names():
    federation = Federation(LocalTraining(batch_size=1000), model=seeded(SharedNorm))
    found, _ = run(FedMeta(participants=3), federation.app(FedMetaClient), federation.arrays(), 1)
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        assert np.array_equal(found[f"norm.{name}"], found[f"same.{name}"]), name
        changed = found[f"norm.{name}"] != federation.arrays()[f"norm.{name}"]
        assert np.any(changed), name


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head.weight = self.body.weight

    def forward(self, images):
        return self.head(torch.tanh(self.body(images.double().flatten(1))))


def test_fedrep_refuses_a_head_that_is_tied_to_the_body(tmp_path, caplog):
    federation = Federation(LocalTraining(), model=seeded(TiedHead))
    body = {name: a for name, a in federation.arrays().items() if name.startswith("body")}
    grid = federation.grid("1", FedRepClient, states=tmp_path, initial=federation.arrays())
    with pytest.raises(RunFailedError):
        FedRep(max_failed_rounds=1).start(grid, to_record(body), 1)
    assert "FedRep cannot both keep and share a tied weight" in caplog.text
