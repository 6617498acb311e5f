"""Rounds with clients, nodes and methods that fail or misbehave, with toy clients."""

import logging
import re

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation import transport
from coprefl_flwr.federation.aggregation import Mean
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import Exchange, FedAvg
from tests.common.counting import START, Counter, counting_grid
from tests.common.federation import renamed, without_roster
from tests.common.runs import run_of


def for_2(bad):
    """Return a fault: client 2 returns `bad(arrays)`; all other clients return good results."""
    good = (1, {"loss": 0.0})
    return lambda client, _, arrays: bad(arrays) if client == 2 else (arrays, *good)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (for_2(lambda arrays: {}["boom"]), "KeyError: 'boom'"),
        (for_2(lambda arrays: ([arrays[0] * np.nan, arrays[1]], 1, {})), "array 'w' holds a NaN"),
        (for_2(lambda arrays: ([np.zeros(3, "f4"), arrays[1]], 1, {})), r"'w' .*\(3,\).*\(2,\)"),
        (for_2(lambda arrays: (arrays, 1, {"loss": "low"})), "metric 'loss' is a str"),
    ],
)
@pytest.mark.parametrize("nodes", [1, 4])
def test_bad_client_is_left_out_and_named_in_one_line(fault, reason, nodes, caplog):
    """Clients 0, 1 and 3 have equal weights: w = (1 + 2 + 4) / 3."""
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        grid = counting_grid(nodes=nodes, fault=fault)
        result = FedAvg(clients=4).start(grid, to_record(START), 1)
    np.testing.assert_allclose(from_record(result.arrays)["w"], np.float32([7 / 3, 7 / 3]))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith("client 2 on node ")
    assert re.search(reason, lines[0])


def test_round_with_too_few_replies_is_repeated_with_other_clients(caplog):
    """In the first attempt one of three clients succeeds. The second attempt draws others."""
    seen = []

    def first_attempt_fails(client, config, returned):
        if config["attempt"] == 0 and client > min(c for c, _ in seen):
            raise ArithmeticError("not yet")
        return returned, 1, {"loss": 0.0}

    grid = counting_grid(nodes=1, seen=seen, fault=first_attempt_fails)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        result = FedAvg(participants=3, min_replies=2, clients=30).start(grid, to_record(START), 1)
    attempts = [{c for c, config in seen if config["attempt"] == a} for a in (0, 1)]
    assert [len(clients) for clients in attempts] == [3, 3]
    assert attempts[0] != attempts[1]
    assert "train: 1 good replies of 3, needed: 2" in caplog.text
    assert from_record(result.arrays)["w"][0] == pytest.approx(np.mean([*attempts[1]]) + 1)


def test_run_fails_after_max_failed_rounds():
    def unreachable(*_):
        raise ConnectionError("no route")

    seen = []
    grid = counting_grid(seen=seen, fault=unreachable)
    strategy = FedAvg(participants=2, max_failed_rounds=4, clients=6)
    with pytest.raises(RunFailedError, match="round 1 failed 4 times in a row"):
        strategy.start(grid, to_record(START), 2)
    assert {config["attempt"] for _, config in seen} == {0, 1, 2, 3}


def fails_once(client, config, returned):
    if config["attempt"] == 0:
        raise ArithmeticError("not yet")
    return returned, 1, {"loss": 0.0}


def test_state_of_a_failed_attempt_does_not_count():
    """If a program changes its state and then fails, the next attempt starts from the old state."""

    class Forgetful(FedAvg):
        def round(self, ctx, arrays):
            ctx.state["tries"] = ctx.state.get("tries", 0.0) + 1
            return (yield from super().round(ctx, arrays))

    strategy = Forgetful()
    strategy.start(counting_grid(fault=fails_once), to_record(START), 2)
    assert run_of(strategy).state == {"tries": 2.0}


def test_evaluation_has_a_row_per_client():
    strategy = FedAvg(evaluate_every=2, clients=3)
    result = strategy.start(counting_grid(), to_record(START), 3)
    assert sorted(result.evaluate_metrics_clientapp) == [2, 3]
    assert run_of(strategy).evaluation.clients == (0, 1, 2)
    np.testing.assert_array_equal(run_of(strategy).evaluation.metrics["correct"], [0, 1, 2])
    np.testing.assert_array_equal(run_of(strategy).evaluation.metrics["num-examples"], [4, 4, 4])


@pytest.mark.parametrize("options", [{"min_replies": 4}, {}])
def test_evaluation_needs_one_good_reply(options, caplog):
    """This holds for every `min_replies`.

    Without a good reply, the run continues, and the round has no evaluation.
    """

    class Rarely(Counter):
        def evaluate(self, parameters, config):
            if self.client_id != 2 or config["server-round"] == 2:
                raise ArithmeticError("boom")
            return super().evaluate(parameters, config)

    strategy = FedAvg(evaluate_every=1, **options, clients=4)
    grid = LocalGrid(client_app(lambda _, i: Rarely(i)), nodes=2)
    result = strategy.start(grid, to_record(START), 3)
    assert sorted(result.evaluate_metrics_clientapp) == [1, 3]
    assert run_of(strategy).evaluation.clients == (2,)
    line = "evaluation failed: evaluate: 0 good replies of 4, needed: 1; 4 failed: Ari"
    assert any(record.getMessage().startswith(line) for record in caplog.records)


