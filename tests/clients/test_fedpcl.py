"""Compare FedPCL's losses with loops over eq. 8 and 9, and test rare cases of the client."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from coprefl_flwr.clients import FedPCLClient
from coprefl_flwr.clients.fedpcl import prototype_contrast, supervised_contrast
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.noise import Noise
from coprefl_flwr.models import model_arrays
from tests.common.clients import CONFIG, later, make
from tests.common.federation import CPU
from tests.common.networks import CLASSES, ToDouble

TAU = 0.3
REQUEST = {**CONFIG, "temperature": TAU, "fedpcl-variant": "both"}


def unit(rng, *shape):
    values = torch.from_numpy(rng.normal(size=shape))
    return values / values.norm(dim=-1, keepdim=True)


def by_loops(z, targets, sets, classes):
    """Sum eq. 9 over samples, sets and classes, one number at a time; eq. 8 has one set."""
    total = 0.0
    for sample, y in zip(z, targets, strict=True):
        for prototypes in sets:
            similar = [math.exp(float(sample @ prototypes[a]) / TAU) for a in classes]
            prototypes_sent = similar[classes.index(int(y))]
            total -= math.log(prototypes_sent / (sum(similar) - prototypes_sent)) / len(sets)
    return total / len(z)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("absent", [None, 2])
def test_losses_are_equations_8_and_9(m, absent):
    rng = np.random.default_rng(3)
    classes = [j for j in range(5) if j != absent]
    targets = torch.tensor(rng.choice(classes, 12))
    z, sets = unit(rng, 12, 6), unit(rng, m, 5, 6)
    exists = torch.tensor([j in classes for j in range(5)])
    if absent is not None:
        sets[:, absent] = 0
    loss = prototype_contrast(z, targets, sets, exists, TAU).mean()
    assert float(loss) == pytest.approx(by_loops(z, targets, sets, classes), rel=1e-12)


def test_supervised_contrastive_loss_by_loops():
    """Samples 0, 1 and 4 are of class 0, and samples 2 and 3 are of class 1.

    Sample 5 is the only sample of class 2, so it is not an anchor.
    """
    z, targets = unit(np.random.default_rng(5), 6, 4), torch.tensor([0, 0, 1, 1, 0, 2])
    total = 0.0
    for i in range(5):
        others = [a for a in range(6) if a != i]
        every = sum(math.exp(float(z[i] @ z[a]) / TAU) for a in others)
        alike = [p for p in others if targets[p] == targets[i]]
        logs = [math.log(math.exp(float(z[i] @ z[p]) / TAU) / every) for p in alike]
        total -= sum(logs) / len(alike)
    loss = supervised_contrast(z, targets, TAU)
    assert float(loss) == pytest.approx(total / 5, rel=1e-12)
    assert float(supervised_contrast(z[4:], targets[4:], TAU)) == 0


def head():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return nn.Sequential(ToDouble(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU()).double()


@pytest.fixture
def client(federation, tmp_path):
    model = head()
    client, _ = make(FedPCLClient, model, federation, tmp_path)
    client.initial = model_arrays(model)
    client.test = federation.samples[2]
    return client


def random_set(rng, classes):
    """Return random prototypes of `classes`, with zeros for other classes, and the counts."""
    rows = unit(rng, CLASSES, 6).numpy()
    counts = np.array([5.0 * (j in classes) for j in range(CLASSES)])
    return [rows * (counts[:, None] > 0), counts]


def test_client_without_global_prototypes_takes_no_step(client):
    (prototypes_sent, counts), n, metrics = client.fit([np.zeros((3, 6)), np.zeros(3)], REQUEST)
    labels = client.train.labels
    assert (n, metrics) == (len(labels), {"loss": 0.0})
    assert counts.tolist() == np.bincount(labels, minlength=3).tolist()
    model = head().eval()
    inputs, _ = client.train.batch(slice(None), CPU)
    z = torch.nn.functional.normalize(model(inputs)).detach().numpy()
    for j in range(3):
        mean = z[labels == j].mean(axis=0)
        assert prototypes_sent[j] == pytest.approx(mean / np.linalg.norm(mean), rel=1e-12)
    state = client.state.read(later(REQUEST))
    assert all(np.array_equal(state[n], a) for n, a in client.initial.items())


def test_class_without_a_prototype_is_not_in_the_loss(client):
    """The client learns the same without the samples of this class.

    The client sends a prototype of this class nevertheless.
    """
    rng = np.random.default_rng(1)
    shared = random_set(rng, {0, 2})
    request = {**REQUEST, "extra": {"local": {"0": shared[0], "7": random_set(rng, {0, 2})[0]}}}
    (prototypes_sent, counts), _, _ = client.fit(shared, request)
    learnt = client.state.read(later(REQUEST))
    assert counts[1] > 0
    assert np.linalg.norm(prototypes_sent[1]) == pytest.approx(1)
    client.train = client.train.take(np.flatnonzero(client.train.labels != 1))
    client.fit(shared, request)
    without = client.state.read(later(REQUEST))
    assert all(np.array_equal(learnt[name], without[name]) for name in learnt)
    assert not np.array_equal(learnt["2.weight"], client.initial["2.weight"])


def normed(client):
    """Give a client the head of Table 7, with BatchNorm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        layers = ToDouble(), nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU()
        client.model = nn.Sequential(*layers).double()
    client.initial = model_arrays(client.model)


