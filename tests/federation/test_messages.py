"""Requests and replies: messages are read back as written, and name why a client failed."""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.federation.aggregation import LossMoments, Mean, parse
from coprefl_flwr.federation.exchange import Replies
from coprefl_flwr.federation.flower import enter_run, name_message
from coprefl_flwr.federation.messages import (
    NodeReply,
    config_of,
    hosted_reply,
    most_often,
    place,
    plain_reply,
    program_error,
    read_reply,
    reason,
    request,
    same_error,
    table,
)

ARRAYS = {"w": np.float32([1, 2]), "n": np.array(3)}


def same(arrays, expected):
    assert list(arrays) == list(expected)
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_request_to_a_host_and_to_a_single_client():
    records = {"arrays": to_record(ARRAYS), "extra": to_record({"v": np.zeros(1)})}
    rule = LossMoments()
    hosted = request(records, {"server-round": 2}, rule=rule, clients=[4, 1])
    assert hosted["config"] == ConfigRecord(
        {"server-round": 2, "clients": [4, 1], "combine": str(rule)}
    )
    assert parse(hosted["config"]["combine"]) == rule
    assert list(hosted.array_records) == ["arrays", "extra"]
    single = request(records, {"server-round": 2}, rule=rule, clients=None)
    assert single["config"] == ConfigRecord({"server-round": 2})


def test_request_has_settings_that_differ_between_clients():
    """The settings have the order of `clients`, which need not be the order of ids."""
    each = {"state-version": ["3-0", ""], "state-kept": ["", "1-1"]}
    content = request({}, {"mu": 0.1}, rule=Mean(), clients=[4, 1], of_clients=each)
    config = dict(content["config"])
    common = {"mu": 0.1, "clients": [4, 1], "combine": "mean:num-examples"}
    assert config == common | each
    assert config_of(config, 0) == common | {"state-version": "3-0", "state-kept": ""}
    assert config_of(config, 1) == common | {"state-version": "", "state-kept": "1-1"}
    # A node that is one client gets plain values; without such settings nothing is added.
    each = {"state-version": ["3-0"], "state-kept": [""]}
    alone = request({}, {"mu": 0.1}, rule=Mean(), clients=None, of_clients=each)
    assert alone["config"] == ConfigRecord({"mu": 0.1, "state-version": "3-0", "state-kept": ""})
    assert config_of({"mu": 0.1}, 0) == {"mu": 0.1}


def test_reply_of_a_host_is_read_as_written():
    reply = NodeReply(
        metrics={5: {"loss": 0.1 + 0.2, "num-examples": 7}, 2: {"loss": 1 / 3, "num-examples": 4}},
        records={"gradient": ARRAYS, "loss-gradient": {"w": np.float64([3, 4])}},
        failed={3: "ValueError: no"},
    )
    content = hosted_reply(reply)
    assert content["metrics"]["clients"] == [2, 5]
    back = read_reply(content, [2, 3, 5])
    assert back.metrics == reply.metrics
    assert back.clients == [2, 5]
    assert back.failed == {3: "ValueError: no"}
    assert list(back.records) == ["gradient", "loss-gradient"]
    same(back.records["gradient"], ARRAYS)


def test_undefined_metric_of_one_client_keeps_the_values_of_others():
    """Before, the metric was missing for all clients if it was undefined for one.

    Other metrics that some clients lack are left out.
    """
    metrics = {0: {"loss": 1.0, "metric:auc": 0.5}, 1: {"loss": 2.0}}
    metrics[2] = {"loss": 3.0, "metric:auc": 0.9}
    sent = {**metrics, 1: metrics[1] | {"extra": 3.0}}
    back = read_reply(hosted_reply(NodeReply(metrics=sent)), [0, 1, 2])
    assert back.metrics == metrics
    replies = Replies((0, 1, 2), table(back.metrics))
    np.testing.assert_array_equal(replies.metrics["metric:auc"], [0.5, np.nan, 0.9])
    assert replies.mean_metrics() == {"loss": 2.0, "metric:auc": 0.7}


def test_plain_reply_is_read_as_written():
    content = plain_reply(ARRAYS, {"num-examples": 5, "loss": 0.5})
    assert content["metrics"] == MetricRecord({"num-examples": 5, "loss": 0.5})
    same(from_record(content["arrays"]), ARRAYS)
    back = read_reply(content, [8])
    assert back.metrics == {8: {"num-examples": 5.0, "loss": 0.5}}
    same(back.records["arrays"], ARRAYS)
    content["metrics"]["per-class"] = [0.1, 0.2]  # Not a metric of the client.
    assert read_reply(content, [8]).metrics == back.metrics


TWO = MetricRecord({"clients": [0, 1], "loss": [1.0, 2.0]})
UNREADABLE = [
    (
        {"metrics": MetricRecord({"clients": [0, 9], "loss": [1.0, 1.0]})},
        r"results of clients \[0, 9",
    ),
    ({"metrics": MetricRecord({"clients": [0, 1], "loss": [1.0]})}, "shorter"),
    (
        {"metrics": MetricRecord({"num-examples": 5})},
        "one result in the reply, expected: 2 clients",
    ),
    ({}, "0 MetricRecords in the reply, not one"),
    ({"a": TWO, "b": TWO}, "2 MetricRecords in the reply, not one"),
    ({"metrics": TWO, "failed": ConfigRecord({"clients": 1, "reasons": ["a"]})}, "has no lists"),
    ({"metrics": TWO, "failed": ConfigRecord({"clients": [1, 2], "reasons": ["a"]})}, "shorter"),
]