LOSS = {"loss": 1.0}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (lambda c, _, arrays: (arrays, 1, {"loss": np.nan}), "3 .* 'loss' is nan; .* rate"),
        (lambda c, _, arrays: ([arrays[0][c < 2 :], arrays[1]], 1, LOSS), r"2 .*\(1,\).*\(2,\)"),
    ],
)
def test_error_names_the_reason_why_no_reply_was_good(fault, why):
    """Before, the error said only "0 good replies of 3"; warnings far above gave the reason."""
    grid = counting_grid(fault=fault)
    with pytest.raises(RunFailedError, match=f", needed: 2; {why}"):
        FedAvg(min_replies=2, max_failed_rounds=1, clients=3).start(grid, to_record(START), 1)


class Deaf(LocalGrid):
    """A grid on which one node never answers a train message."""

    nodes_asked: tuple = ()

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.nodes_asked += tuple(
            m.metadata.dst_node_id for m in messages if m.metadata.message_type == "train"
        )
        heard = [
            m for m in messages if m.metadata.dst_node_id != 3 or m.metadata.message_type != "train"
        ]
        return super().send_and_receive(heard, timeout=timeout)


class Reconnecting(Deaf):
    """A grid whose silent node disconnects in round 3 and connects again in round 4."""

    round = 1

    def get_node_ids(self):
        return [2] if self.round == 3 else [2, 3]


def test_silent_node_is_asked_again_only_after_it_has_reconnected(caplog):
    grid = Reconnecting(client_app(lambda _, i: Counter(i)), nodes=2)

    def hook(report):
        grid.round = report.round + 1

    strategy = FedAvg(min_available_nodes=2, clients=6, evaluate_every=0)
    strategy.start(grid, to_record(START), 4, timeout=9, hooks=[hook])
    assert grid.nodes_asked == (2, 3, 2, 2, 2, 3)
    line = "node 3 did not answer within 9 s and is not asked again until it disconnects"
    assert line in caplog.text


def test_error_from_the_superlink_is_attributed_to_the_node_that_was_asked(caplog):
    class Unavailable(LocalGrid):
        def _handle(self, message):
            reply = super()._handle(message)
            if message.metadata.dst_node_id == 3 and message.metadata.message_type == "train":
                reply = Message(Error(5, "Node Unavailable"), reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1
            return reply

    grid = Unavailable(client_app(lambda _, i: Counter(i)), nodes=2)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        FedAvg(clients=2).start(grid, to_record(START), 1)
    assert "client 1 on node 3 is left out: Node Unavailable" in caplog.text


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"loss": 1.0}, "no metric 'num-examples' in the reply"),
        (None, "0 MetricRecords in the reply, not one"),
    ],
)
def test_reply_without_the_number_of_samples_is_left_out(metrics, reason, caplog):
    """This holds for equal weights too. The client on node 2 is left out, and the run continues."""
    app = ClientApp()

    class Unweighted(FedAvg):
        def round(self, ctx, arrays):
            replies = yield Exchange("train", arrays, ctx.sample(), combine=Mean(""))
            return replies.arrays, {}

    @app.train()
    def train(message, context):
        node = context.node_config["partition-id"]
        arrays = {name: a + node for name, a in from_record(message.content["arrays"]).items()}
        reported = metrics if node == 0 else {"num-examples": node}
        content = {"arrays": to_record(arrays)}
        if reported:
            content["metrics"] = MetricRecord(reported)
        return Message(RecordDict(content), reply_to=message)

    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        strategy = Unweighted(min_available_nodes=3)
        arrays = from_record(strategy.start(LocalGrid(app, nodes=3), to_record(START), 1).arrays)
    np.testing.assert_array_equal(arrays["w"], np.float32([1.5, 1.5]))
    assert arrays["count"] == 12  # 11 once and 12 twice: 35/3 = 11.67.
    assert f"client 2 on node 2 is left out: {reason}" in caplog.text


def test_node_without_partition_id_is_left_out_and_named(caplog):
    """Node 2 has no partition-id. Its app fails, unlike an app that does not know rosters."""
    grid = LocalGrid(renamed(client_app(lambda _, i: Counter(i)), {2: None}), nodes=3)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        result = FedAvg().start(grid, to_record(START), 1)
    assert "node 2 is left out: " in caplog.text
    assert "node-config has no partition-id" in caplog.text
    # Clients 1 and 2 have 2 and 3 samples, and add 2 and 3.
    np.testing.assert_allclose(from_record(result.arrays)["w"][0], 13 / 5, rtol=1e-6)


