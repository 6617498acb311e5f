"""Compare Per-FedAvg with a calculation by hand.

The calculation uses the exact product with the Hessian; HF uses a difference of gradients.
"""

import copy

import pytest
import torch

from coprefl_flwr.clients import PerFedAvgClient
from coprefl_flwr.strategies import PerFedAvg
from tests.common.by_hand import assert_equal, loaded, loss_of, mean, run
from tests.common.runs import run_of


def gradient(model, data, create_graph=False):
    loss = loss_of(model, data)
    return torch.autograd.grad(loss, list(model.parameters()), create_graph=create_graph)


def hessian_product(model, data, direction):
    """Return H v exactly: the gradient of (grad f . v)."""
    slopes = gradient(model, data, create_graph=True)
    along = sum((g * v).sum() for g, v in zip(slopes, direction, strict=True))
    return torch.autograd.grad(along, list(model.parameters()))


@torch.no_grad()
def move(model, direction, scale):
    for parameter, part in zip(model.parameters(), direction, strict=True):
        parameter += scale * part


def local_model(federation, start, client, variant, alpha, beta=0.1):
    """Take i + 1 steps of line 7; with full batches, D, D' and D'' are the same samples.

    BatchNorm's statistics come from all passes in train mode. HF's passes at w +- delta v are among
    these passes.
    """
    model, data = loaded(start).train(), federation.whole(client)
    for _ in range(client + 1):
        inner = gradient(model, data)
        move(model, inner, -alpha)
        step = gradient(model, data)
        move(model, inner, alpha)
        if variant == "hf":
            curved = hessian_product(copy.deepcopy(model), data, step)
            for delta in (1e-3, -1e-3):
                move(model, step, delta)
                loss_of(model, data)
                move(model, step, -delta)
            step = [g - alpha * h for g, h in zip(step, curved, strict=True)]
        move(model, step, -beta)
    return model.state_dict()


@pytest.mark.parametrize(("variant", "tolerance"), [("fo", 1e-12), ("hf", 1e-7)])
def test_two_rounds_by_hand(exact_federation, variant, tolerance):
    """The server takes the unweighted mean of the models.

    alpha is 1, so that the Hessian has an effect.
    """
    start = exact_federation.arrays()
    strategy = PerFedAvg(variant=variant, inner_learning_rate=1.0, participants=3)
    arrays, rounds = run(strategy, exact_federation.app(PerFedAvgClient), start)
    expected = start
    for clients in rounds:
        states = [local_model(exact_federation, expected, j, variant, 1.0) for j in clients]
        expected = mean(states, [1, 1, 1], clients)
    assert rounds[0] != rounds[1]
    assert_equal(arrays, expected, tolerance)


def test_client_is_evaluated_after_its_adaptation(exact_federation):
    start, alpha = exact_federation.arrays(), 0.7
    strategy = PerFedAvg(inner_learning_rate=alpha, evaluate_every=1)
    end, _ = run(strategy, exact_federation.app(PerFedAvgClient), start, rounds=1)
    for client in range(4):
        model, data = loaded(end).eval(), exact_federation.whole(client)
        move(model, gradient(model, data), -alpha)
        loss = float(loss_of(model, data))
        assert run_of(strategy).evaluation.metrics["loss"][client] == pytest.approx(loss, rel=1e-9)