@pytest.mark.parametrize(("records", "line"), UNREADABLE)
def test_unreadable_reply_is_refused(records, line):
    with pytest.raises(ValueError, match=line):
        read_reply(RecordDict(records), [0, 1])


# ---- why a client failed ----


OF_RAY = """<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor\
.run()\x1b[39m (pid=1, ip=192.0.2.2, actor_id=f, repr=<flwr.simulation.ClientAppActor object>)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/v/lib/python3.11/site-packages/flwr/clientapp/client_app.py", line 159, in __call__
    return train_fn(message, context)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/home/apps/you.own-app.1.0.0.b61ad132/own_app/client_app.py", line 22, in train
    loss = train_model(model, batches, epochs, rate)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/home/apps/you.own-app.1.0.0.b61ad132/own_app/task.py", line 61, in train
    loss = model.logits(batch)
           ^^^^^^^^^^^^
  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1999, in __getattr__
    raise AttributeError(
{raised}

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=1, ip=192.0.2.2, actor_id=f)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/v/lib/python3.11/site-packages/flwr/simulation/ray_transport/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException: 
Exception ClientAppException occurred. Message: {raised}'>"""  # noqa: W291


def reply(text, code=2):
    enter_run(run_id=1, node_id=1)
    message = Message(RecordDict(), 2, "train")
    name_message(message, "1")
    return Message(Error(code, text), reply_to=message)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            OF_RAY.replace("{raised}", "AttributeError: 'Net' has no 'logits'"),
            "AttributeError: 'Net' has no 'logits' (own_app/task.py:61)",
        ),
        (
            OF_RAY.replace("{raised}", "torch.OutOfMemoryError: CUDA:\n  tried\nmuch"),
            "OutOfMemoryError: CUDA: tried much (own_app/task.py:61)",
        ),
        # Errors of a deployment.
        ("<class 'ValueError'>:<'boom client'>", "ValueError: boom client"),
        ("<class 'my.Own'>:<'it's gone\nfor good'>", "Own: it's gone for good"),
        # Errors of LocalGrid.
        ("<class 'TypeError'>:<\"it's\"> (task.py:3)", "TypeError: it's (task.py:3)"),
        ("Node Unavailable", "Node Unavailable"),
        ("", "error 2"),
    ],
)
def test_error_reply_is_one_line_with_the_place_in_the_users_code(text, line):
    assert reason(reply(text)) == line


def test_old_client_app_gets_advice():
    assert reason(reply("<class 'KeyError'>:<''fitins.parameters''>")).endswith(
        "write client_app(client_fn), imported from coprefl_flwr.clients"
    )


def raised(function, *arguments):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function(*arguments)
    # This removes the frame of this file, which would count as a user's file too.
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    return caught.value


def test_place_of_an_error_is_the_innermost_line_of_a_users_file(tmp_path, monkeypatch):
    """It is not the line of the standard library that raises the exception."""
    path = tmp_path / "mine" / "reading.py"
    path.parent.mkdir()
    path.write_text("import json\n\ndef read(text):\n    return json.loads(text)\n")
    names = {}
    exec(compile(path.read_text(), path, "exec"), names)
    error = raised(names["read"], "{")
    assert place(error) == " (mine/reading.py:4)"
    monkeypatch.chdir(path.parent)
    assert place(error) == " (reading.py:4)"
    assert place(raised(json.loads, "{")) == ""


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["TypeError: a (t.py:1)", "TypeError: b (t.py:1)"], "TypeError: a (t.py:1)"),
        (["ValueError: No train function registered with name 'query'"] * 2, None),
        (["TypeError: a", "KeyError: a"], ""),
        (["OSError: a", "OSError: a"], ""),
        (["RuntimeError: CUDA error"], ""),
        ([], ""),
    ],
)
def test_program_error_is_one_kind_that_all_clients_have(reasons, expected):
    assert program_error(reasons) == (reasons[0] if expected is None else expected)


@pytest.mark.parametrize(
    ("reason", "advised"),
    [
        ("metric 'loss' is nan", True),
        ("array 'w' holds a NaN or an infinity", True),
        ("RuntimeError: loss is nan (client.py:3)", False),
        ("array 'w' has shape (1,); expected is (2,)", False),
    ],
)
def test_smaller_learning_rate_is_advised_only_where_numbers_grew(reason, advised):
    line = most_often([reason, reason, "another"])
    assert line.startswith(f"2 failed: {reason}")
    assert line.endswith("try a smaller learning rate") == advised


def test_same_error_ignores_numbers_and_errors_that_may_pass():
    assert same_error(["ValueError: 3 of 4", "ValueError: 5 of 6"]) == "ValueError: 0 of 0"
    assert same_error([]) == same_error(["ValueError: a", "ValueError: b"]) == ""
    for line in ("OSError: disk", "ConnectionResetError: by peer", "Node Unavailable",
                 "OutOfMemoryError: CUDA out of memory", "metric 'loss' is inf"):  # fmt: skip
        assert same_error([line, line]) == ""