class Returning(FedAvg):
    """A method that changes the global model with a given function."""

    def __init__(self, change, metrics=None):
        super().__init__(clients=6)
        self.change, self.of_round = change, metrics or {}

    def round(self, ctx, arrays):
        return self.change(arrays), self.of_round
        yield


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda arrays: {**arrays, "w": np.zeros(2)}, "'w' has dtype float64; expected is float32"),
        (lambda arrays: {"w": arrays["w"]}, "'count' is missing"),
    ],
)
def test_new_global_model_with_other_arrays_fails_the_run(change, line):
    with pytest.raises(RunFailedError, match=f"the new global model is invalid: .*{line}"):
        Returning(change).start(counting_grid(), to_record(START), 1)


def test_metrics_of_a_round_become_numbers(tmp_path):
    """Before, writing them ended the run after its last round, and the model was lost.

    The model keeps the order of its arrays, because clients tell them apart by their order.
    """
    metrics = {"a": np.float32(0.5), "b": np.array(0.5), "c": torch.tensor(0.5)}
    strategy = Returning(lambda arrays: dict(reversed(arrays.items())), metrics)
    result = strategy.start(
        counting_grid(), to_record(START), 1, checkpoint=tmp_path / "checkpoint"
    )
    assert result.history.train[1] == dict.fromkeys("abc", 0.5)
    assert {type(value) for value in result.history.train[1].values()} == {float}
    assert list(from_record(result.arrays)) == ["w", "count"]
    strategy = Returning(lambda arrays: arrays, {"a": "high"})
    with pytest.raises(RunFailedError, match="metric 'a' is a str"):
        strategy.start(counting_grid(), to_record(START), 1)


def test_local_grid_does_not_wait_long_for_clients(monkeypatch):
    """Its nodes are there from the beginning. Before, the wait was an hour."""
    monkeypatch.setattr(transport, "OWN_NODES_WAIT", 0.01)
    app = client_app(lambda _, i: Counter(i))
    line = "3 nodes with 3 clients are connected, needed: 9 clients; waited 0.01 s"
    with pytest.raises(RunFailedError, match=line):
        FedAvg(participants=9).start(LocalGrid(app, nodes=3), to_record(START), 1)


def test_round_cannot_change_the_old_model():
    """Hooks may keep the old model, and another attempt starts from it.

    The initial model belongs to the caller.
    """
    initial, seen = to_record(START), []

    def added_to(arrays):
        arrays["count"] += 1
        return arrays

    with pytest.raises(ValueError, match="output array is read-only"):
        Returning(added_to).start(counting_grid(), initial, 1)
    tested = []
    result = Returning(lambda arrays: {n: a + a.dtype.type(1) for n, a in arrays.items()}).start(
        counting_grid(),
        initial,
        2,
        evaluate_fn=lambda number, arrays: tested.append(number) or MetricRecord({"x": number}),
        hooks=[lambda report: seen.append(report.arrays["count"])],
    )
    assert [int(count) for count in seen] == [11, 12]
    assert tested == [0, 1, 2]
    assert result.evaluate_metrics_serverapp[2]["x"] == 2
    assert int(from_record(result.arrays)["count"]) == 12
    assert int(from_record(initial)["count"]) == 10


def operators_lines(caplog):
    marked = [r.getMessage() for r in caplog.records if r.getMessage().startswith("\t├──> ")]
    return [line.removeprefix("\t├──> ") for line in marked]


@pytest.mark.parametrize(
    ("config", "limit", "shown"),
    [({}, 0, "client 2"), ({}, 1, "partition 2"), ({"name": "clinic\na"}, 1, "node clinic a")],
)
def test_every_round_has_a_line_for_the_operator(config, limit, shown, caplog, monkeypatch):
    """Nodes of a deployment, which may report one client each, are named by their partition.

    A name in the node-config comes first; the server makes it one line.
    """

    def fails(client, config, returned):
        if client == 2 and config["server-round"] == 2:
            raise ArithmeticError("no data")
        return returned, 1, {"loss": 0.0}

    grid = LocalGrid(client_app(lambda _, i: Counter(i, fault=fails)), nodes=4)
    monkeypatch.setattr(grid, "own_nodes", not limit)
    grid._contexts[4].node_config |= config
    with caplog.at_level(logging.INFO, "flwr"):
        FedAvg(min_available_nodes=4).start(grid, to_record(START), 2)
    first, evaluation, second, again = operators_lines(caplog)
    of_all = [f"{action}: 4 of 4; 4 clients in all" for action in ("train", "evaluate", "evaluate")]
    assert [first, evaluation, again] == of_all
    assert second.startswith(f"train: 3 of 4 ({shown}: ArithmeticError: no data")


def test_a_node_without_a_roster_is_named_by_its_id(caplog):
    """A silent node counts as well, and a failed attempt has its own line."""
    grid = Deaf(without_roster(client_app(lambda _, i: Counter(0))), nodes=2)
    strategy = FedAvg(min_available_nodes=2, min_replies=2, max_failed_rounds=2)
    with caplog.at_level(logging.INFO, "flwr"), pytest.raises(RunFailedError):
        strategy.start(grid, to_record(START), 1, timeout=9)
    assert operators_lines(caplog)[0] == "train: 1 of 2 (node 3: timeout); 2 clients in all"
