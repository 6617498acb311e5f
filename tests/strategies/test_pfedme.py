"""Compare pFedMe with a calculation by hand.

For every batch, a client takes K steps on theta, which a penalty pulls towards w, and then one step
on w. The server mixes the mean of the clients' w into the global w.
"""

import pytest
import torch

from coprefl_flwr.clients import PFedMeClient
from coprefl_flwr.strategies import PFedMe
from tests.common.by_hand import (
    assert_equal,
    assert_same_states,
    is_statistic,
    loaded,
    loss_of,
    mean,
    run_on,
    states_of,
)
from tests.common.federation import HOSTINGS
from tests.common.runs import run_of

LAMBDA, K, ETA, BETA = 2.0, 3, 0.2, 0.6


def local(federation, start, client, rate=0.1):
    """Return (w, theta) of client i after i + 1 batches, each with all samples of the client."""
    model, data = loaded(start).train(), federation.whole(client)
    names = [name for name, _ in model.named_parameters()]
    w = {name: torch.from_numpy(start[name].copy()) for name in names}
    for _ in range(client + 1):
        for _ in range(K):
            near = sum(((p - w[n]) ** 2).sum() for n, p in model.named_parameters())
            objective = loss_of(model, data) + LAMBDA / 2 * near
            gradients = torch.autograd.grad(objective, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients, strict=True):
                    p -= rate * g
        w = {n: w[n] - ETA * LAMBDA * (w[n] - p.detach()) for n, p in model.named_parameters()}
    theta = {name: t.detach().numpy() for name, t in model.state_dict().items()}
    return theta | {name: tensor.numpy() for name, tensor in w.items()}, theta


def by_hand(federation, rounds):
    start, thetas = federation.arrays(), {}
    for clients in rounds:
        states = []
        for i in clients:
            state, thetas[i] = local(federation, start, i)
            states.append(state)
        average = mean(states, [1] * len(clients), clients)
        start = {
            name: array if is_statistic(name) else (1 - BETA) * start[name] + BETA * array
            for name, array in average.items()
        }
    return start, thetas


@pytest.mark.parametrize("hosting", [name for name in HOSTINGS if name != "plain"])
def test_three_rounds_by_hand(exact_federation, tmp_path, hosting):
    grid = exact_federation.grid(hosting, PFedMeClient, states=tmp_path)
    strategy = PFedMe(
        mu=LAMBDA, inner_steps=K, meta_learning_rate=ETA, global_learning_rate=BETA,
        participants=3, seed=2, evaluate_every=3,
        min_available_nodes=len(list(grid.get_node_ids())),
    )  # fmt: skip
    arrays, rounds = run_on(strategy, grid, exact_federation.arrays(), 3)
    assert len({tuple(clients) for clients in rounds}) > 1
    w, thetas = by_hand(exact_federation, rounds)
    assert_equal(arrays, w)
    assert_same_states(states_of(strategy, tmp_path), thetas)
    for client in range(4):
        model = loaded(thetas.get(client, w)).eval()
        loss = float(loss_of(model, exact_federation.whole(client)))
        assert run_of(strategy).evaluation.metrics["loss"][client] == pytest.approx(loss, rel=1e-9)
