"""The ClientApp around NumPyClients: clients made for a message, and clients a node reports."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from coprefl_flwr import seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app, query_reply, roster_reply
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.messages import ROSTER, plain_reply
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.training import local_sgd
from coprefl_flwr.models import load_arrays, model_arrays
from coprefl_flwr.strategies import CoPreFL, FedAvg
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


def test_client_fn_of_one_argument_makes_only_the_nodes_client():
    """The strategy may have `clients=N`, so that a node has to run any client."""
    app = client_app(lambda context: Echo(context.node_config["partition-id"]).to_client())
    assert ask(app, "train", SENT)["metrics"]["number"] == 5
    content = ask(app, "train", SENT, **{**HOSTED, "clients": [5]})
    assert content["metrics"]["number"] == [5]
    for own in (None, [9]):
        failed = ask(client_app(lambda context: Echo(), own), "train", SENT, **HOSTED)["failed"]
        assert failed["clients"] == [1, 4]
        line = "the node must run client 1, which is not its own, but client_fn takes only the con"
        assert failed["reasons"][0].startswith(line)


def test_client_fn_may_take_the_client_id_and_the_config():
    """Without an id in the message, the node's only client is its partition-id, 5."""
    calls = []

    def client_fn(context, client_id, config, size=7):
        calls.append((client_id, config, size))
        return Echo(client_id)

    ask(client_app(client_fn), "train", SENT, server_round=2, own="x")
    ask(client_app(client_fn), "train", SENT, **HOSTED)
    request = {"server-round": 2, "population": "p"}
    assert calls == [(5, {"server-round": 2, "own": "x"}, 7), (1, request, 7), (4, request, 7)]
    metrics = ask(client_app(lambda _, i: Echo(i)), "train", SENT, **HOSTED)["metrics"]
    assert (metrics["clients"], metrics["number"]) == ([1, 4], [1.0, 4.0])


def numbered(context, client_id):
    return Echo()


@pytest.mark.parametrize(
    ("clients", "answer"),
    [
        (None, {"own": [5]}),
        ([7, 3], {"own": [7, 3]}),
        (lambda context, population: range(len(population)), {"own": [0, 1, 2, 3, 4, 5]}),
        (lambda context, population: None, {"own": [5]}),
    ],
)
def test_node_reports_its_clients(clients, answer):
    content = ask(client_app(numbered, clients), ROSTER, population="task-1")
    assert dict(content["roster"]) == {**answer, "runs-clients": True}


def test_node_without_partition_id_is_refused_where_it_is_needed():
    app = client_app(lambda context, client_id: Echo())
    for message_type in (ROSTER, "train"):
        with pytest.raises(SettingsError, match="node-config has no partition-id: start the node"):
            ask(app, message_type, SENT, node_config={})
    # Neither of these two apps needs a partition-id.
    assert ask(client_app(lambda _: Echo()), "train", SENT, node_config={})["metrics"]
    assert ask(client_app(numbered, [3]), ROSTER, node_config={})["roster"]["own"] == [3]


class Asking(LocalGrid):
    """Records the types of the messages."""

    def _handle(self, message):
        self.types = {*getattr(self, "types", ()), message.metadata.message_type}
        return super()._handle(message)


@pytest.mark.parametrize(("clients", "named"), [("nodes", {2, 3}), (None, {0, 1})])
def test_app_of_functions_answers_for_its_client_or_is_not_asked(clients, named):
    app, drawn = ClientApp(), []

    @app.train()
    def train(message, context):
        content = plain_reply(from_record(message.content["arrays"]), {"num-examples": 1})
        return Message(content, reply_to=message)

    app.query("roster")(roster_reply)

    class Noting(FedAvg):
        def round(self, ctx, arrays):
            drawn.extend(ctx.sample())
            return (yield from super().round(ctx, arrays))

    grid = Asking(app, nodes=2)
    Noting(clients=clients, evaluate_every=0, min_available_nodes=2).start(grid, to_record(SENT), 1)
    assert grid.types == {"train"} | ({ROSTER} if clients is None else set())
    assert {*drawn} == named


def test_user_may_add_an_action():
    app = client_app(lambda _: Echo(), actions=("moments",))
    np.testing.assert_array_equal(
        from_record(ask(app, "train.moments", SENT)["arrays"])["w"], [10.0, 20.0]
    )
    with pytest.raises(ValueError, match="'query'"):
        ask(app, "train.query", SENT)


def test_missing_method_is_named():
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
        return query_reply(
            message, model, dicts, lambda model, b: cross_entropy(model(b["img"]), b["label"])
        )

    return app


def test_query_reply_of_an_app_of_functions_equals_that_of_coprefl_client(stochastic_federation):
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
def test_app_is_loaded_without_torch(module):
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
