"""Progress on a terminal and in a log, at a clock that the tests set."""

import io
import logging

import pytest

from coprefl_flwr.rounds.progress import LOG_INTERVAL, Progress, quiet_flower
from coprefl_flwr.strategies import RoundReport


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A list whose only number is the time in seconds."""
    now = [1000.0]
    monkeypatch.setattr("coprefl_flwr.rounds.progress.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def lines(caplog):
    """The lines of the log, as a function."""
    caplog.set_level(logging.INFO, "flwr.coprefl")
    return lambda: [record.getMessage() for record in caplog.records]


def report(number, rounds=10, **metrics):
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    return RoundReport(number, rounds, {}, named, None, 0.0)


def run(progress, clock, rounds, seconds, first=1):
    for number in range(first, rounds + 1):
        clock[0] += seconds
        progress(report(number, rounds, loss=1.0))


def test_a_terminal_shows_one_line_that_renews_itself(clock, lines):
    terminal = Terminal()
    progress = Progress(parts=9, stream=terminal, done=1)
    progress.begin("pre-training coprefl")
    run(progress, clock, 3, 0.25)
    shown = terminal.getvalue().split("\r\x1b[2K")
    assert shown == [
        "",
        "[2/9] pre-training coprefl  round 1/3  loss 1.000  0.25 s/round",
        "[2/9] pre-training coprefl  round 2/3  loss 1.000  0.25 s/round",
        "[2/9] pre-training coprefl  round 3/3  loss 1.000  0.25 s/round\n",
    ]
    assert lines() == []


def test_a_log_gets_few_lines_and_always_the_last(clock, lines):
    progress = Progress(parts=2, stream=io.StringIO())
    progress.begin("task 0 from random")
    run(progress, clock, 11, LOG_INTERVAL / 4)
    begun = [line.split("  loss")[0] for line in lines()]
    assert begun == [
        f"[1/2] task 0 from random  round {number}/11" for number in (" 4", " 8", "11")
    ]
    assert progress.stream.getvalue() == ""


def test_metrics_that_are_there_are_shown(clock, lines):
    progress = Progress(parts=1, stream=io.StringIO())
    progress.begin("x")
    clock[0] += 1
    progress(report(1, 1, loss=0.12345, query_loss=2.0, evaluate_loss=3.5, other=9.0))
    assert lines() == ["[1/1] x  round 1/1  loss 0.123  query 2.000  test loss 3.500  1.00 s/round"]


@pytest.mark.parametrize(
    ("seconds", "left"),
    [(0.2, None), (0.5, "0:01 left"), (29.7, "0:59 left"), (29.9, "1:00 left"), (95, "3:10 left")],
)
def test_time_left(clock, lines, seconds, left):
    """Two rounds are left; 59.8 seconds are a minute, not 0:60."""
    progress = Progress(parts=1, stream=Terminal())
    progress.begin("x")
    clock[0] += seconds
    progress(report(1, 3))
    shown = progress.stream.getvalue().split("  ")
    assert shown[2:] == [f"{seconds:.2f} s/round"] + ([left] if left else [])


def test_pace_of_a_resumed_run_counts_its_own_rounds(clock, lines):
    progress = Progress(parts=1, stream=Terminal())
    progress.begin("x")
    clock[0] += 2
    progress(report(8))
    clock[0] += 4
    progress(report(9))
    last = progress.stream.getvalue().split("\r\x1b[2K")[-1]
    assert last.endswith("round  9/10  3.00 s/round  0:03 left")


def test_each_part_has_its_own_pace(clock, lines):
    progress = Progress(parts=2, stream=Terminal())
    progress.begin("a")
    run(progress, clock, 2, 5)
    progress.begin("b")
    clock[0] += 1
    progress(report(1, 2))
    assert progress.stream.getvalue().endswith("[2/2] b  round 1/2  1.00 s/round  0:01 left")


def test_a_part_that_is_done_is_skipped_aloud(lines):
    progress = Progress(parts=4, stream=io.StringIO())
    progress.skip("pre-training fedavg")
    progress.begin("x")
    assert lines() == ["[1/4] pre-training fedavg  already done"]
    assert progress.done == 2


def test_quiet_flower_keeps_our_lines_and_all_warnings(caplog):
    flower, ours = logging.getLogger("flwr"), logging.getLogger("flwr.coprefl")
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, "flwr")
    caplog.set_level(logging.INFO, "flwr.coprefl")
    with quiet_flower():
        flower.info("dropped")
        flower.warning("flower warns")
        ours.info("ours")
    flower.info("after")
    with pytest.raises(KeyError), quiet_flower():
        raise KeyError
    flower.info("after an error")
    assert [record.getMessage() for record in caplog.records] == [
        "flower warns",
        "ours",
        "after",
        "after an error",
    ]
