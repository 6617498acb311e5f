"""Progress on a terminal and in a log, at a clock that the tests set."""

import io
import logging
import re

import pytest

from coprefl_flwr.federation.progress import LOG_INTERVAL, Progress, quiet_flower
from coprefl_flwr.strategies import RoundReport


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def shown(self):
        """Return all lines that were written, also those that were renewed, without colours."""
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())
        return [line.rstrip() for line in plain.splitlines() if line.strip()]


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 100 columns."""
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


@pytest.fixture
def clock(monkeypatch):
    """A list whose only number is the time in seconds."""
    now = [1000.0]
    monkeypatch.setattr("coprefl_flwr.federation.progress.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def lines(caplog):
    """The lines of the log, as a function."""
    caplog.set_level(logging.INFO, "flwr.coprefl")
    return lambda: [record.getMessage() for record in caplog.records]


def report(number, rounds=10, **metrics):
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    return RoundReport(number, rounds, {}, named, None, 0.0)


def run(part, clock, rounds, seconds, first=1):
    for number in range(first, rounds + 1):
        clock[0] += seconds
        part(report(number, rounds, loss=1.0))


def test_a_terminal_shows_a_bar_and_keeps_a_line_of_what_is_over(terminal, clock, lines):
    part = Progress(parts=9, stream=terminal, done=1).begin("task [b]0", rounds=3)
    for number in (1, 2, 3):
        clock[0] += 0.25
        part(report(number, 3, loss=1.0))
    assert terminal.shown()[0].endswith("━ [2/9] task [b]0")
    assert "[2/9] task [b]0  round 3/3  loss 1.000  0.25 s/round" in terminal.shown()
    assert lines() == []
    # The cursor, which is hidden beside the bars, is there again.
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


def test_lines_of_the_log_go_above_the_bars_and_then_where_they_went_before(terminal, clock):
    handler = logging.StreamHandler(terminal)
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        progress = Progress(parts=1, stream=terminal)
        part = progress.begin("x", rounds=3)
        logger.warning("first")
        assert "first" in terminal.shown()
        assert handler.stream is not terminal
        progress.end(part)
        assert handler.stream is terminal
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_bars_are_for_terminals_that_can_show_them(terminal, clock, lines, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    run(Progress(parts=1, stream=terminal).begin("x"), clock, 1, 1)
    line = "[1/1] x  round 1/1  loss 1.000  1.00 s/round"
    assert lines() == ([line] if term == "dumb" else [])
    assert (line in terminal.shown()) == (term == "xterm") == bool(terminal.getvalue())


def test_a_log_gets_few_lines_and_always_the_last(clock, lines):
    progress = Progress(parts=2, stream=io.StringIO())
    run(progress.begin("task 0 from random"), clock, 11, LOG_INTERVAL / 4)
    begun = [line.split("  loss")[0] for line in lines()]
    assert begun == [
        f"[1/2] task 0 from random  round {number}/11" for number in (" 4", " 8", "11")
    ]
    assert progress.stream.getvalue() == ""


def test_metrics_that_are_there_are_shown(clock, lines):
    progress = Progress(parts=1, stream=io.StringIO())
    part = progress.begin("x")
    clock[0] += 1
    part(report(1, 1, loss=0.12345, query_loss=2.0, evaluate_loss=3.5, other=9.0))
    assert lines() == ["[1/1] x  round 1/1  loss 0.123  query 2.000  test loss 3.500  1.00 s/round"]


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        (0.2, ""),
        (0.5, "  0:01 left"),
        (29.7, "  0:59 left"),
        (29.9, "  1:00 left"),
        (95, "  3:10 left"),
    ],
)
def test_time_left(clock, lines, monkeypatch, seconds, left):
    """Two rounds are left; 59.8 seconds are a minute, not 0:60."""
    monkeypatch.setattr("coprefl_flwr.federation.progress.LOG_INTERVAL", 0.0)
    part = Progress(parts=1, stream=io.StringIO()).begin("x")
    clock[0] += seconds
    part(report(1, 3))
    assert lines() == [f"[1/1] x  round 1/3  {seconds:.2f} s/round{left}"]


def test_pace_of_a_resumed_run_counts_its_own_rounds(clock, lines):
    part = Progress(parts=1, stream=io.StringIO()).begin("x")
    clock[0] += 2
    part(report(8))
    clock[0] += 4
    part(report(9))
    assert lines() == ["[1/1] x  round  9/10  3.00 s/round  0:03 left"]


def test_each_part_has_its_own_pace(clock, lines):
    progress = Progress(parts=2, stream=io.StringIO())
    run(progress.begin("a"), clock, 2, 5)
    part = progress.begin("b")
    clock[0] += 6
    part(report(1, 2))
    assert lines()[-1] == "[2/2] b  round 1/2  6.00 s/round  0:06 left"


def test_the_time_left_in_all_of_parts_side_by_side(clock, lines):
    progress = Progress(parts=4, stream=io.StringIO(), workers=3)
    progress.ahead = {"task": 9}
    one = progress.begin("a", "long", 10, workers=2)
    other = progress.begin("b", "task", 3)
    clock[0] += 20
    one(report(1))
    one(report(2))
    clock[0] += 10
    # 160 seconds of a worker are left of a, 60 of b, 180 of what is ahead: 400 of three workers.
    other(report(1, 3))
    # 220 of three workers, and 80 are left of a, which has two.
    other(report(3, 3))
    one(report(10))
    assert lines() == [
        "[1/4] a  round  1/10  20.00 s/round  3:00 left",
        "[2/4] b  round 1/3  30.00 s/round  1:00 left  2:13 in all",
        "[2/4] b  round 3/3  10.00 s/round  1:20 in all",
        "[1/4] a  round 10/10  3.00 s/round  0:20 in all",
    ]


def test_in_a_log_parts_side_by_side_take_turns(clock, lines):
    progress = Progress(parts=2, stream=io.StringIO())
    both = [progress.begin("a", rounds=20), progress.begin("b", rounds=20)]
    for number in range(1, 21):
        clock[0] += LOG_INTERVAL / 4
        for part in both:
            part(report(number, 20))
    begun = [line.split("  1.25 s")[0] for line in lines()]
    parts = ("[1/2] a", "[2/2] b")
    assert begun == [f"{part}  round {at:2}/20" for at in (8, 16, 20) for part in parts]


def paced(part, clock, seconds, rounds=100, first=1):
    for number, each in enumerate(seconds, first):
        clock[0] += each
        part(RoundReport(number, rounds, {}, {}, None, each))


@pytest.fixture
def slow(lines):
    """The lines of the log that say that rounds got slower, as a function."""
    return lambda: [line for line in lines() if "a round takes" in line]


def test_rounds_of_another_method_are_not_slower_than_those_before(clock, slow):
    """Also where not every round is told: here the switch's own and the one behind it are not."""
    part = Progress(parts=1, stream=io.StringIO()).begin("x", "task", 100, switch=12)
    paced(part, clock, 11 * [1])
    paced(part, clock, 11 * [9], first=14)
    assert slow() == []
    paced(part, clock, 9 * [40], first=30)
    assert [line.partition(";")[0] for line in slow()] == [
        "x: a round takes 4.4 times as long as at first (40 s, not 9 s)"
    ]


