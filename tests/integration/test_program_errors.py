"""An error in the clients' program is shown once, with its file and line, without a retry."""

import logging
import re

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation import transport
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL, Cyclic, FedAvg

START = {"w": np.zeros(2, np.float32)}


ERRORS = (TypeError, KeyError)


class Faulty(NumPyClient):
    """A client that adds 1; `fault(client, method)` may raise an error.

    `seen` is the list of all calls, as (client, method, attempt).
    """

    def __init__(self, client_id, fault, seen):
        self.client_id, self.fault, self.seen = client_id, fault, seen

    def fit(self, parameters, config, method="fit"):
        self.seen.append((self.client_id, method, config["attempt"]))
        self.fault(self.client_id, method)
        return [parameters[0] + 1], 1, {"loss": 1.0}

    def query(self, parameters, config):
        return self.fit(parameters, config, "query")

    def evaluate(self, parameters, config):
        return 0.0, *self.fit(parameters, config, "evaluate")[1:]


def hosting(fault, seen, clients, nodes):
    """Return nodes that host all clients, or one client per node if there are enough nodes."""
    grid = LocalGrid(client_app(lambda _, i: Faulty(i, fault, seen)), nodes=nodes)
    grid.clients = clients if nodes < clients else None
    return grid


def plain(fault, seen, clients, nodes):
    """Return nodes of an app that is written with functions, with one client per node."""
    app = ClientApp()

    def handle(message, context):
        name = {"train": "fit", "train.query": "query"}
        method = name.get(message.metadata.message_type, "evaluate")
        client = Faulty(context.node_config["partition-id"], fault, seen)
        sent = message.content["arrays"].to_numpy_ndarrays()
        arrays, count, metrics = client.fit(sent, message.content["config"], method)
        content = RecordDict({"metrics": MetricRecord({**metrics, "num-examples": count})})
        if method != "evaluate":
            content["arrays"] = to_record({"w": arrays[0]})
        return Message(content, reply_to=message)

    for register in (app.train(), app.train("query"), app.evaluate()):
        register(handle)
    return LocalGrid(app, nodes=clients)


def start(strategy, grid, rounds):
    """Run the strategy with the value of its option `clients` that this grid needs."""
    strategy.clients = getattr(grid, "clients", None)
    return strategy.start(grid, to_record(START), rounds)


def raising(kind, method="fit", clients=None):
    def fault(client, asked):
        if asked == method and (clients is None or client in clients):
            raise kind("boom")

    return fault


@pytest.mark.parametrize("grid", [hosting, plain])
@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize(
    ("kind", "method", "action"),
    [(AttributeError, "fit", "train"), (TypeError, "query", "train.query")],
)
def test_program_error_of_all_clients_ends_the_run_at_once(
    grid, nodes, kind, method, action, caplog
):
    seen = []
    with pytest.raises(RunFailedError) as failed:
        start(CoPreFL(), grid(raising(kind, method), seen, 3, nodes), 2)
    assert re.fullmatch(
        rf"round 1: {action}: all 3 clients failed with {kind.__name__}: boom "
        r"\(.*test_program_errors\.py:\d+\)",
        str(failed.value),
    )
    assert {attempt for *_, attempt in seen} == {0}
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("grid", [hosting, plain])
@pytest.mark.parametrize(
    "fault",
    [raising(OSError), lambda c, _: raising(ERRORS[c % 2])(c, "fit")],
)
def test_round_is_repeated_after_errors_that_may_pass(grid, fault):
    """The server also tries again if the errors differ between clients."""
    seen = []
    with pytest.raises(RunFailedError, match="round 1 failed 3 times in a row"):
        start(FedAvg(), grid(fault, seen, 3, 2), 2)
    assert {attempt for *_, attempt in seen} == {0, 1, 2}


@pytest.mark.parametrize("grid", [hosting, plain])
def test_client_with_a_program_error_is_left_out(grid, caplog):
    fault = raising(TypeError, clients={1})
    result = start(FedAvg(), grid(fault, [], 3, 2), 2)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), [2, 2])
    lines = re.findall(r"client \d+ on node \d+ is left out: TypeError: boom \(", caplog.text)
    assert len(lines) == 2


@pytest.mark.parametrize("nodes", [2, 4])
def test_program_error_of_all_clients_of_a_chain_ends_the_run_at_once(nodes):
    seen = []
    line = "round 1: train: all 4 clients failed with TypeError"
    with pytest.raises(RunFailedError, match=line):
        start(Cyclic(), hosting(raising(TypeError), seen, 4, nodes), 2)
    assert [client for client, *_ in seen].count(0) == 1


@pytest.mark.parametrize("grid", [hosting, plain])
def test_failed_evaluation_is_one_warning_and_the_run_continues(grid, caplog):
    fault = raising(TypeError, "evaluate")
    result = start(FedAvg(evaluate_every=2), grid(fault, [], 3, 2), 6)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), [6, 6])
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    begin = "evaluation failed: evaluate: all 3 clients failed with TypeError: boom ("
    assert line.startswith(begin)
    assert line.endswith("; the same failure is not logged again")


def test_app_without_a_query_function_ends_the_run_at_once():
    app = ClientApp()

    @app.train()
    def train(message, context):
        content = {"arrays": message.content["arrays"]}
        content["metrics"] = MetricRecord({"num-examples": 1, "loss": 1.0})
        return Message(RecordDict(content), reply_to=message)

    line = r"round 1: train\.query: all 2 clients failed with .*No train function .* name 'query'"
    with pytest.raises(RunFailedError, match=line):
        CoPreFL(min_available_nodes=2).start(LocalGrid(app, nodes=2), to_record(START), 1)


def test_error_in_the_function_clients_ends_the_run_without_a_long_wait(monkeypatch):
    monkeypatch.setattr(transport, "OWN_NODES_WAIT", 0.01)

    def clients(context, population):
        return context.no_such_thing

    app = client_app(lambda _, i: Faulty(i, raising(OSError, ""), []), clients=clients)
    line = r"waited 0.01 s; node 2 is left out: AttributeError: .*\.py:\d+\)$"
    with pytest.raises(RunFailedError, match=line):
        FedAvg().start(LocalGrid(app, nodes=2), to_record(START), 1, timeout=3600)


def test_run_ends_if_no_node_answers_within_the_timeout(monkeypatch):
    monkeypatch.setattr(transport, "OWN_NODES_WAIT", 0.01)

    class Deaf(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            heard = [m for m in messages if m.metadata.message_type != "train"]
            return super().send_and_receive(heard, timeout=timeout)

    grid = Deaf(client_app(lambda _, i: Faulty(i, raising(OSError, ""), [])), nodes=2)
    with pytest.raises(RunFailedError, match=r"; 2 more nodes did not answer in time; waited"):
        FedAvg().start(grid, to_record(START), 2, timeout=3600)


@pytest.mark.parametrize(
    ("fraction", "clients", "drawn"), [(0.5, 5, 2), (0.1, 5, 1), (1.0, 5, 5), (0.29, 100, 28)]
)
def test_fraction_train_is_rounded_down_to_at_least_one_client(fraction, clients, drawn):
    """Rounded down as in Flower's FedAvg, in which 0.29 * 100 is below 29; at least one client."""
    seen = []
    grid = hosting(raising(OSError, ""), seen, clients, 1)
    start(FedAvg(fraction_train=fraction, evaluate_every=1), grid, 1)
    assert [method for _, method, _ in seen].count("fit") == drawn
    assert [method for _, method, _ in seen].count("evaluate") == clients
