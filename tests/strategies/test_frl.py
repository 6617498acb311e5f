"""Compare Few-Round Learning with episodes by hand: plain autograd in float64, with BatchNorm."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coprefl_flwr import seeds
from coprefl_flwr.clients import FRLClient
from coprefl_flwr.clients.frl import prototype_loss
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.strategies import FRL
from tests.common.by_hand import assert_equal, loaded, mean, run_on
from tests.common.federation import HOSTINGS, Federation
from tests.common.networks import double_model

RATE, BETA, DECAY, WEIGHT = 0.1, 0.3, 0.05, 0.7


@pytest.fixture
def federation():
    """Clients with two or three classes; client i takes i + 1 steps, here with weight decay."""
    federation = Federation.exact().keep([(0, 1, 2), (0, 1), (1, 2), (0, 1, 2)])
    federation.training = replace(federation.training, weight_decay=DECAY)
    return federation


def sets(federation, client, number):
    """Return the support and the query set of a client in an episode, each (inputs, targets)."""
    inputs, targets = federation.whole(client)
    key = (0, "train", number, client, "support")
    parts = split_in_two(len(targets), 0.6, seeds.generator(*key))
    return [(inputs.double()[rows], targets[rows]) for rows in parts]


def class_means(z, targets):
    return {y: z[targets == y].mean(0) for y in sorted(set(targets.tolist()))}


def loss_by_hand(z, targets, prototypes):
    """Return the mean over the samples; a sample whose class has no prototype adds 0."""
    labels, total = list(prototypes), 0.0
    for row, y in zip(z, targets.tolist(), strict=True):
        if y in prototypes:
            scores = torch.stack([-((row - prototypes[c]) ** 2).sum() for c in labels])
            total = total + cross_entropy(scores[None], torch.tensor([labels.index(y)]))
    return total / len(targets)


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


@torch.no_grad()
def step(model, slopes, rate):
    """Take a step with weight decay on the weights that have a gradient: all but the last layer."""
    for p, slope in zip(model.parameters(), slopes, strict=True):
        if slope is not None:
            p -= rate * (slope + DECAY * p)


def simulated(model, data, shared, steps):
    """Train on a support set; return the class means of the trained model, in train mode."""
    inputs, targets = data
    for _ in range(steps):
        z = model.train()[:-1](inputs)
        loss = loss_by_hand(z, targets, class_means(z, targets))
        if shared:
            loss = loss + WEIGHT * loss_by_hand(z, targets, shared)
        step(model, gradients(model, loss), RATE)
    return class_means(model.train()[:-1](inputs).detach(), targets)


def meta_steps(model, phi, data, own, shared, steps):
    """Take the first step from phi, against the gradient at the model, and the others as usual."""
    inputs, targets = data
    for number in range(steps):
        z = model.train()[:-1](inputs)
        loss = loss_by_hand(z, targets, own) + WEIGHT * loss_by_hand(z, targets, shared)
        slopes = gradients(model, loss)
        if number == 0:
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(torch.from_numpy(phi[name]))
        step(model, slopes, BETA)


def episode_by_hand(federation, phi, clients, number, rounds):
    data = {client: sets(federation, client, number) for client in clients}
    sizes = [[len(data[client][part][1]) for client in clients] for part in (0, 1)]
    theta, shared, equal = phi, {}, [1] * len(clients)
    for _ in range(rounds):
        models = {client: loaded(theta) for client in clients}
        own = {i: simulated(models[i], data[i][0], shared, i + 1) for i in clients}
        theta = mean([m.state_dict() for m in models.values()], equal, clients, sizes[0])
        shared = {
            y: torch.stack([own[i][y] for i in clients if y in own[i]]).mean(0)
            for y in sorted({y for found in own.values() for y in found})
        }
    models = {client: loaded(theta) for client in clients}
    for i in clients:
        meta_steps(models[i], phi, data[i][1], own[i], shared, i + 1)
    return mean([m.state_dict() for m in models.values()], equal, clients, sizes[1])


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("hosting", [name for name in HOSTINGS if name != "plain"])
def test_two_episodes_by_hand(federation, tmp_path, hosting, rounds):
    start = federation.arrays()
    grid = federation.grid(hosting, FRLClient, states=tmp_path, support_fraction=0.6)
    how = {"meta_learning_rate": BETA, "prototype_weight": WEIGHT, "evaluate_every": 0}
    strategy = FRL(episode_rounds=rounds, participants=3, min_available_nodes=1, **how)
    arrays, drawn = run_on(strategy, grid, start)
    expected = start
    for number, clients in enumerate(drawn, start=1):
        expected = episode_by_hand(federation, expected, clients, number, rounds)
    assert drawn[0] != drawn[1]
    assert_equal(arrays, expected, 1e-11)
    for name in ("5.weight", "5.bias"):  # The last layer stays as drawn.
        np.testing.assert_array_equal(arrays[name], start[name])


def test_sample_without_a_prototype_adds_nothing():
    z, targets = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 2])
    found = {"prototypes": np.array([[1.0, 1], [4, 0], [0, 0]]), "counts": np.array([0.5, 1, 0])}
    # Class 0 is at (2, 2), and class 1 at (4, 0): squared distances 1 and 13.
    expected = np.log1p(np.exp(-12.0)) / 2
    assert float(prototype_loss(z, targets, found)) == pytest.approx(expected, rel=1e-5)
    found["counts"][:] = 0
    assert float(prototype_loss(z, targets, found)) == 0.0


@pytest.mark.parametrize("change", ["frozen", "head first"])
def test_network_that_does_not_fit_is_refused(federation, change):
    model = double_model()
    if change == "frozen":
        model[:-1].requires_grad_(False)
    else:
        model = torch.nn.ModuleDict({"last": model[-1], "body": model[:-1]})
        model.forward = lambda inputs: model["last"](model["body"](inputs))
    with pytest.raises(SettingsError, match="frl: the network needs trained layers, followed by"):
        FRLClient.check_network(model, federation.samples[0])
