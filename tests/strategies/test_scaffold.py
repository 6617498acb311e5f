"""Compare SCAFFOLD with a calculation by hand, with both options for the clients' control variates.

The calculation takes a corrected step as a plain gradient step on L_i(y) + <c - c_i, y>. The
gradient of this loss is the corrected gradient.
"""

import numpy as np
import pytest
import torch

from coprefl_flwr.clients import SCAFFOLDClient
from coprefl_flwr.strategies import SCAFFOLD
from tests.common.by_hand import (
    Leaving,
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


def weights(arrays):
    return {name: array for name, array in arrays.items() if not is_statistic(name)}


def zeros(arrays):
    return {name: np.zeros_like(array) for name, array in weights(arrays).items()}


def local_round(federation, x, client, c, own, variant, rate):
    """Run lines 7 to 13: return client i's model after i + 1 steps, and the new c_i^+."""
    model, data, steps = loaded(x), federation.whole(client), client + 1
    if variant == "I":
        loss = loss_of(model.eval(), data)
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        renewed = dict(zip(weights(x), (g.numpy() for g in gradient), strict=True))

    def objective():
        tilt = sum((torch.tensor(c[n] - own[n]) * p).sum() for n, p in model.named_parameters())
        return loss_of(model, data) + tilt

    descend(model, objective, steps, rate)
    y = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if variant == "II":
        renewed = {n: own[n] - c[n] + (x[n] - y[n]) / (steps * rate) for n in own}
    return y, renewed


def by_hand(federation, rounds, variant="II", eta_g=1.0, x=None, rates=None):
    """Run Algorithm 1 with M = 4 clients; return x, c and the c_i of all participants."""
    x = x or federation.arrays()
    c, own = zeros(x), {}
    for clients, rate in zip(rounds, rates or [0.1] * len(rounds), strict=True):
        before = {i: own.get(i, zeros(x)) for i in clients}
        results = {i: local_round(federation, x, i, c, before[i], variant, rate) for i in clients}
        average = mean([y for y, _ in results.values()], [1] * len(clients), clients)
        x = average | {n: x[n] + eta_g * (average[n] - x[n]) for n in c}
        own |= {i: renewed for i, (_, renewed) in results.items()}
        c = {n: c[n] + sum(own[i][n] - before[i][n] for i in clients) / 4 for n in c}
    return x, c, own


@pytest.mark.parametrize("variant", ["I", "II"])
@pytest.mark.parametrize("eta_g", [1.0, 0.6])
def test_four_rounds_by_hand(exact_federation, tmp_path, variant, eta_g):
    strategy = SCAFFOLD(variant=variant, global_learning_rate=eta_g, participants=2, seed=1)
    grid = exact_federation.grid("2", SCAFFOLDClient, states=tmp_path)
    arrays, rounds = run_on(strategy, grid, exact_federation.arrays(), 4)
    assert len(set(map(tuple, rounds))) > 1
    assert set(rounds[0]) & set(rounds[-1])
    x, c, own = by_hand(exact_federation, rounds, variant, eta_g)
    assert_equal(arrays, x)
    assert_equal(run_of(strategy).state["control"], c)
    assert_same_states(states_of(strategy, tmp_path), own)
    assert max(abs(array).max() for array in own[rounds[0][0]].values()) > 0.01


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_rounds_are_equal_for_every_hosting(exact_federation, tmp_path, hosting):
    grid = exact_federation.grid(hosting, SCAFFOLDClient, states=tmp_path)
    strategy = SCAFFOLD(participants=3, seed=2, min_available_nodes=len(list(grid.get_node_ids())))
    arrays, rounds = run_on(strategy, grid, exact_federation.arrays(), 3)
    first = 2 if hosting == "plain" else 0
    ours = [[client - first for client in clients] for clients in rounds]
    x, c, _ = by_hand(exact_federation, ours)
    assert_equal(arrays, x)
    assert_equal(run_of(strategy).state["control"], c)


@pytest.mark.parametrize(("variant", "hosting"), [("I", "2"), ("II", "2"), ("II", "own")])
def test_client_that_fails_after_writing_its_state_keeps_the_earlier_state(
    exact_federation, tmp_path, variant, hosting
):
    """Client 1 fails in round 2, after it stored its new c_i.

    The failure changes neither x nor c. In round 4, client 1 uses its c_i of round 1.
    """
    written = []
    failing = fails_in_round_2(SCAFFOLDClient, written)
    grid = exact_federation.grid(hosting, failing, states=tmp_path)
    strategy = SCAFFOLD(
        variant=variant, participants=3, seed=7, min_available_nodes=HOSTINGS[hosting][0]
    )
    arrays, rounds = run_on(strategy, grid, exact_federation.arrays(), 4)
    assert [1 in clients for clients in rounds] == [True, True, False, True]
    rounds[1].remove(1)
    x, c, own = by_hand(exact_federation, rounds, variant)
    assert_equal(arrays, x)
    assert_equal(run_of(strategy).state["control"], c)
    assert_same_states(states_of(strategy, tmp_path), own)
    _, _, before = by_hand(exact_federation, rounds[:1], variant)
    assert abs(written[0]["2.weight"] - before[1]["2.weight"]).max() > 1e-3


def test_control_is_divided_by_all_clients_also_those_that_left(exact_federation, tmp_path):
    """Client 3 leaves in round 1, after its reply; c is still divided by four clients."""
    app = exact_federation.app(SCAFFOLDClient, states=tmp_path)
    strategy = SCAFFOLD(min_available_nodes=4)
    arrays, rounds = run_on(strategy, Leaving(app, nodes=4), exact_federation.arrays(), 2)
    assert rounds == [[0, 1, 2, 3], [0, 1, 2]]
    x, c, _ = by_hand(exact_federation, rounds)
    assert_equal(arrays, x)
    assert_equal(run_of(strategy).state["control"], c)