def test_what_gets_several_times_slower_is_told_once_with_the_load(clock, slow, monkeypatch):
    monkeypatch.setattr(
        "coprefl_flwr.federation.progress.load", lambda: "the load is 9.0 on 2 cores"
    )
    progress = Progress(parts=2, stream=io.StringIO())
    part = progress.begin("x", "task", 100)
    # The first round loads data; some later ones are slow for a while.
    paced(part, clock, [60] + 7 * [1] + 2 * [9] + 3 * [1])
    assert slow() == []
    paced(part, clock, 9 * [4], first=14)
    told = "x: a round takes 4.0 times as long as at first (4 s, not 1 s)"
    assert slow() == [f"{told}; the load is 9.0 on 2 cores"]
    progress.end(part)
    other = progress.begin("y", "task", 100)
    paced(other, clock, 8 * [1] + 8 * [5])
    assert len(slow()) == 1


def test_what_takes_longer_by_its_nature_is_not_told(clock, slow):
    """The second phase of "A+B"; and rounds so short that a write to disk is several of them."""
    progress = Progress(parts=2, stream=io.StringIO())
    both = [progress.begin("a+b", "task", 100, switch=10), progress.begin("c", "task", 100)]
    paced(both[0], clock, 10 * [1] + 20 * [5])
    paced(both[1], clock, 10 * [0.01] + 20 * [0.05])
    assert slow() == []


def test_a_part_without_rounds_to_show_is_a_line(lines):
    progress = Progress(parts=4, stream=io.StringIO(), ahead={"task": 5})
    progress.note("task 0 from fedavg  already done", "task", 5)
    progress.begin("x")
    assert lines() == ["[1/4] task 0 from fedavg  already done"]
    assert (progress.done, progress.ahead) == (2, {"task": 0})


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