@pytest.mark.parametrize("variant", ["both", "contrastive"])
def test_single_usable_sample_with_batch_norm_is_no_step(client, variant):
    """An earlier version failed in every round with this client.

    So no client learnt the class that only this client has.
    """
    normed(client)
    labels = client.train.labels
    single, alone = np.flatnonzero(labels == 0)[:1], np.flatnonzero(labels == 2)
    client.train = client.train.take(np.concatenate([single, alone]))
    shared = random_set(np.random.default_rng(1), {0, 1})
    request = {**REQUEST, "fedpcl-variant": variant, "extra": {"local": {"0": shared[0]}}}
    (prototypes_sent, counts), n, metrics = client.fit(shared, request)
    assert (n, metrics) == (1 + len(alone), {"loss": 0.0})
    assert counts.tolist() == [1, 0, len(alone)]
    model = client.model.eval()
    model.load_state_dict({k: torch.from_numpy(np.array(a)) for k, a in client.initial.items()})
    inputs, _ = client.train.batch(np.arange(1, n), CPU)
    mean = torch.nn.functional.normalize(model(inputs)).detach().numpy().mean(axis=0)
    assert prototypes_sent[2] == pytest.approx(mean / np.linalg.norm(mean), rel=1e-12)
    state = client.state.read(later(request))
    assert all(np.array_equal(state[name], a) for name, a in client.initial.items())
    next_set = random_set(np.random.default_rng(1), {0, 2})
    client.fit(next_set, later(request, extra={"local": {"0": next_set[0]}}))
    learnt = client.state.read(later(later(request)))
    assert not np.array_equal(learnt["2.weight"], client.initial["2.weight"])


def test_prediction_uses_local_prototypes_padded_with_global_prototypes(client):
    """The client has samples of classes 0 and 1, and uses the global prototype of class 2.

    A class without a global prototype is never predicted if the client does not have the class.
    """
    client.train = client.train.take(np.flatnonzero(client.train.labels < 2))
    rng = np.random.default_rng(9)
    rows, counts = random_set(rng, {0, 1, 2})
    loss, n, metrics = client.evaluate([rows, counts], REQUEST)
    model = head().eval()

    def z(samples):
        inputs, _ = samples.batch(slice(None), CPU)
        return torch.nn.functional.normalize(model(inputs)).detach().numpy()

    prototypes_sent = np.stack(
        [z(client.train)[client.train.labels == j].mean(axis=0) for j in (0, 1)]
    )
    prototypes_sent /= np.linalg.norm(prototypes_sent, axis=1, keepdims=True)
    scores = z(client.test) @ np.vstack([prototypes_sent, rows[2:]]).T
    labels = client.test.labels
    assert n == len(labels)
    assert metrics == {"correct": int((scores.argmax(axis=1) == labels).sum())}
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    assert loss == pytest.approx(-logs[np.arange(n), labels].mean(), rel=1e-9)
    _, _, alone = client.evaluate([rows * [[1], [1], [0]], counts * [1, 1, 0]], REQUEST)
    scores = z(client.test) @ prototypes_sent.T
    assert alone == {"correct": int((scores.argmax(axis=1) == labels).sum())}


def test_noise_is_added_only_to_prototypes_of_present_classes(client):
    client.train = client.train.take(np.flatnonzero(client.train.labels < 2))
    (plain, _), _, _ = client.fit([np.zeros((3, 6)), np.zeros(3)], REQUEST)
    client.noise = Noise(kind="gaussian", scale=0.0, share=0.25)
    (faded, _), _, _ = client.fit([np.zeros((3, 6)), np.zeros(3)], REQUEST)
    assert faded[:2] == pytest.approx(0.75 * plain[:2], rel=1e-6)
    client.noise = Noise(kind="laplace", scale=0.5, share=0.25)
    (noisy, _), _, _ = client.fit([np.zeros((3, 6)), np.zeros(3)], REQUEST)
    assert abs(noisy[:2] - faded[:2]).min() > 1e-6
    assert not noisy[2].any()


def test_client_without_initial_weights_is_refused(client):
    client.initial = None
    with pytest.raises(SettingsError, match="has personal weights: pass initial=WEIGHTS"):
        client.fit([np.zeros((3, 6)), np.zeros(3)], REQUEST)
