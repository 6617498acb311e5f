"""Compare FedProto with a calculation by hand.

Prototypes are plain means, and the loss has the distance to them. The predicted class is the class
of the nearest prototype.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coprefl_flwr.clients import FedProtoClient
from coprefl_flwr.learning.prototypes import no_prototypes
from coprefl_flwr.strategies import FedProto
from tests.common.by_hand import (
    assert_equal,
    assert_same_states,
    descend,
    loaded,
    run_on,
    states_of,
)
from tests.common.federation import HOSTINGS, Federation
from tests.common.networks import CLASSES
from tests.common.runs import run_of

SIZE, MU = 8, 3.0


@pytest.fixture
def federation():
    """The exact federation; no client has class 1, and client 2 has class 0 only."""
    return Federation.exact().keep([(0, 2), (0, 2), (0,), (0, 2)])


def start():
    return {name: array.astype(np.float64) for name, array in no_prototypes(CLASSES, SIZE).items()}


def objective(model, data, shared):
    """Return the loss; the distance is 0 for samples whose class has no prototype."""
    inputs, targets = data
    z, total = model[:-1](inputs), 0.0
    for row, y in zip(z, targets.tolist(), strict=True):
        if y in shared:
            total = total + ((row - torch.from_numpy(shared[y])) ** 2).mean() / len(targets)
    return cross_entropy(model[-1](z), targets) + MU * total


def by_hand(federation, rounds):
    models, shared = {i: loaded(federation.arrays()) for i in range(4)}, {}
    for _ in range(rounds):
        sums, counts = {}, {}
        for i, model in models.items():
            data = federation.whole(i)
            descend(
                model,
                lambda m=model, d=data, s=dict(shared): objective(m, d, s),
                i + 1,
            )
            z = model.eval()[:-1](data[0]).detach().numpy()
            for row, y in zip(z, data[1].tolist(), strict=True):
                sums[y] = sums.get(y, 0.0) + row
                counts[y] = counts.get(y, 0) + 1
        shared = {y: sums[y] / counts[y] for y in sums}
    return models, shared, counts


@pytest.mark.parametrize("hosting", [name for name in HOSTINGS if name != "plain"])
def test_three_rounds_by_hand(federation, tmp_path, hosting):
    initial = federation.arrays()
    grid = federation.grid(hosting, FedProtoClient, states=tmp_path, initial=initial)
    strategy = FedProto(mu=MU, min_available_nodes=len(list(grid.get_node_ids())), evaluate_every=3)
    arrays, _ = run_on(strategy, grid, start(), 3)
    models, shared, counts = by_hand(federation, 3)
    rows = np.zeros((CLASSES, SIZE))
    for y, row in shared.items():
        rows[y] = row
    totals = np.array([float(counts.get(y, 0)) for y in range(CLASSES)])
    assert_equal(arrays, {"prototypes": rows, "counts": totals}, 1e-11)
    states = {i: {n: t.numpy() for n, t in m.state_dict().items()} for i, m in models.items()}
    assert_same_states(states_of(strategy, tmp_path), states)
    for client, model in models.items():
        inputs, targets = federation.whole(client)
        z = model.eval()[:-1](inputs).detach().numpy()
        near = {y: ((z - row) ** 2).sum(axis=1) for y, row in shared.items()}
        guess = np.where(near[0] <= near[2], 0, 2)
        hits = int((guess == targets.numpy()).sum())
        assert run_of(strategy).evaluation.metrics["correct"][client] == hits
