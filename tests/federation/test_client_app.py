"""The ClientApp around NumPyClients: clients made for a message, and clients a node reports."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app, roster_reply
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.messages import ROSTER, plain_reply
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import FedAvg
from tests.common.messages import ask
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
        line = (
            "the node must run client 1, which is not its own: write client_fn(context, client_id)"
        )
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
    why = "AttributeError: 'Echo' object has no attribute 'query'"
    assert dict(failed) == {"clients": [1, 4], "reasons": [why] * 2}


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
