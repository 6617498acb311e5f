"""Compare FedDyn with a calculation by hand; clients miss rounds and take part again later."""

import numpy as np
import pytest
import torch

from coprefl_flwr.clients import FedDynClient
from coprefl_flwr.strategies import FedDyn
from tests.common.by_hand import (
    assert_equal,
    assert_same_states,
    descend,
    fails_in_round_2,
    is_statistic,
    loaded,
    loss_of,
    mean,
    run_on,
    states_of,
)
from tests.common.federation import HOSTINGS
from tests.common.runs import run_of


def local_model(federation, theta, client, dual, alpha):
    """Return client k's model after k + 1 steps.

    The loss is L_k(w) - <lambda_k, w> + alpha/2 ||w - theta||^2.
    """
    model, data = loaded(theta), federation.whole(client)
    linear = {name: torch.tensor(array) for name, array in dual.items()}
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}

    def objective():
        value = loss_of(model, data)
        for name, p in model.named_parameters():
            value = value - (linear[name] * p).sum()
            value = value + alpha / 2 * ((p - anchor[name]) ** 2).sum()
        return value

    descend(model, objective, client + 1)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def by_hand(federation, rounds, alpha):
    """Run Algorithm 1 with m = 4 clients; return theta, h and the lambda_k of all participants."""
    theta = federation.arrays()
    zeros = {n: np.zeros_like(array) for n, array in theta.items() if not is_statistic(n)}
    h, duals = zeros, {}
    for clients in rounds:
        before = {k: duals.get(k, zeros) for k in clients}
        local = {k: local_model(federation, theta, k, before[k], alpha) for k in clients}
        for k in clients:
            duals[k] = {n: before[k][n] - alpha * (local[k][n] - theta[n]) for n in zeros}
        h = {n: h[n] - alpha / 4 * sum(local[k][n] - theta[n] for k in clients) for n in zeros}
        average = mean(list(local.values()), [1] * len(clients), clients)
        theta = average | {n: average[n] - h[n] / alpha for n in zeros}
    return theta, h, duals


@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_four_rounds_by_hand(exact_federation, tmp_path, alpha):
    strategy = FedDyn(alpha=alpha, participants=2, seed=1)
    grid = exact_federation.grid("2", FedDynClient, states=tmp_path)
    arrays, rounds = run_on(strategy, grid, exact_federation.arrays(), 4)
    assert len(set(map(tuple, rounds))) > 1
    assert set(rounds[0]) & set(rounds[-1])
    theta, h, duals = by_hand(exact_federation, rounds, alpha)
    assert_equal(arrays, theta)
    assert_equal(run_of(strategy).state["drift"], h)
    assert_same_states(states_of(strategy, tmp_path), duals)


@pytest.mark.parametrize("hosting", ["2", "own"])
def test_client_that_fails_after_writing_its_state_keeps_the_earlier_state(
    exact_federation, tmp_path, hosting
):
    """Client 1 fails in round 2, after it stored its new lambda.

    The failure changes neither theta nor h. In round 4, client 1 uses its lambda of round 1.
    """
    written = []
    failing = fails_in_round_2(FedDynClient, written)
    grid = exact_federation.grid(hosting, failing, states=tmp_path)
    strategy = FedDyn(alpha=0.3, participants=3, seed=7, min_available_nodes=HOSTINGS[hosting][0])
    arrays, rounds = run_on(strategy, grid, exact_federation.arrays(), 4)
    assert [1 in clients for clients in rounds] == [True, True, False, True]
    rounds[1].remove(1)
    theta, h, duals = by_hand(exact_federation, rounds, 0.3)
    assert_equal(arrays, theta)
    assert_equal(run_of(strategy).state["drift"], h)
    assert_same_states(states_of(strategy, tmp_path), duals)
    _, _, before = by_hand(exact_federation, rounds[:1], 0.3)
    assert abs(written[0]["2.weight"] - before[1]["2.weight"]).max() > 1e-3
