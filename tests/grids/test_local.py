"""LocalGrid behaves like Flower's grid: replies, errors and contexts."""

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from coprefl_flwr.grids import LocalGrid


def counting_app():
    """Return an app whose nodes count messages, return their ids, and fail if `fail` is set."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        if message.content["config"].get("fail"):
            raise ArithmeticError("first line\nsecond line")
        count = int(context.state["kept"]["count"]) + 1 if "kept" in context.state else 1
        context.state["kept"] = MetricRecord({"count": count})
        metrics = MetricRecord(
            {
                "node": message.metadata.dst_node_id,
                "partition": context.node_config["partition-id"],
                "partitions": context.node_config["num-partitions"],
                "size": context.run_config.get("size", -1),
                "count": count,
            }
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def message(node, message_type="train", **config):
    return Message(RecordDict({"config": ConfigRecord(config)}), node, message_type)


def metrics(replies):
    return [dict(reply.content["metrics"]) for reply in replies]


def test_nodes_have_partition_ids_and_see_the_run_config():
    grid = LocalGrid(counting_app(), nodes=3, run_config={"size": 8})
    nodes = list(grid.get_node_ids())
    answers = metrics(grid.send_and_receive([message(node) for node in nodes]))
    assert [(m["node"], m["partition"], m["partitions"], m["size"]) for m in answers] == [
        (node, number, 3, 8) for number, node in enumerate(nodes)
    ]


def test_each_node_keeps_its_state():
    grid = LocalGrid(counting_app(), nodes=2)
    first, second = grid.get_node_ids()
    replies = grid.send_and_receive([message(first), message(first), message(second)])
    assert [m["count"] for m in metrics(replies)] == [1, 2, 1]
    assert metrics(grid.send_and_receive([message(second)]))[0]["count"] == 2
    other = LocalGrid(counting_app(), nodes=2)
    assert metrics(other.send_and_receive([message(first)]))[0]["count"] == 1


def test_replies_refer_to_their_messages():
    grid = LocalGrid(counting_app(), nodes=2)
    sent = [message(3), message(2)]
    replies = list(grid.send_and_receive(sent))
    assert [r.metadata.reply_to_message_id for r in replies] == [
        m.metadata.message_id for m in sent
    ]
    assert len({m.metadata.message_id for m in sent}) == 2
    assert [r.metadata.src_node_id for r in replies] == [3, 2]


def test_exception_is_an_error_reply_in_one_line_and_other_nodes_continue():
    grid = LocalGrid(counting_app(), nodes=2)
    bad, good = grid.send_and_receive([message(2, fail=True), message(3)])
    assert bad.has_error()
    assert bad.error.code == 2
    assert "ArithmeticError" in bad.error.reason
    assert "first line second line" in bad.error.reason
    assert not good.has_error()
    (after,) = grid.send_and_receive([message(2)])
    assert metrics([after])[0]["count"] == 1


def test_unregistered_action_is_an_error_reply():
    (reply,) = LocalGrid(counting_app()).send_and_receive([message(2, "train.query")])
    assert reply.has_error()
    assert "query" in reply.error.reason


def test_keyboard_interrupt_ends_the_run():
    """Quitting a debugger or pressing Ctrl-C must end the run, instead of failing a client."""

    def app(message, context):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalGrid(app).send_and_receive([message(2)])


def test_reply_is_pulled_once():
    grid = LocalGrid(counting_app())
    first, second = grid.push_messages([message(2), message(2)])
    assert [m["count"] for m in metrics(grid.pull_messages([second]))] == [2]
    assert list(grid.pull_messages([second])) == []
    assert [m["count"] for m in metrics(grid.pull_messages([first, second, "unknown"]))] == [1]


def test_created_message_is_answered():
    grid = LocalGrid(counting_app())
    content = RecordDict({"config": ConfigRecord({})})
    grid.set_run("run")
    assert grid.run == "run"
    created = grid.create_message(content, "train", 2, group_id="g")
    assert (created.metadata.message_type, created.metadata.dst_node_id) == ("train", 2)
    (answer,) = metrics(grid.send_and_receive([created]))
    assert (answer["node"], answer["size"]) == (2, -1)
