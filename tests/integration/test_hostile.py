"""One client or one node gives false replies: the server leaves out only this client or node."""

import asyncio

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.federation import Exchange, Mean, Replies
from coprefl_flwr.federation.exchange import concat_replies
from coprefl_flwr.federation.messages import ROSTER
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL, Cyclic, FedAvg
from tests.common.by_hand import record_samples
from tests.common.checks import warnings_of
from tests.common.federation import without_roster
from tests.common.replies import (
    KINDS,
    LIES,
    ROSTERS,
    SPOILT,
    START,
    Good,
    Lying,
    grid,
    lie_of,
    more,
    of,
    of_kind,
)
from tests.common.runs import run_of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", SPOILT)
def test_a_result_that_cannot_count_costs_its_client_alone(kind, case, caplog):
    """The server leaves client 2 out in both rounds; the other clients add 1 in each round."""
    change, line = SPOILT[case]
    client = 4 if kind == "plain" else 2  # A plain node's client has the node's id.
    found = grid(kind, of(2, "fit", change))
    result = FedAvg(**of_kind(kind)).start(found, to_record(START), 2)
    for array in from_record(result.arrays).values():
        np.testing.assert_array_equal(array, np.full_like(array, 2))
    lines = warnings_of(caplog)
    assert [one.split(" on node ")[0] for one in lines] == [f"client {client}"] * 2
    assert all(one.endswith(f"is left out: {line}") for one in lines)


def without_b(gradient, n, metrics):
    return {"w": 9 * gradient["w"]}, n, metrics


@pytest.mark.parametrize("kind", ["one", "two", "own"])
def test_the_names_of_a_gradient_are_those_of_most_clients(kind, caplog):
    """The gradient of client 0 has no array "b", so the server leaves client 0 out.

    Before the fix, the server left out all honest clients instead.
    """
    strategy = CoPreFL(gamma=1.0, meta_learning_rate=0.5, **of_kind(kind))
    found = grid(kind, of(0, "query", without_b))
    arrays = from_record(strategy.start(found, to_record(START), 1).arrays)
    np.testing.assert_allclose(arrays["b"], np.full(3, 1 - 0.5 * 4))
    np.testing.assert_allclose(arrays["w"], np.full(2, 1 - 0.5 * 4))
    line = "its arrays have other names than the arrays of most clients"
    assert warnings_of(caplog) == [f"client 0 on node 2 is left out: {line}"]
    assert run_of(strategy).history.traffic[1]["replies-left-out"] == 1


def test_of_two_clients_the_one_that_names_more_weights_is_right():
    def fault(number, asked, *answer):
        return without_b(*answer) if (number, asked) == (0, "query") else None

    app = client_app(lambda _, i: Good(i, fault))
    for nodes in (1, 2):
        strategy = CoPreFL(gamma=1.0, meta_learning_rate=0.5, min_available_nodes=nodes, clients=2)
        arrays = from_record(strategy.start(LocalGrid(app, nodes), to_record(START), 1).arrays)
        np.testing.assert_allclose(arrays["b"], np.full(3, 1 - 0.5))


@pytest.mark.parametrize("lie", ROSTERS.values(), ids=ROSTERS)
@pytest.mark.parametrize("liar", [2, 4, 6])
def test_a_false_answer_to_the_roster_costs_its_node_alone(lie, liar, caplog):
    """The server leaves out only the node with the false reply.

    Before the fix, the first node's reply decided for all nodes, and a number of 10^18 clients
    became a list.
    """

    def answer(node, message_type, reply):
        if node == liar and message_type == ROSTER:
            return {"roster": ConfigRecord(lie)}
        if node == liar and message_type == "train":
            raise AssertionError("it is not asked")
        return None

    app = client_app(lambda _, i: Good(i, lambda *_: None))
    strategy = FedAvg(min_available_nodes=4, evaluate_every=0)
    seen = record_samples(strategy)
    result = strategy.start(Lying(app, 5, answer), to_record(START), 1)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    assert seen == [[client for client in range(5) if client != liar - 2]]
    (line,) = warnings_of(caplog)
    assert line.startswith(f"node {liar} is left out: ")


def test_a_node_cannot_fill_the_log(caplog):
    """30 clients of the node fail, each with an error message of several lines and 10^4 letters."""

    def fault(number, *_):
        if number < 30:
            raise ArithmeticError("\x1b[31mboom\n\r" + "\u202e" + "x" * 10_000 + " in the end")

    app = client_app(lambda _, i: Good(i, fault))
    FedAvg(evaluate_every=1, clients=31).start(LocalGrid(app), to_record(START), 1)
    lines = warnings_of(caplog)
    # Each client fails in training and in evaluation: two lines for each client.
    assert lines[20:] == ["node 2: 40 more such lines in this round"]
    for line in lines[:20]:
        assert line.isprintable()
        assert len(line) <= 200 + len("client 29 on node 2 is left out: ")
    assert lines[0].startswith("client 0 on node 2 is left out: ArithmeticError: [31mboom xxx")
    assert " end (" in lines[0]


def test_an_error_reply_cannot_fill_the_log_either(caplog):
    def answer(context):
        if context.node_config["partition-id"] == 1:
            raise ArithmeticError("no\x1b[2J\n" * 20_000)
        return Good(0, lambda *_: None)

    FedAvg(min_available_nodes=2, evaluate_every=0).start(
        LocalGrid(without_roster(client_app(answer)), 2), to_record(START), 1
    )
    (line,) = warnings_of(caplog)
    assert line.startswith("client 3 on node 3 is left out: ArithmeticError: no\\x1b[2J\\n")
    assert line.isprintable()
    assert len(line) <= 240


