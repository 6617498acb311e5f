"""Requests and replies: messages are read back as written, and name why a client failed."""

import json
import re

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from coprefl_flwr.arrays import from_record
from coprefl_flwr.federation.aggregation import LossMoments, parse
from coprefl_flwr.federation.exchange import Replies
from coprefl_flwr.federation.flower import enter_run, name_message
from coprefl_flwr.federation.messages import (
    NodeReply,
    config_of,
    hosted_reply,
    most_often,
    of_host,
    place,
    plain_reply,
    program_error,
    read_reply,
    reason,
    table,
)

ARRAYS = {"w": np.float32([1, 2]), "n": np.array(3)}


def request_of(node):
    enter_run(run_id=1, node_id=1)
    message = Message(RecordDict(), node, "train")
    name_message(message, "1")
    return message


def read(content, clients):
    """Read a reply with this content to a request for these clients."""
    return read_reply(Message(content, reply_to=request_of(2)), clients)


def same(arrays, expected):
    assert list(arrays) == list(expected)
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_request_to_a_host_has_the_settings_of_each_client():
    """The settings have the order of `clients`, which need not be the order of ids."""
    of_each = [
        {"state-version": "3-0", "state-kept": ""},
        {"state-version": "", "state-kept": "1-1"},
    ]
    config = of_host([4, 1], of_each, LossMoments(), "{}")
    common = {"clients": [4, 1], "combine": "loss-moments", "bounds": "{}"}
    assert config == common | {"state-version": ["3-0", ""], "state-kept": ["", "1-1"]}
    assert parse(config["combine"]) == LossMoments()
    assert [config_of(config, 0), config_of(config, 1)] == [common | own for own in of_each]
    # Without such settings nothing is added.
    assert of_host([4, 1], [{}, {}], LossMoments(), "{}") == common
    assert config_of({"mu": 0.1}, 0) == {"mu": 0.1}


def test_reply_of_a_host_is_read_as_written():
    reply = NodeReply(
        metrics={5: {"loss": 0.1 + 0.2, "num-examples": 7}, 2: {"loss": 1 / 3, "num-examples": 4}},
        records={"gradient": ARRAYS, "loss-gradient": {"w": np.float64([3, 4])}},
        failed={3: "ValueError: no"},
    )
    content = hosted_reply(reply)
    assert content["metrics"]["clients"] == [2, 5]
    back = read(content, [2, 3, 5])
    assert back.metrics == reply.metrics
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
    back = read(hosted_reply(NodeReply(metrics=sent)), [0, 1, 2])
    assert back.metrics == metrics
    replies = Replies((0, 1, 2), table(back.metrics))
    np.testing.assert_array_equal(replies.metrics["metric:auc"], [0.5, np.nan, 0.9])
    assert replies.mean_metrics() == {"loss": 2.0, "metric:auc": 0.7}


def test_plain_reply_is_read_as_written():
    content = plain_reply(ARRAYS, {"num-examples": 5, "loss": 0.5})
    assert content["metrics"] == MetricRecord({"num-examples": 5, "loss": 0.5})
    same(from_record(content["arrays"]), ARRAYS)
    back = read(content, [8])
    assert back.metrics == {8: {"num-examples": 5.0, "loss": 0.5}}
    same(back.records["arrays"], ARRAYS)
    content["metrics"]["per-class"] = [0.1, 0.2]  # Not a metric of the client.
    assert read(content, [8]).metrics == back.metrics


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
    ({"metrics": TWO, "failed": ConfigRecord({"clients": 1, "reasons": ["a"]})}, "not iterable"),
    ({"metrics": TWO, "failed": ConfigRecord({"clients": [1, 2], "reasons": ["a"]})}, "shorter"),
]


@pytest.mark.parametrize(("records", "line"), UNREADABLE)
def test_unreadable_reply_is_refused(records, line):
    with pytest.raises((ValueError, TypeError), match=line):
        read(RecordDict(records), [0, 1])


# ---- why a client failed ----

SIMULATION = """<class 'ray.exceptions.RayTaskError'>:<'ray::ClientAppActor.run()
  File "app.py", line 3, in query
    batch["img"]
KeyError: 'img'

The above exception was the direct cause of the following exception:

ray::ClientAppActor.run() (pid=1)
  File "actor.py", line 2, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:\x20
Exception ClientAppException occurred. Message: 'img''>"""


@pytest.mark.parametrize(
    ("code", "text", "line"),
    [
        (2, "<class 'ValueError'>:<'boom client'>", "<class 'ValueError'>:<'boom client'>"),
        (2, 'Traceback:\n  File "x.py", line 3, in f\nTypeError: boom\n', "TypeError: boom"),
        (2, SIMULATION, "KeyError: 'img'"),
        (6, "LocalDpMod expects a model", "a client-side mod refused: LocalDpMod expects a model"),
        (5, "", "error 5"),
    ],
)
def test_reason_is_the_line_of_the_exception(code, text, line):
    message = Message(Error(code, text), reply_to=request_of(2))
    assert reason(message) == line
    with pytest.raises(ValueError, match=re.escape(line)):
        read_reply(message, [0])


def raised(function, *arguments):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function(*arguments)
    # This removes the frame of this file, which would count as a user's file too.
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    return caught.value


def test_place_of_an_error_is_the_innermost_line_of_a_users_file(tmp_path):
    """It is not the line of the standard library that raises the exception."""
    path = tmp_path / "mine" / "reading.py"
    path.parent.mkdir()
    path.write_text("import json\n\ndef read(text):\n    return json.loads(text)\n")
    names = {}
    exec(compile(path.read_text(), path, "exec"), names)
    error = raised(names["read"], "{")
    assert place(error) == " (mine/reading.py:4)"
    assert place(raised(json.loads, "{")) == ""


@pytest.mark.parametrize(
    ("reasons", "alike"),
    [
        (["TypeError: a (t.py:1)", "TypeError: b (t.py:1)"], True),
        (["<class 'KeyError'>:<'a'>"] * 2, True),
        (["No train function registered with name 'query'"] * 2, True),
        (["TypeError: a", "KeyError: a"], False),
        (["OSError: a", "OSError: a"], False),
        ([], False),
    ],
)
def test_program_error_is_one_kind_that_all_clients_have(reasons, alike):
    assert program_error(reasons) == (reasons[0] if alike else "")


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
