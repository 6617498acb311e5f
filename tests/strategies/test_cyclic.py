"""Compare cyclic training with a calculation by hand: one SGD run from client to client.

The result does not depend on which nodes host the clients.
"""

import logging

import numpy as np
import pytest
from flwr.client import NumPyClient

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation import RoundContext
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import Cyclic
from tests.common.by_hand import assert_equal, descend, loaded, loss_of
from tests.common.federation import HOSTINGS, SIZES, hosted

START = {"w": np.zeros(1)}


def record_chains(strategy):
    """Return a list that will hold the clients of each attempt, in the order of the chain."""
    chains, program = [], strategy.program

    class Watched(RoundContext):
        def chain(self, arrays, clients):
            chains.append(clients)
            return super().chain(arrays, clients)

    strategy.program = lambda ctx, arrays: program(Watched(**vars(ctx)), arrays)
    return chains


def nodes_of(grid):
    return len(list(grid.get_node_ids()))


# ---- by hand ------------------------------------------------------------------------------------


def by_hand(federation, chains, rates=None):
    """Run Algorithm 1: client i takes i + 1 steps from the model of the client before it.

    Return the last model and the mean loss of each client, in the order of the chain.
    """
    model, losses = loaded(federation.arrays()), []
    rates = rates or [0.1] * len(chains)
    links = [(i, rate) for chain, rate in zip(chains, rates, strict=True) for i in chain]
    for client, rate in links:
        data, seen = federation.whole(client), []

        def objective(data=data, seen=seen):
            seen.append(loss_of(model, data))
            return seen[-1]

        descend(model, objective, client + 1, rate)
        losses.append(np.mean([loss.item() for loss in seen]))
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}, losses


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_three_rounds_by_hand(exact_federation, hosting):
    grid = exact_federation.grid(hosting, TorchClient)
    strategy = Cyclic(
        participants=3, seed=1, min_available_nodes=nodes_of(grid), clients=grid.clients
    )
    chains = record_chains(strategy)
    result = strategy.start(grid, to_record(exact_federation.arrays()), 3)
    first = 2 if hosting == "plain" else 0
    ours = [[client - first for client in chain] for chain in chains]
    assert ours == [[1, 3, 0], [1, 0, 3], [3, 0, 2]]  # The same for every hosting.
    expected, losses = by_hand(exact_federation, ours)
    assert_equal(from_record(result.arrays), expected)
    mean = np.average(losses[-3:], weights=[SIZES[client] for client in ours[-1]])
    assert result.train_metrics_clientapp[3]["loss"] == pytest.approx(mean, rel=1e-12)


# ---- a relay that shows its order ---------------------------------------------------------------


class Relay(NumPyClient):
    """A client i that appends the digit i + 1 to w, so that w shows the order of the chain."""

    def __init__(self, client_id, fault):
        self.client_id, self.fault = client_id, fault

    def fit(self, parameters, config):
        w, n = 10 * parameters[0] + self.client_id + 1, 1
        if self.fault:
            w, n = self.fault(self.client_id, config["attempt"], w)
        return [w], n, {"loss": float(self.client_id)}


def relay(hosting="1", fault=None, grid_class=LocalGrid):
    return hosted(hosting, lambda _, i: Relay(i, fault), grid_class)


def run(grid, rounds=1, **options):
    """Return the chain of clients that changed the model, and the drawn chains.

    A chain is a text with a digit per client.
    """
    run = {"min_available_nodes": nodes_of(grid), "evaluate_every": 0}
    strategy = Cyclic(clients=grid.clients, **run, **options)
    chains = record_chains(strategy)
    w = from_record(strategy.start(grid, to_record(START), rounds, timeout=9).arrays)["w"]
    first = min(client for chain in chains for client in chain)
    drawn = ["".join(str(client - first + 1) for client in chain) for chain in chains]
    return str(int(w[0])), drawn


def test_order_of_the_chain_depends_on_seed_and_round():
    drawn = {seed: run(relay(), rounds=14, seed=seed)[1] for seed in (0, 1)}
    assert drawn[0] != drawn[1]
    assert drawn[0] == run(relay("own"), rounds=14, seed=0)[1]
    for chains in drawn.values():
        for place in (0, -1):
            assert {chain[place] for chain in chains} == set("1234")


def raises(client, attempt, w):
    if client in (0, 3):
        raise ArithmeticError("boom")
    return w, 1


def returns_nan(client, attempt, w):
    return w * np.nan if client in (0, 3) else w, 1


def returns_another_shape(client, attempt, w):
    return np.zeros(2) if client in (0, 3) else w, 1


def has_no_samples(client, attempt, w):
    return w, 0 if client in (0, 3) else 1


@pytest.mark.parametrize("hosting", HOSTINGS)
@pytest.mark.parametrize("fault", [raises, returns_nan, returns_another_shape, has_no_samples])
def test_bad_client_of_a_chain_is_skipped(hosting, fault, caplog):
    """The next client continues from the last good model.

    This holds for every position of the bad clients in the chain.
    """
    for seed in range(4):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "flwr.coprefl"):
            went, (drawn,) = run(relay(hosting, fault), seed=seed)
        assert went == drawn.replace("1", "").replace("4", "")
        assert len(caplog.records) == 2
        assert all("is left out: " in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_round_without_a_good_client_is_repeated(hosting, caplog):
    def first_attempt_fails(client, attempt, w):
        if attempt == 0:
            raise ArithmeticError("boom")
        return w, 1

    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        went, drawn = run(relay(hosting, first_attempt_fails), participants=3)
    assert len(drawn) == 2
    assert went == drawn[1]
    line = "round 1, attempt 1 failed: 0 clients of 3 trained, needed: 1"
    assert line in [record.getMessage() for record in caplog.records]


def test_min_replies_counts_the_clients_of_the_whole_chain():
    """Two of the four clients train without an error; the four are hosted by two nodes."""
    grid = relay("pairs", raises)
    assert len(run(grid, min_replies=2)[0]) == 2
    with pytest.raises(RunFailedError, match="2 clients of 4 trained, needed: 3"):
        run(grid, min_replies=3)