@pytest.mark.parametrize("case", LIES)
def test_a_reply_larger_than_any_that_was_asked_for(case, caplog):
    change, reason = LIES[case]
    result = FedAvg(min_available_nodes=5, evaluate_every=0).start(
        grid("own", lie=lie_of(3, change)), to_record(START), 1
    )
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    assert warnings_of(caplog) == [f"client 1 on node 3 is left out: {reason}"]


def test_a_reply_to_nobodys_question_is_passed_over(caplog):
    """One node replies twice, and a node that the server did not ask replies once."""

    class Twice(LocalGrid):
        def pull_messages(self, message_ids):
            found = list(super().pull_messages(message_ids))
            if found and found[0].metadata.message_type == "train":
                found.append(found[0])
                stray = Message(RecordDict(), reply_to=self._asked)
                stray.metadata.__dict__.update(_reply_to_message_id="none", _src_node_id=99)
                found.append(stray)
            return found

        def _handle(self, message):
            self._asked = message
            return super()._handle(message)

    app = client_app(lambda _, i: Good(i, lambda *_: None))
    result = FedAvg(min_available_nodes=2, clients=4).start(
        Twice(app, nodes=2), to_record(START), 1
    )
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    assert warnings_of(caplog) == [f"node {node} sent an unexpected reply" for node in (2, 99)]


def test_more_hits_than_samples_are_left_out_of_an_evaluation(caplog):
    change = lambda loss, n, metrics: (loss, n, {"correct": 400})  # noqa: E731
    strategy = FedAvg(evaluate_every=1, clients=5)
    result = strategy.start(grid("one", of(3, "evaluate", change)), to_record(START), 1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
    assert run_of(strategy).evaluation.clients == (0, 1, 2, 4)
    line = "metric 'correct' is 400; it must be between 0 and 4"
    assert warnings_of(caplog) == [f"client 3 on node 2 is left out: {line}"]


class Mute(Exception):
    """An error whose text cannot be read."""

    def __str__(self):
        raise ValueError("no text")


ENDINGS = {
    "SystemExit: bye": SystemExit("bye"),
    "CancelledError: ": asyncio.CancelledError(),
    "GeneratorExit: ": GeneratorExit(),
    "Mute: ": Mute(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ENDINGS)
def test_a_client_that_ends_its_program_or_cannot_say_why_costs_itself_alone(kind, case, caplog):
    """The server leaves out only the client that fails.

    Before the fix, `sys.exit` in a client ended the run. An error whose text cannot be read made
    all clients of the node fail.
    """

    def end(*_):
        raise ENDINGS[case]

    number = 4 if kind == "plain" else 2
    found = grid(kind, of(2, "fit", end))
    result = FedAvg(**of_kind(kind)).start(found, to_record(START), 1)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    (line,) = warnings_of(caplog)
    assert line.startswith(f"client {number} on node ")
    assert f"is left out: {case.strip()}" in line


@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_of_the_protocols_own_name_costs_its_client_alone(kind, caplog):
    """The server leaves out only the client with the reserved name.

    Before the fix, this metric replaced the list of client ids in the reply, so that the server
    left out all clients of the node.
    """
    found = grid(kind, of(2, "fit", more({"clients": 3.0})))
    result = FedAvg(**of_kind(kind)).start(found, to_record(START), 1)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    (line,) = warnings_of(caplog)
    assert "metric 'clients' has a reserved name; choose another name" in line


class Measures(FedAvg):
    """FedAvg that stores the names of the metrics in the replies, and the clients that replied."""

    def round(self, ctx, arrays):
        replies = yield Exchange("train", arrays, ctx.sample(), Mean())
        self.names, self.reported = set(replies.metrics), replies.clients
        return replies.arrays, replies.mean_metrics()


def names_of_its_own(liars, number):
    """Return a fault: each client in `liars` reports `number` metrics that only it has."""

    def fault(client, method, arrays, n, metrics):
        if client not in liars or method != "fit":
            return None
        own = {f"junk-{client}-{i}": 1.0 for i in range(number)}
        return [a + 4 for a in arrays], n, metrics | own

    return fault


@pytest.mark.parametrize("nodes", [1, 2, 40])
def test_metrics_of_nodes_own_choosing_are_left_out_of_a_round(nodes, caplog):
    """Before the fix, each name had a value or a gap for every client.

    The time therefore grew with the square of the number of names and of clients.
    """
    app = client_app(lambda _, i: Good(i, names_of_its_own(set(range(0, 40, 2)), 126)))
    strategy = Measures(min_available_nodes=nodes, clients=40)
    strategy.start(LocalGrid(app, nodes), to_record(START), 1)
    assert strategy.names == {"loss", "num-examples"}
    assert strategy.reported == tuple(range(40))
    assert run_of(strategy).history.train[1] == {"loss": 1.0}
    assert warnings_of(caplog) == []


def test_metrics_of_the_links_of_a_chain_are_bounded_too():
    """Each link of the chain is a separate exchange, to which only one node replies."""
    liars = set(range(0, 40, 2))
    app = client_app(lambda _, i: Good(i, names_of_its_own(liars, 100)))
    strategy = Cyclic(min_available_nodes=40)
    result = strategy.start(LocalGrid(app, 40), to_record(START), 1)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 1.0}
    found = concat_replies(
        [Replies((i,), {"loss": np.ones(1), f"junk-{i}": np.ones(1)}) for i in liars]
    )
    assert found.metrics.keys() == {"loss"}
