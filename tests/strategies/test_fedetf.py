"""Compare FedETF with a calculation by hand, in which the frame has any orientation."""

import numpy as np
import pytest
import torch

import coprefl_flwr as cp
from coprefl_flwr.clients import FedETFClient
from coprefl_flwr.strategies import FedETF
from tests.common.by_hand import assert_equal, loaded, mean, run_on, sizes
from tests.common.federation import HOSTINGS
from tests.common.networks import CLASSES
from tests.common.runs import run_of

HEAD = ("5.weight", "5.bias")
FIRST = 3.0
"""The factor s of the class scores in round 1."""


def orthogonal(seed):
    """Return a random orthogonal matrix (C, C), such as the paper's U for C features."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((CLASSES, CLASSES)))[0]


def turned(arrays, u):
    """Return arrays with a last layer whose outputs are multiplied by u."""
    return dict(arrays) | {name: u @ np.asarray(arrays[name]) for name in HEAD}


def local_model(start, data, factor, steps, u, rate=0.1):
    """Return the model and s after plain steps on the balanced cross-entropy of the scores."""
    model, (inputs, targets) = loaded(start).train(), data
    frame = u @ (np.sqrt(CLASSES / (CLASSES - 1)) * (np.eye(CLASSES) - 1 / CLASSES))
    # An equiangular tight frame: unit vectors with the same cosine.
    cosines = frame.T @ frame
    assert cosines == pytest.approx(np.where(np.eye(CLASSES), 1, -1 / (CLASSES - 1)))
    counts = torch.tensor([max(int((targets == c).sum()), 1) for c in range(CLASSES)])
    s = torch.tensor(factor, dtype=torch.float64, requires_grad=True)
    weights = [*model.parameters(), s]
    for _ in range(steps):
        z = model(inputs)
        scores = s * (z / z.norm(dim=1, keepdim=True)) @ torch.tensor(frame)
        parts = counts * scores.exp()
        shares = parts[torch.arange(len(targets)), targets] / parts.sum(dim=1)
        gradients = torch.autograd.grad(-shares.log().mean(), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= rate * gradient
    return {name: t.numpy() for name, t in model.state_dict().items()}, s.item()


def by_hand(federation, rounds, u):
    """Return the model and s after rounds with these participants, in u's orientation."""
    arrays, s = turned(federation.arrays(), u), FIRST
    for clients in rounds:
        ends = [local_model(arrays, federation.whole(i), s, i + 1, u) for i in clients]
        arrays = mean([state for state, _ in ends], sizes(clients), clients)
        s = np.average([own for _, own in ends], weights=sizes(clients))
    return turned(arrays, u.T), s


@pytest.mark.parametrize("hosting", [name for name in HOSTINGS if name != "plain"])
def test_three_rounds_by_hand(exact_federation, hosting):
    strategy = FedETF(temperature=FIRST, participants=3, seed=3)
    grid = exact_federation.grid(hosting, FedETFClient)
    arrays, rounds = run_on(strategy, grid, exact_federation.arrays(), rounds=3)
    for u in (np.eye(CLASSES), orthogonal(0)):
        expected, s = by_hand(exact_federation, rounds, u)
        assert_equal(arrays, expected)
        assert run_of(strategy).state["temperature"] == pytest.approx(s, abs=1e-12)
    assert abs(s - FIRST) > 1e-3


def test_class_that_no_sample_has_counts_as_one_sample(exact_federation):
    """Without class 2, the scores of the other classes have the logarithms of their counts."""
    samples = exact_federation.samples[3]
    samples = samples.take(np.flatnonzero(samples.labels < 2))
    client = FedETFClient(exact_federation.model, samples, training=exact_federation.training_of(0))
    start = exact_federation.arrays()
    config = {"server-round": 1, "temperature": FIRST}
    arrays, n, metrics = client.fit(list(start.values()), config)
    data = samples.batch(slice(None), torch.device("cpu"))
    expected, s = local_model(start, data, FIRST, 1, np.eye(CLASSES))
    assert_equal(dict(zip(start, arrays, strict=True)), expected)
    assert (n, metrics["temperature"]) == (len(samples), pytest.approx(s, abs=1e-12))
    assert client.model is exact_federation.model


def test_interrupted_pretraining_keeps_the_factor(tmp_path):
    clients = cp.partition(cp.load_dataset("glyphs"), clients=4, seed=1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, len(clients.classes)))
    how = {"participants": 2, "quiet": True, "history": True, "learning_rate": 0.5}
    start, metrics = cp.pretrain("fedetf", model, clients, 4, **how)
    cp.pretrain("fedetf", model, clients, 2, checkpoint=tmp_path, **how)
    again, resumed = cp.pretrain("fedetf", model, clients, 4, checkpoint=tmp_path, **how)
    assert torch.equal(start[1].weight, again[1].weight)
    assert list(metrics["temperature"]) == list(resumed["temperature"])
    assert metrics["temperature"].nunique() == 4
