"""Rounds with other losses than cross-entropy, compared with a calculation by hand.

The targets are numbers (a mean squared error) or several labels of a sample (a binary
cross-entropy). All batches are whole sets, so that nothing is random but the support sets.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr import seeds
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.loss import CROSS_ENTROPY, Loss
from tests.strategies.test_cyclic import record_chains

SIZES = (6, 8, 10, 15)
RATE, STEPS = 0.1, 3
FULL = {"local_steps": STEPS, "batch_size": 100, "learning_rate": RATE}


class Affine(nn.Module):
    """A model of float32 inputs: one linear layer, in float64 by default."""

    def __init__(self, outputs, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, outputs).to(dtype)

    def forward(self, inputs):
        return self.layer(inputs.to(self.layer.weight.dtype))


def sites(kind):
    """Return (inputs, targets) of each client: one number, or four labels of a sample."""
    rng = np.random.default_rng(0)
    parts = []
    for number, size in enumerate(SIZES):
        inputs = torch.tensor(rng.standard_normal((size, 3)), dtype=torch.float32)
        if kind == "numbers":
            targets = (inputs.sum(dim=1, keepdim=True) + number) * 0.5
        else:
            targets = (inputs @ torch.ones(3, 4) + torch.arange(4) > number).float()
        parts.append((inputs, targets))
    return parts


def of_labels(outputs, targets):
    """Return the binary cross-entropy; with float32 labels torch would round it to float32."""
    return functional.binary_cross_entropy_with_logits(outputs, targets.double())


LOSSES = {"numbers": (functional.mse_loss, 1), "labels": (of_labels, 4)}


def gradients(model, loss, data, *, graph=False):
    inputs, targets = data
    return torch.autograd.grad(
        loss(model(inputs), targets), list(model.parameters()), create_graph=graph
    )


def move(model, direction, rate):
    with torch.no_grad():
        for weight, change in zip(model.parameters(), direction, strict=True):
            weight -= rate * change


def at(weights, outputs):
    model = Affine(outputs)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    return model


def values(model):
    return [weight.detach().clone() for weight in model.parameters()]


def average(states, shares):
    total = sum(shares)
    return [
        sum(w * s for w, s in zip(one, shares, strict=True)) / total
        for one in zip(*states, strict=True)
    ]


def locally(weights, outputs, loss, data, correction=None):
    """Take STEPS gradient steps; `correction` is added to every gradient."""
    model = at(weights, outputs)
    for _ in range(STEPS):
        step = gradients(model, loss, data)
        if correction:
            step = [g + c for g, c in zip(step, correction, strict=True)]
        move(model, step, RATE)
    return values(model)


def fedavg(weights, outputs, loss, parts, server_round):
    return average([locally(weights, outputs, loss, data) for data in parts], SIZES)


def per_fedavg(weights, outputs, loss, parts, server_round):
    """The first-order variant; all three batches of a step are the whole set."""
    states = []
    for data in parts:
        model = at(weights, outputs)
        for _ in range(STEPS):
            inner = at(values(model), outputs)
            move(inner, gradients(inner, loss, data), 0.2)
            move(model, gradients(inner, loss, data), RATE)
        states.append(values(model))
    return average(states, [1] * len(parts))


def coprefl(weights, outputs, loss, parts, server_round):
    """Algorithm 1, with autograd through L_meta itself."""
    states, counts, queries = [], [], []
    for client, (inputs, targets) in enumerate(parts):
        key = seeds.generator(0, "pretrain", server_round, client, "support")
        support, query = split_in_two(len(inputs), 0.8, key)
        states.append(locally(weights, outputs, loss, (inputs[support], targets[support])))
        counts.append(len(support))
        queries.append((inputs[query], targets[query]))
    model = at(average(states, counts), outputs)
    losses = torch.stack([loss(model(inputs), targets) for inputs, targets in queries])
    meta = 0.25 * losses.sum() + 0.75 * ((losses - losses.mean()) ** 2).mean()
    move(model, torch.autograd.grad(meta, list(model.parameters())), 0.05)
    return values(model)


def run(method, kind, rounds=2):
    loss, outputs = LOSSES[kind]
    clients = [TensorDataset(*part) for part in sites(kind)]
    return cp.pretrain(method, Affine(outputs), clients, rounds, quiet=True, loss=loss, **FULL)


def assert_weights(model, expected):
    for found, wanted in zip(values(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(
    ("method", "one_round"),
    [
        (cp.FedAvg(), fedavg),
        (cp.PerFedAvg(variant="fo", inner_learning_rate=0.2), per_fedavg),
        (cp.CoPreFL(gamma=0.25, meta_learning_rate=0.05), coprefl),
    ],
    ids=["fedavg", "per-fedavg", "coprefl"],
)
def test_two_rounds_by_hand(method, one_round, kind):
    loss, outputs = LOSSES[kind]
    expected = values(Affine(outputs))
    for server_round in (1, 2):
        expected = one_round(expected, outputs, loss, sites(kind), server_round)
    assert_weights(run(method, kind), expected)


def test_cyclic_by_hand():
    strategy = cp.Cyclic(participants=3)
    chains = record_chains(strategy)
    loss, outputs = LOSSES["numbers"]
    clients = [TensorDataset(*part) for part in sites("numbers")]
    stages = cp.pretrain(
        strategy, Affine(outputs), clients, 2, quiet=True, loss=loss, hooks=[], **FULL
    )
    expected = values(Affine(outputs))
    for client in (client for chain in chains for client in chain):
        expected = locally(expected, outputs, loss, sites("numbers")[client])
    assert len(chains) == 2
    assert_weights(stages, expected)


def test_scaffold_by_hand():
    loss, outputs = LOSSES["numbers"]
    parts, x = sites("numbers"), values(Affine(outputs))
    c = [torch.zeros_like(weight) for weight in x]
    variates = [c] * len(parts)
    for _ in range(2):
        states, renewed = [], []
        for own, data in zip(variates, parts, strict=True):
            correction = [a - b for a, b in zip(c, own, strict=True)]
            states.append(locally(x, outputs, loss, data, correction))
            both = zip(own, c, x, states[-1], strict=True)
            renewed.append([o - a + (w - y) / (STEPS * RATE) for o, a, w, y in both])
        x, c = average(states, [1] * 4), average(renewed, [1] * 4)
        variates = renewed
    assert_weights(run(cp.SCAFFOLD(), "numbers"), x)


@pytest.mark.parametrize("method", ["qffl:q=1", "fedmeta", "moon", "feddyn", "coprefl-std"])
def test_other_methods_lower_a_mean_squared_error(method):
    loss, outputs = LOSSES["numbers"]
    inputs, targets = (torch.cat(column) for column in zip(*sites("numbers"), strict=True))
    model = run(method, "numbers", rounds=10)
    assert loss(model(inputs), targets) < 0.7 * loss(Affine(outputs)(inputs), targets)


def test_weights_of_classes_by_place_are_those_of_the_module():
    inputs = torch.cat([part for part, _ in sites("numbers")])
    clients = [TensorDataset(inputs, torch.arange(len(inputs)) % 2)]
    module = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))
    by_place = {"name": "torch.nn:CrossEntropyLoss", "weight": [1, 5]}
    found = [
        cp.pretrain("fedavg", Affine(2, torch.float32), clients, 1, quiet=True, loss=loss, **FULL)
        for loss in (module, by_place, "torch.nn:CrossEntropyLoss:weight=1&5", "cross-entropy")
    ]
    assert_weights(found[1], values(found[0]))
    assert_weights(found[2], values(found[0]))
    assert not torch.equal(found[3].layer.weight, found[0].layer.weight)


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        ("mse", "unknown loss 'mse': known are cross-entropy, or module:NAME"),
        ("torch.nn:MSELos", "torch.nn:MSELos: unknown name 'MSELos': did you mean 'MSELoss'?"),
        (lambda outputs, targets: outputs - targets, "gives float64 (2, 1); a scalar with"),
        (lambda outputs, targets: 0.5, "gives float; a scalar with a gradient is needed"),
        ("torch.nn.functional:nll_loss", "outputs float64 (2, 1) and targets float32 (2, 1):"),
        ("cross-entropy", "loss = cross-entropy: outputs float64 (2, 1) and targets float32"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_before_any_work(loss, line):
    clients = [TensorDataset(*part) for part in sites("numbers")]
    with pytest.raises(cp.SettingsError) as caught:
        cp.pretrain("fedavg", Affine(1), clients, 1, quiet=True, loss=loss)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def hash_of(loss):
    return Loss.read(loss).identity()["loss"]


@pytest.mark.parametrize(
    "made",
    [
        lambda value: nn.CrossEntropyLoss(weight=torch.tensor([1.0, value])),
        lambda value: nn.CrossEntropyLoss(label_smoothing=value / 10),
        lambda value: nn.HuberLoss(delta=value),
    ],
)
def test_results_of_a_module_with_other_arguments_have_another_key(made):
    assert hash_of(made(2.0)) == hash_of(made(2.0)) != hash_of(made(3.0))


def test_default_loss_of_one_output_is_refused():
    """The cross-entropy of one output is 0 for all weights."""
    with pytest.raises(SettingsError, match=r"^without loss=, .*two or more outputs: pass loss="):
        CROSS_ENTROPY(torch.ones(4, 1), torch.zeros(4, 1))


def test_sum_of_the_loss_over_samples_is_their_number_times_the_mean():
    """A sample may have many targets, as in segmentation, or one class."""
    for size in ((), (4, 5)):
        outputs, targets = torch.randn(6, 3, *size), torch.randint(0, 3, (6, *size))
        mean = CROSS_ENTROPY(outputs, targets)
        torch.testing.assert_close(CROSS_ENTROPY.summed(outputs, targets), 6 * mean)
