"""Compare q-FFL with a calculation by hand, with its special case q = 0, and with Flower's."""

import random
from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import QFedAvg

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import QFFLClient
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import QFFL
from tests.common.by_hand import (
    assert_equal,
    descend,
    is_statistic,
    loaded,
    loss_of,
    mean,
    run,
)
from tests.common.federation import Federation


def local_model(federation, start, client, rate=0.1):
    """Return F_k at w^t, in eval mode, and client i's model after i + 1 steps."""
    model, data = loaded(start), federation.whole(client)
    with torch.no_grad():
        before = float(loss_of(model.eval(), data))
    descend(model, lambda: loss_of(model, data), client + 1, rate)
    return before, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def round_by_hand(federation, start, clients, q, rate):
    """Run a round: w^{t+1} = w^t - sum_k Delta_k / sum_k h_k (Algorithm 2), with L = 1 / rate."""
    locals_ = [local_model(federation, start, k, rate) for k in clients]
    lipschitz, deltas, h = 1 / rate, [], 0.0
    for loss, state in locals_:
        f = loss + 1e-10
        step = {n: lipschitz * (start[n] - state[n]) for n in start if not is_statistic(n)}
        norm = sum((part**2).sum() for part in step.values())
        deltas.append({n: f**q * part for n, part in step.items()})
        h += q * f ** (q - 1) * norm + lipschitz * f**q
    moved = {n: start[n] - sum(delta[n] for delta in deltas) / h for n in deltas[0]}
    return mean([state for _, state in locals_], [1] * len(clients), clients) | moved


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_two_rounds_by_hand(exact_federation, q):
    """In round 2 the learning rate, which is 1 / L, is half of the rate in round 1."""
    exact_federation.training = replace(
        exact_federation.training, schedule="exponential:factor=0.5"
    )
    start = exact_federation.arrays()
    arrays, rounds = run(QFFL(q=q, participants=3), exact_federation.app(QFFLClient), start)
    expected = start
    for clients, rate in zip(rounds, (0.1, 0.05), strict=True):
        expected = round_by_hand(exact_federation, expected, clients, q, rate)
    assert rounds[0] != rounds[1]
    assert_equal(arrays, expected)


@pytest.mark.slow
def test_qffl_equals_flowers_qfedavg():
    """Both strategies get float arrays, because Flower's strategy fails on int64.

    Each node hosts one client. Our client reports F_k.
    """
    federation = Federation.exact(norm=False)
    app, start = federation.app(QFFLClient), federation.arrays()
    random.seed(0)
    theirs = QFedAvg(
        client_learning_rate=0.1,
        q=0.5,
        train_loss_key="loss-before",
        min_train_nodes=4,
        min_available_nodes=4,
        fraction_evaluate=0.0,
    ).start(LocalGrid(app, nodes=4), to_record(start), 3, train_config=ConfigRecord({"q": 0.5}))
    ours, _ = run(QFFL(q=0.5), app, start, rounds=3, nodes=4)
    assert_equal(ours, from_record(theirs.arrays))


def test_reply_with_a_negative_curvature_is_left_out(exact_federation, caplog):
    """Without the check, the client would reverse the other clients' step."""

    class Flat(QFFLClient):
        def fit(self, parameters, config):
            returned, n, metrics = super().fit(parameters, config)
            if config["client"] == 1:
                metrics["q-curvature"] = -1e9
            return returned, n, metrics

    start = exact_federation.arrays()
    arrays, _ = run(QFFL(), exact_federation.app(Flat), start, rounds=1)
    assert "metric 'q-curvature' is -1e+09; it must be above 0" in caplog.text
    assert_equal(arrays, round_by_hand(exact_federation, start, [0, 2, 3], QFFL().q, 0.1))
