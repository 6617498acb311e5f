"""One client or one node gives false replies: the server leaves out only this client or node."""

import asyncio

import numpy as np
import pytest

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL, FedAvg
from tests.common.checks import warnings_of
from tests.common.replies import (
    KINDS,
    LIES,
    SPOILT,
    START,
    Good,
    grid,
    lie_of,
    of,
    of_kind,
)
from tests.common.runs import run_of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", SPOILT)
def test_client_with_an_invalid_result_is_left_out(kind, case, caplog):
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
    return {"w": gradient["w"]}, n, metrics


@pytest.mark.parametrize("kind", ["one", "two", "own"])
@pytest.mark.parametrize("client", [0, 2])
def test_array_that_a_gradient_lacks_counts_as_0(kind, client):
    strategy = CoPreFL(gamma=1.0, meta_learning_rate=0.5, **of_kind(kind))
    found = grid(kind, of(client, "query", without_b))
    arrays = from_record(strategy.start(found, to_record(START), 1).arrays)
    np.testing.assert_allclose(arrays["w"], np.full(2, 1 - 0.5 * 5))
    np.testing.assert_allclose(arrays["b"], np.full(3, 1 - 0.5 * 4))


def test_log_lines_of_failing_clients_are_short_and_limited_per_round(caplog):
    def fault(number, *_):
        if number < 30:
            raise ArithmeticError("boom\n" + "x" * 10_000 + " in the end")

    app = client_app(lambda _, i: Good(i, fault))
    FedAvg(evaluate_every=1, clients=31).start(LocalGrid(app), to_record(START), 1)
    lines = warnings_of(caplog)
    # Each client fails in training and in evaluation.
    assert [lines[20], lines[41]] == ["train: 10 more such lines", "evaluate: 10 more such lines"]
    assert all(line.isprintable() and len(line) < 240 for line in lines)
    assert lines[0].startswith("client 0 on node 2 is left out: ArithmeticError: boom xxx")


@pytest.mark.parametrize("case", LIES)
def test_node_with_an_oversized_or_malformed_reply_is_left_out(case, caplog):
    change, reason = LIES[case]
    result = FedAvg(min_available_nodes=5, evaluate_every=0).start(
        grid("own", lie=lie_of(3, change)), to_record(START), 1
    )
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    assert warnings_of(caplog) == [f"client 1 on node 3 is left out: {reason}"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [SystemExit("bye"), asyncio.CancelledError()], ids=repr)
def test_client_that_calls_exit_is_left_out(kind, error, caplog):
    """Before the fix, `sys.exit` in a client ended the run."""

    def end(*_):
        raise error

    number = 4 if kind == "plain" else 2
    found = grid(kind, of(2, "fit", end))
    result = FedAvg(**of_kind(kind)).start(found, to_record(START), 1)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    (line,) = warnings_of(caplog)
    assert line.startswith(f"client {number} on node ")
    assert f"is left out: {type(error).__name__}:" in line


def test_client_with_more_hits_than_samples_is_left_out_of_an_evaluation(caplog):
    change = lambda loss, n, metrics: (loss, n, {"correct": 400})  # noqa: E731
    strategy = FedAvg(evaluate_every=1, clients=5)
    result = strategy.start(grid("one", of(3, "evaluate", change)), to_record(START), 1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
    assert run_of(strategy).evaluation.clients == (0, 1, 2, 4)
    line = "metric 'correct' is 400; it must be between 0 and 4"
    assert warnings_of(caplog) == [f"client 3 on node 2 is left out: {line}"]
