"""Compare FedRep with a calculation by hand.

The clients keep their heads, and the server averages the bodies.
"""

import pytest
import torch

from coprefl_flwr.clients import FedRepClient
from coprefl_flwr.strategies import FedRep
from tests.common.by_hand import (
    assert_equal,
    assert_same_states,
    loaded,
    loss_of,
    mean,
    run_on,
    states_of,
)
from tests.common.federation import HOSTINGS
from tests.common.runs import run_of

HEAD = ("5.weight", "5.bias")


def body_of(arrays):
    return {name: array for name, array in arrays.items() if name not in HEAD}


def descend_on(model, data, names, steps, rate=0.1):
    """Take plain gradient steps on the parameters `names` only."""
    model.train()
    chosen = [p for name, p in model.named_parameters() if name in names]
    for _ in range(steps):
        gradients = torch.autograd.grad(loss_of(model, data), chosen)
        with torch.no_grad():
            for parameter, gradient in zip(chosen, gradients, strict=True):
                parameter -= rate * gradient


def by_hand(federation, rounds):
    """Return the body and {client: head} after rounds with these participants."""
    start = federation.arrays()
    body, heads = body_of(start), {}
    for clients in rounds:
        states = []
        for i in clients:
            model = loaded(body | heads.get(i, {name: start[name] for name in HEAD}))
            weights = {name for name, _ in model.named_parameters()}
            for names in (set(HEAD), weights - set(HEAD)):
                descend_on(model, federation.whole(i), names, i + 1)
            end = {name: t.detach().numpy() for name, t in model.state_dict().items()}
            heads[i] = {name: end[name] for name in HEAD}
            states.append(body_of(end))
        body = mean(states, [1] * len(clients), clients)
    return body, heads


@pytest.mark.parametrize("hosting", [name for name in HOSTINGS if name != "plain"])
def test_three_rounds_by_hand(exact_federation, tmp_path, hosting):
    start = exact_federation.arrays()
    grid = exact_federation.grid(hosting, FedRepClient, states=tmp_path, initial=start)
    strategy = FedRep(participants=3, seed=2, min_available_nodes=len(list(grid.get_node_ids())))
    arrays, rounds = run_on(strategy, grid, body_of(start), 3)
    assert len({tuple(clients) for clients in rounds}) > 1
    body, heads = by_hand(exact_federation, rounds)
    assert_equal(arrays, body)
    assert_same_states(states_of(strategy, tmp_path), heads)


def test_client_is_evaluated_with_the_global_body_and_its_head(exact_federation, tmp_path):
    start = exact_federation.arrays()
    grid = exact_federation.grid("2", FedRepClient, states=tmp_path, initial=start)
    strategy = FedRep(evaluate_every=2)
    run_on(strategy, grid, body_of(start), 2)
    body, heads = by_hand(exact_federation, [range(4)] * 2)
    for client in range(4):
        model = loaded(body | heads[client]).eval()
        loss = float(loss_of(model, exact_federation.whole(client)))
        assert run_of(strategy).evaluation.metrics["loss"][client] == pytest.approx(loss, rel=1e-9)
