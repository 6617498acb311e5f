"""Compare MOON with a calculation by hand, and with FedAvg if mu is 0.

The calculation decides which clients have a previous model, and which models are the references.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.clients import MOONClient, TorchClient
from coprefl_flwr.strategies import MOON, FedAvg
from tests.common.by_hand import (
    assert_equal,
    assert_same_states,
    descend,
    loaded,
    loss_of,
    mean,
    run,
    run_on,
    states_of,
)
from tests.common.federation import SIZES, Federation
from tests.common.networks import CLASSES


def cosine(a, b):
    return (a * b).sum(dim=1) / (a.norm(dim=1) * b.norm(dim=1))


def local_model(federation, start, client, previous, mu, tau):
    """Return client i's model after i + 1 steps; z is the input of the last layer."""
    model, (inputs, targets) = loaded(start), federation.whole(client)
    received = loaded(start).eval()[:-1](inputs).detach()
    last = loaded(previous).eval()[:-1](inputs).detach() if previous else None

    def objective():
        if last is None:
            return loss_of(model, (inputs, targets))
        z = model[:-1](inputs)
        near, far = (torch.exp(cosine(z, other) / tau) for other in (received, last))
        return cross_entropy(model[-1](z), targets) + mu * -torch.log(near / (near + far)).mean()

    descend(model, objective, client + 1)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def by_hand(federation, rounds, mu, tau):
    """Run Algorithm 1; return the global model and the last local model of each participant."""
    w, last = federation.arrays(), {}
    for clients in rounds:
        models = [local_model(federation, w, i, last.get(i), mu, tau) for i in clients]
        last |= dict(zip(clients, models, strict=True))
        w = mean(models, [SIZES[i] for i in clients], clients)
    return w, last


@pytest.mark.parametrize(("mu", "tau"), [(0.1, 0.5), (5.0, 0.2)])
def test_four_rounds_by_hand(exact_federation, tmp_path, mu, tau):
    strategy = MOON(mu=mu, temperature=tau, participants=2, seed=1)
    grid = exact_federation.grid("2", MOONClient, states=tmp_path)
    arrays, rounds = run_on(strategy, grid, exact_federation.arrays(), 4)
    assert len(set(map(tuple, rounds))) > 1
    assert set(rounds[0]) & set(rounds[-1])
    w, last = by_hand(exact_federation, rounds, mu, tau)
    assert_equal(arrays, w)
    assert_same_states(states_of(strategy, tmp_path), last)


def test_mu_zero_is_fedavg_with_dropout_and_small_batches(tmp_path):
    """The models are equal to the last bit.

    The references draw no dropout masks, and the trained model makes no additional passes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, CLASSES),
        )
    federation = Federation.stochastic()
    federation = Federation(federation.training, model=model)
    start = federation.arrays()
    averaged, _ = run(FedAvg(participants=3), federation.app(TorchClient), start, 3)
    app = federation.app(MOONClient, states=tmp_path)
    contrasted, _ = run(MOON(mu=0.0, participants=3), app, start, 3)
    assert_equal(contrasted, averaged, tolerance=0)
