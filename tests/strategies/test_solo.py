"""Compare Solo with a calculation by hand: each client has its own model and sends nothing."""

import pytest

from coprefl_flwr.clients import SoloClient
from coprefl_flwr.strategies import Solo
from tests.common.by_hand import assert_same_states, descend, loaded, loss_of, run_on, states_of
from tests.common.federation import HOSTINGS
from tests.common.runs import run_of


@pytest.mark.parametrize("hosting", [name for name in HOSTINGS if name != "plain"])
def test_three_rounds_by_hand(exact_federation, tmp_path, hosting):
    """Client i takes i + 1 steps per round, and is evaluated with its own model."""
    start = exact_federation.arrays()
    grid = exact_federation.grid(hosting, SoloClient, states=tmp_path, initial=start)
    strategy = Solo(min_available_nodes=len(list(grid.get_node_ids())), evaluate_every=3)
    arrays, _ = run_on(strategy, grid, {}, 3)
    models = {}
    for client in range(4):
        models[client], data = loaded(start), exact_federation.whole(client)
        model = models[client]
        descend(model, lambda model=model, data=data: loss_of(model, data), 3 * (client + 1))
        model.eval()
        loss = run_of(strategy).evaluation.metrics["loss"][client]
        assert loss == pytest.approx(float(loss_of(model, data)), rel=1e-9)
    expected = {i: {n: t.numpy() for n, t in m.state_dict().items()} for i, m in models.items()}
    assert arrays == {}
    assert_same_states(states_of(strategy, tmp_path), expected)
    traffic = run_of(strategy).history.traffic[3]
    assert traffic["models-up"] == traffic["client-bytes-up"] == 0
    assert traffic["wire-bytes-up"] == traffic["wire-bytes-down"] == 0
