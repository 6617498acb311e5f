"""The control methods of CoPreFL's claims, compared with CoPreFL and with plain autograd."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from coprefl_flwr import plugins, seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.data import split_in_two
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL
from tests.common.by_hand import record_samples
from tests.common.federation import SIZES
from tests.common.simulation import ROOT
from tests.integration.test_scenario_two import CPU, fedavg_by_hand, load

FILE = ROOT / "examples" / "claims" / "controls.py"


def control(name):
    return plugins.find("method", f"{FILE}:{name}")


def test_fedavg_on_support_sets_is_coprefl_without_its_meta_step(stochastic_federation):
    """Three rounds end with the same bytes as CoPreFL with zeta = 0."""
    federation, ends = stochastic_federation, []
    on_support = control("FedAvgOnSupport")
    for strategy in (on_support(participants=3), CoPreFL(participants=3, meta_learning_rate=0.0)):
        strategy.clients = 4
        grid = LocalGrid(federation.app(on_support.client), nodes=2)
        result = strategy.start(grid, to_record(federation.arrays()), 3)
        ends.append({name: array.tobytes() for name, array in from_record(result.arrays).items()})
    assert ends[0] == ends[1]
    start = {name: array.tobytes() for name, array in federation.arrays().items()}
    assert all(ends[0][name] != start[name] for name in start)


def step_by_hand(federation, arrays, participants, server_round, along, rate):
    """Take a step against the sum or mean of the gradients on CoPreFL's query sets."""
    model, losses = load(arrays).eval(), []
    for j in participants:
        inputs, targets = federation.samples[j].batch(slice(None), CPU)
        key = (0, "train", server_round, j, "support")
        _, query = split_in_two(SIZES[j], 0.8, seeds.generator(*key))
        losses.append(functional.cross_entropy(model(inputs.double()[query]), targets[query]))
    losses = torch.stack(losses)
    total = losses.sum() if along == "sum" else losses.mean()
    gradients = torch.autograd.grad(total, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= rate * gradient
    after = {name: value.numpy() for name, value in model.state_dict().items()}
    return after, float(losses.mean().detach())


@pytest.mark.parametrize("along", ["sum", "mean"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_fedavg_then_step_by_hand(federation, along, nodes):
    """Two rounds: FedAvg on all samples, then the step without weights."""
    strategy = control("FedAvgThenStep")(
        step_learning_rate=0.3, step_along=along, participants=3, clients=4
    )
    asked = record_samples(strategy)
    grid = LocalGrid(federation.app(strategy.client), nodes=nodes)
    result = strategy.start(grid, to_record(federation.arrays()), 2)
    expected = federation.arrays()
    for server_round, participants in enumerate(asked, start=1):
        averaged = fedavg_by_hand(federation, expected, participants)
        expected, loss = step_by_hand(federation, averaged, participants, server_round, along, 0.3)
    assert [len(participants) for participants in asked] == [3, 3]
    for name, array in from_record(result.arrays).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)
    assert result.train_metrics_clientapp[2]["query-loss"] == pytest.approx(loss, abs=1e-5)
