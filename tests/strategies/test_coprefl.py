"""Compare CoPreFL with independent calculations.

A round is calculated in plain autograd, and a meta step is calculated by hand.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from coprefl_flwr import seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Listed, RoundContext
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import PRETRAINING
from coprefl_flwr.strategies import CoPreFL, CoPreFLStd, Replies
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.training_options import TrainingOptions
from tests.common.by_hand import full_batch_sgd, record_samples
from tests.common.federation import SIZES
from tests.common.networks import tiny_model


def printed(losses, gamma):
    """Return L_meta as it is printed in the paper."""
    return gamma * losses.sum() + (1 - gamma) * ((losses - losses.mean()) ** 2).mean()


def ours(losses, gamma):
    """Return CoPreFLStd's L_meta."""
    deviation = ((losses - losses.mean()) ** 2).mean().sqrt()
    return gamma * losses.mean() + (1 - gamma) * deviation


def one_round_by_hand(
    federation, start, participants, server_round, gamma, zeta, seed=0, objective=printed
):
    """Run a round of Algorithm 1 in float64, line by line, without any code of the strategies.

    The meta gradient comes from autograd through L_meta itself, not from the formula sum_j c_j g_j
    that the package uses.
    """
    sets, locals_ = {}, []
    for j in participants:
        inputs, targets = federation.samples[j].batch(slice(None), torch.device("cpu"))
        key = (seed, "train", server_round, j, "support")
        support, query = split_in_two(SIZES[j], 0.8, seeds.generator(*key))
        sets[j] = (inputs.double()[query], targets[query], len(support))
        model = tiny_model().double()
        model.load_state_dict({n: torch.from_numpy(np.array(a)) for n, a in start.items()})
        full_batch_sgd(model, inputs.double()[support], targets[support], 2, 0.1)
        locals_.append(model.state_dict())
    weights = np.array([sets[j][2] for j in participants], float)
    weights /= weights.sum()
    temporary = {}
    for name, first in locals_[0].items():
        mean = sum(w * local[name].double() for w, local in zip(weights, locals_, strict=True))
        temporary[name] = mean.round().long() if first.dtype == torch.int64 else mean
    model = tiny_model().double()
    model.load_state_dict(temporary)
    model.eval()
    losses = torch.stack(
        [functional.cross_entropy(model(sets[j][0]), sets[j][1]) for j in participants]
    )
    meta = objective(losses, gamma)
    gradients = torch.autograd.grad(meta, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= zeta * gradient
    return {name: value.numpy() for name, value in model.state_dict().items()}, losses.detach()


@pytest.mark.parametrize(("strategy_class", "objective"), [(CoPreFL, printed), (CoPreFLStd, ours)])
@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("nodes", [1, 3])
def test_two_rounds_of_algorithm_1_by_hand(federation, gamma, nodes, strategy_class, objective):
    """Two rounds agree with plain autograd to 1e-5."""
    strategy = strategy_class(
        gamma=gamma, meta_learning_rate=0.5, participants=3, seed=0, clients=4
    )
    grid = LocalGrid(federation.coprefl_app(), nodes=nodes)
    rounds = record_samples(strategy)
    result = strategy.start(grid, to_record(federation.arrays()), num_rounds=2)

    expected = federation.arrays()
    for server_round, participants in enumerate(rounds, start=1):
        expected, losses = one_round_by_hand(
            federation, expected, participants, server_round, gamma, zeta=0.5, objective=objective
        )
    assert [len(participants) for participants in rounds] == [3, 3]
    arrays = from_record(result.arrays)
    for name, array in federation.arrays().items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        np.testing.assert_allclose(arrays[name], expected[name], rtol=0, atol=1e-5, err_msg=name)
    metrics, variance = result.train_metrics_clientapp[2], float(losses.var(unbiased=False))
    assert metrics["query-loss"] == pytest.approx(float(losses.mean()), abs=1e-5)
    assert metrics["query-loss-variance"] == pytest.approx(variance, abs=1e-5)
    assert metrics["meta-loss"] == pytest.approx(float(objective(losses, gamma)), abs=1e-5)
    # BatchNorm's counter: every client takes 2 steps per round, so 4 after two rounds.
    assert arrays["2.num_batches_tracked"] == 4


def test_meta_step_of_two_replies_by_hand():
    """A round needs no grid: with hand-made replies its meta step can be worked out on paper.

    Phi_bar = 1; two clients, losses 1 and 3, gradients 10 and 20, gamma 1/4, |m| = 2:
    c = 1/4 + 3/4 * 2/2 * (L - 2) = -1/2 and 1; sum c g = -5 + 20 = 15; Phi = 1 - 0.1 * 15 = -0.5.
    G1 = 30, G2 = 1 * 10 + 3 * 20 = 70.
    """
    strategy = CoPreFL(gamma=0.25, meta_learning_rate=0.1)
    ctx = RoundContext(strategy, Listed([4, 7]))
    program = strategy.round(ctx, {"w": np.float32([5.0])})
    first = next(program)
    assert (first.action, list(first.clients)) == ("train", [4, 7])
    assert str(first.combine) == "mean:num-examples"
    counts = {"num-examples": np.array([3.0, 5.0]), "loss": np.array([0.0, 0.0])}
    second = program.send(Replies((4, 7), counts, arrays={"w": np.float32([1.0])}))
    assert second.action == "train.query"
    assert second.arrays["w"] == 1.0
    sums = {"gradient": {"w": np.array([30.0])}, "loss-gradient": {"w": np.array([70.0])}}
    with pytest.raises(StopIteration) as end:
        program.send(Replies((4, 7), {"loss": np.array([1.0, 3.0])}, sums=sums))
    arrays, metrics = end.value.value
    assert arrays["w"].dtype == np.float32
    assert arrays["w"] == pytest.approx(-0.5)
    assert metrics["query-loss"] == 2.0
    assert metrics["query-loss-variance"] == 1.0
    assert ctx.state == {}


def test_support_and_query_sets_are_disjoint_and_complete(stochastic_federation):
    client = stochastic_federation.client(CoPreFLClient, 2)
    config = {"seed": 0, "population": "train", "server-round": 3, "client": 2}
    support, query = client.split(config)
    assert len(support) == 18  # floor(0.8 * 23)
    assert sorted([*support.indices, *query.indices]) == list(client.train.indices)
    again = stochastic_federation.client(CoPreFLClient, 2).split(config)
    assert list(again[1].indices) == list(query.indices)
    later = client.split({**config, "server-round": 4})
    assert list(later[1].indices) != list(query.indices)


def meta_step(strategy, clients):
    """Return the length of the meta step if all clients have the gradient 1 and the loss 2."""
    arrays, number = {"w": np.zeros(1)}, len(clients)
    program = strategy.round(RoundContext(strategy, Listed(clients)), arrays)
    next(program)
    metrics = {"loss": np.full(number, 2.0), "num-examples": np.ones(number)}
    program.send(Replies(tuple(clients), metrics, arrays))
    sums = {
        "gradient": {"w": np.full(1, float(number))},
        "loss-gradient": {"w": np.full(1, 2.0 * number)},
    }
    with pytest.raises(StopIteration) as end:
        program.send(Replies(tuple(clients), metrics, {}, sums))
    moved, _ = end.value.value
    return -float(moved["w"][0])


def test_missing_clients_shorten_the_sum_and_not_the_mean():
    options = {"gamma": 1.0, "meta_learning_rate": 0.5}
    paper, mean = CoPreFL(**options), CoPreFL(**options, meta_reduction="mean")
    assert [meta_step(paper, range(n)) for n in (4, 3, 1)] == [2.0, 1.5, 0.5]
    assert [meta_step(mean, range(n)) for n in (4, 3, 1)] == [0.5, 0.5, 0.5]


def test_default_of_the_reduction_is_in_no_key_and_no_checkpoint():
    """Results that were stored before the option existed are found again."""
    assert "meta_reduction" not in CoPreFL().options()
    assert CoPreFL(meta_reduction="mean").options()["meta_reduction"] == "mean"
    for name in ("coprefl", "coprefl-sgd"):
        abouts = []
        for text in (name, f"{name}:meta-reduction=sum", f"{name}:meta-reduction=mean"):
            abouts.append(Method.parse(text).with_training(PRETRAINING, TrainingOptions()).about())
        assert abouts[0] == abouts[1]
        assert abouts[2] == abouts[0] | {"meta-reduction": "mean"}
    with pytest.raises(SettingsError, match="meta_reduction"):
        CoPreFLStd(meta_reduction="sum")
