"""The ClientApp around NumPyClients: clients made for a message, and clients a node reports."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from coprefl_flwr import clients, seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app, query_reply
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.messages import ROSTER, plain_reply
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning import local_sgd
from coprefl_flwr.models import load_arrays, model_arrays
from coprefl_flwr.strategies import CoPreFL
from tests.common.messages import ask
from tests.common.networks import tiny_model
from tests.common.simulation import ROOT

SENT = {"w": np.float32([1, 2])}
CPU = torch.device("cpu")


class Echo(NumPyClient):
    """A client that returns the arrays it gets, and its own number as a metric."""

    def __init__(self, number=0):
        self.number = number

    def fit(self, parameters, config):
        return parameters, 3, {"number": self.number}

    def moments(self, parameters, config):
        return [parameters[0] * 10], 3, {"number": self.number}


HOSTED = {"clients": [4, 1], "combine": "mean:num-examples", "server_round": 2, "population": "p"}


def test_client_fn_of_one_argument():
    calls = []

    def client_fn(context):
        calls.append(context.node_config["partition-id"])
        return Echo()

    ask(client_app(client_fn), "train", SENT)
    ask(client_app(client_fn), "train", SENT, **{**HOSTED, "clients": [5]})
    assert calls == [5, 5]


@pytest.mark.parametrize("own", [None, [9]])
def test_client_fn_of_one_argument_makes_no_other_client(own):
    """This happens if the strategy has `clients=N`, so that a node may have to run any client."""
    app = client_app(lambda context: Echo(), own)
    failed = ask(app, "train", SENT, **HOSTED)["failed"]
    line = "the node must run client {}, which is not its own, but client_fn takes only the context"
    for client, why in zip(failed["clients"], failed["reasons"], strict=True):
        assert why.startswith(line.format(client))
    assert failed["clients"] == [1, 4]


def test_client_fn_of_two_arguments():
    calls = []
    app = client_app(lambda context, client_id: calls.append(client_id) or Echo(client_id))
    ask(app, "train", SENT)
    assert calls == [5]  # The node's only client is its partition-id.
    metrics = ask(app, "train", SENT, **HOSTED)["metrics"]
    assert calls == [5, 1, 4]
    assert (metrics["clients"], metrics["number"]) == ([1, 4], [1.0, 4.0])


def test_client_fn_of_three_arguments():
    calls = []
    app = client_app(lambda context, client_id, config: calls.append((client_id, config)) or Echo())
    ask(app, "train", SENT, server_round=2, own="x")
    ask(app, "train", SENT, **HOSTED)
    request = {"server-round": 2, "population": "p"}
    assert calls == [(5, {"server-round": 2, "own": "x"}), (1, request), (4, request)]


def test_arguments_with_a_default_are_not_ours():
    calls = []
    app = client_app(lambda context, size=7: calls.append(size) or Echo())
    ask(app, "train", SENT)
    assert calls == [7]


def test_the_client_that_to_client_returns_is_taken():
    content = ask(client_app(lambda _: Echo(9).to_client()), "train", SENT)
    assert content["metrics"]["number"] == 9


def test_something_else_is_refused():
    with pytest.raises(SettingsError, match="client_fn returned a str, not a NumPyClient"):
        ask(client_app(lambda _: "client"), "train", SENT)
    failed = ask(client_app(lambda _, __: "client"), "train", SENT, **HOSTED)["failed"]
    assert failed["reasons"] == ["client_fn returned a str, not a NumPyClient"] * 2


def numbered(context, client_id):
    return Echo()


@pytest.mark.parametrize("clients", [[4, 5], lambda context, population: [3]])
def test_clients_that_client_fn_cannot_tell_apart_are_refused(clients):
    with pytest.raises(SettingsError, match="must be given the id of the client to return"):
        client_app(lambda context: Echo(), clients)
    assert client_app(lambda context: Echo(), [4])


def test_a_node_hosts_at_least_one_client():
    with pytest.raises(SettingsError, match="a node hosts at least one client"):
        client_app(numbered, [])


def test_the_number_of_all_clients_is_the_strategys():
    with pytest.raises(SettingsError, match="pass clients=100 to the strategy"):
        client_app(numbered, clients=100)
    with pytest.raises(SettingsError, match="pass clients=3 to the strategy"):
        ask(client_app(numbered, lambda *_: 3), ROSTER, population="task-1")


@pytest.mark.parametrize(
    ("clients", "answer"),
    [
        (None, {"own": [5]}),
        ([7, 3], {"own": [7, 3]}),
        (range(2, 4), {"own": [2, 3]}),
        (lambda context, population: range(len(population)), {"own": [0, 1, 2, 3, 4, 5]}),
        (lambda context, population: [context.node_config["partition-id"]], {"own": [5]}),
        (lambda context, population: None, {"own": [5]}),
    ],
)
def test_roster(clients, answer):
    content = ask(client_app(numbered, clients), ROSTER, population="task-1")
    assert dict(content["roster"]) == answer


def test_a_node_without_partition_id():
    app = client_app(lambda context, client_id: Echo())
    for message_type in (ROSTER, "train"):
        with pytest.raises(SettingsError, match="node-config has no partition-id: start the node"):
            ask(app, message_type, SENT, node_config={})
    # Neither of these two apps needs a partition-id.
    assert ask(client_app(lambda _: Echo()), "train", SENT, node_config={})["metrics"]
    assert ask(client_app(numbered, [3]), ROSTER, node_config={})["roster"]["own"] == [3]


def test_an_action_of_ones_own():
    app = client_app(lambda _: Echo(), actions=("moments",))
    np.testing.assert_array_equal(
        from_record(ask(app, "train.moments", SENT)["arrays"])["w"], [10.0, 20.0]
    )
    with pytest.raises(ValueError, match="'query'"):
        ask(app, "train.query", SENT)


def test_a_missing_method_is_named():
    app = client_app(lambda _: Echo())
    with pytest.raises(ValueError, match="Echo has no method 'query'"):
        ask(app, "train.query", SENT)
    app = client_app(lambda _, __: Echo())
    failed = ask(app, "train.query", SENT, **HOSTED)["failed"]
    assert dict(failed) == {"clients": [1, 4], "reasons": ["Echo has no method 'query'"] * 2}


def app_of_functions(federation):
    """Return CoPreFL's client as functions, as in Flower's templates; each node is one client."""
    app, model = ClientApp(), tiny_model()

    def prepare(message, context):
        load_arrays(model, from_record(message.content["arrays"]))
        config, client = message.content["config"], context.node_config["partition-id"]
        key = (config["seed"], config["population"], config["server-round"], client)
        samples = federation.samples[client]
        rng = seeds.generator(*key, "support")
        return samples, *split_in_two(len(samples), 0.8, rng), key

    @app.train()
    def train(message, context):
        samples, support, _, key = prepare(message, context)
        loss = local_sgd(
            model,
            samples.take(support),
            federation.training,
            server_round=message.content["config"]["server-round"],
            rng=seeds.generator(*key, "batches"),
            device=CPU,
        )
        metrics = {"num-examples": len(support), "loss": loss}
        return Message(plain_reply(model_arrays(model), metrics), reply_to=message)

    @app.train("query")
    def query(message, context):
        samples, _, query, _ = prepare(message, context)
        batches = samples.take(query).batches(256, CPU)
        if context.node_config["partition-id"] % 2:
            return query_reply(message, model, batches)
        dicts = ({"img": images, "label": labels} for images, labels in batches)
        return query_reply(message, model, dicts, batch=lambda b: (b["img"], b["label"]))

    return app


def test_query_reply_does_what_copreflclient_does(stochastic_federation):
    """Three rounds with the same splits and batches, some as dicts, end with the same bytes."""
    results = []
    for app in (
        app_of_functions(stochastic_federation),
        stochastic_federation.coprefl_app(),
    ):
        strategy = CoPreFL(meta_learning_rate=0.1, seed=2)
        start = to_record(stochastic_federation.arrays())
        results.append(strategy.start(LocalGrid(app, nodes=4), start, num_rounds=3))
    ours = from_record(results[1].arrays)
    for name, array in from_record(results[0].arrays).items():
        assert array.tobytes() == ours[name].tobytes(), name
        assert array.tobytes() != stochastic_federation.arrays()[name].tobytes(), name
    assert results[0].train_metrics_clientapp == results[1].train_metrics_clientapp


@pytest.mark.parametrize("module", ["coprefl_flwr.clients", "coprefl_flwr.client_app"])
def test_an_app_is_loaded_without_torch(module):
    """The import of torch takes seconds, which every message in a deployment would cost."""
    program = (
        f"import sys, {module}, coprefl_flwr.arrays\n"
        "from flwr.app import ConfigRecord, RecordDict\n"
        "from flwr.client import NumPyClient\n"
        "from coprefl_flwr.clients import client_app\n"
        "from tests.common.messages import ask\n"
        "class Plain(NumPyClient):\n"
        "    def fit(self, parameters, config):\n"
        "        return parameters, 1, {}\n"
        "found = ask(client_app(lambda _, i: Plain()), 'train', {},\n"
        "            clients=[0, 1], combine='mean:num-examples')\n"
        "assert found['metrics']['clients'] == [0, 1]\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_every_client_is_found_by_its_name():
    assert {getattr(clients, name).__name__ for name in clients._MODULES} == set(clients._MODULES)
    assert set(clients._MODULES) <= set(dir(clients))
    with pytest.raises(AttributeError, match="has no attribute 'NoClient'"):
        _ = clients.NoClient
