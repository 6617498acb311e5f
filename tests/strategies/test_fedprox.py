"""Compare FedProx with a calculation by hand and with Flower's FedProx.

Without the proximal term (mu = 0), FedProx is compared with FedAvg.
"""

import random

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedProx as FlowerFedProx

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import FedProxClient, TorchClient
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import FedAvg, FedProx
from tests.common.by_hand import assert_equal, descend, loaded, loss_of, mean, run, sizes


def local_model(federation, start, client, mu):
    """Return client i's model after i + 1 steps on L_i(w) + mu/2 ||w - w^t||^2."""
    model, data = loaded(start), federation.whole(client)
    anchor = [parameter.detach().clone() for parameter in model.parameters()]

    def objective():
        pairs = zip(model.parameters(), anchor, strict=True)
        return loss_of(model, data) + mu / 2 * sum(((p - a) ** 2).sum() for p, a in pairs)

    descend(model, objective, client + 1)
    return model.state_dict()


@pytest.mark.parametrize("mu", [0.01, 2.0])
def test_two_rounds_by_hand(exact_federation, mu):
    start = exact_federation.arrays()
    strategy = FedProx(mu=mu, participants=3)
    arrays, rounds = run(strategy, exact_federation.app(FedProxClient), start)
    expected = start
    for clients in rounds:
        states = [local_model(exact_federation, expected, j, mu) for j in clients]
        expected = mean(states, sizes(clients), clients)
    assert rounds[0] != rounds[1]
    assert_equal(arrays, expected)


def test_fedprox_without_the_term_is_fedavg(stochastic_federation):
    start = stochastic_federation.arrays()
    ends = [
        run(strategy, stochastic_federation.app(client), start)[0]
        for strategy, client in [
            (FedAvg(participants=3), TorchClient),
            (FedProx(mu=0.0, participants=3), FedProxClient),
            (FedProx(mu=0.1, participants=3), FedProxClient),
        ]
    ]
    assert all(array.tobytes() == ends[1][name].tobytes() for name, array in ends[0].items())
    assert ends[2]["1.weight"].tobytes() != ends[0]["1.weight"].tobytes()


def flowers(mu):
    random.seed(0)
    return FlowerFedProx(
        proximal_mu=mu, min_train_nodes=4, min_available_nodes=4, fraction_evaluate=0.0
    )


def proximal_app():
    """Return an app that uses none of this package's clients.

    A node takes four proximal gradient steps towards the node's optimum.
    """
    app = ClientApp()

    @app.train()
    def train(message, context):
        node = context.node_config["partition-id"]
        mu = message.content["config"]["proximal-mu"]
        (w,) = message.content["arrays"].to_numpy_ndarrays()
        optimum = node + np.arange(3.0)
        for _ in range(4):
            w = w - 0.1 * ((w - optimum) + mu * (w - message.content["arrays"]["w"].numpy()))
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": to_record({"w": w})["w"]}),
                "metrics": MetricRecord({"num-examples": 5 + node}),
            }
        )
        return Message(content, reply_to=message)

    return app


def test_fedprox_equals_flowers_fedprox_in_its_app():
    start = {"w": np.array([1.0, -2.0, 0.5])}
    theirs = flowers(0.7).start(LocalGrid(proximal_app(), nodes=4), to_record(start), 3)
    ours, _ = run(FedProx(mu=0.7), proximal_app(), start, rounds=3, nodes=4)
    assert_equal(ours, from_record(theirs.arrays))
    without, _ = run(FedProx(mu=0.0), proximal_app(), start, rounds=3, nodes=4)
    assert abs(without["w"] - ours["w"]).max() > 0.1
