"""Compare CoPreFL with independent calculations.

A round is calculated in plain autograd, and a meta step is calculated by hand.
"""

import numpy as np
import pytest
import torch

from coprefl_flwr import seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import RoundContext
from coprefl_flwr.methods import PRETRAINING
from coprefl_flwr.strategies import CoPreFL, CoPreFLStd, Replies
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.training_options import TrainingOptions
from tests.common.by_hand import (
    assert_equal,
    descend,
    loaded,
    loss_of,
    mean,
    record_samples,
    step_against,
)
from tests.common.federation import SIZES, Listed


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
    """Run a round of Algorithm 1, line by line, without any code of the strategies.

    Client j takes j + 1 full-batch steps on its support set. The meta gradient comes from autograd
    through L_meta itself, not from the formula sum_j c_j g_j that the package uses. Return the new
    global model and the losses on the query sets.
    """
    queries, states, counts = [], [], []
    for j in participants:
        inputs, targets = federation.whole(j)
        key = (seed, "train", server_round, j, "support")
        support, query = split_in_two(SIZES[j], 0.8, seeds.generator(*key))
        model, data = loaded(start), (inputs[support], targets[support])
        descend(model, lambda model=model, data=data: loss_of(model, data), j + 1)
        states.append(model.state_dict())
        counts.append(len(support))
        queries.append((inputs[query], targets[query]))
    model = loaded(mean(states, counts, participants, counts)).eval()
    losses = torch.stack([loss_of(model, query) for query in queries])
    return step_against(model, objective(losses, gamma), zeta), losses.detach()


@pytest.mark.parametrize(("strategy_class", "objective"), [(CoPreFL, printed), (CoPreFLStd, ours)])
@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("hosting", ["1", "own"])
def test_two_rounds_of_algorithm_1_by_hand(
    exact_federation, gamma, hosting, strategy_class, objective
):
    strategy = strategy_class(gamma=gamma, meta_learning_rate=0.5, participants=3)
    grid = exact_federation.grid(hosting, CoPreFLClient)
    strategy.clients = grid.clients
    rounds = record_samples(strategy)
    result = strategy.start(grid, to_record(exact_federation.arrays()), num_rounds=2)
    expected = exact_federation.arrays()
    for server_round, participants in enumerate(rounds, start=1):
        expected, losses = one_round_by_hand(
            exact_federation, expected, participants, server_round, gamma, 0.5, objective=objective
        )
    assert [len(participants) for participants in rounds] == [3, 3]
    assert_equal(from_record(result.arrays), expected)
    metrics, variance = result.train_metrics_clientapp[2], float(losses.var(unbiased=False))
    assert metrics["query-loss"] == pytest.approx(float(losses.mean()), rel=1e-12)
    assert metrics["query-loss-variance"] == pytest.approx(variance, rel=1e-9)
    assert metrics["meta-loss"] == pytest.approx(float(objective(losses, gamma)), rel=1e-9)


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
