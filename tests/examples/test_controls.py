"""The control methods of CoPreFL's claims, compared with CoPreFL and with plain autograd."""

import pytest
import torch

from coprefl_flwr import plugins, seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.data import split_in_two
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL
from tests.common.by_hand import assert_equal, loaded, loss_of, means_by_hand, run_on, step_against
from tests.common.federation import SIZES
from tests.common.runs import run_of
from tests.common.simulation import ROOT

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


@pytest.mark.parametrize("along", ["sum", "mean"])
@pytest.mark.parametrize("hosting", ["1", "own"])
def test_fedavg_then_step_by_hand(exact_federation, along, hosting):
    """Two rounds: FedAvg on all samples, then the step without weights on CoPreFL's query sets."""
    start = exact_federation.arrays()
    strategy = control("FedAvgThenStep")(step_learning_rate=0.3, step_along=along, participants=3)
    grid = exact_federation.grid(hosting, strategy.client)
    found, asked = run_on(strategy, grid, start)
    assert [len(participants) for participants in asked] == [3, 3]
    for server_round, participants in enumerate(asked, start=1):
        model = loaded(means_by_hand(exact_federation, start, participants)).eval()
        losses = []
        for j in participants:
            inputs, targets = exact_federation.whole(j)
            key = (0, "train", server_round, j, "support")
            _, query = split_in_two(SIZES[j], 0.8, seeds.generator(*key))
            losses.append(loss_of(model, (inputs[query], targets[query])))
        losses = torch.stack(losses)
        start = step_against(model, losses.sum() if along == "sum" else losses.mean(), 0.3)
    assert_equal(found, start)
    query_loss = run_of(strategy).history.train[2]["query-loss"]
    assert query_loss == pytest.approx(float(losses.mean().detach()), rel=1e-12)
