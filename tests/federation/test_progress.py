"""Progress on a terminal and in a log, with a clock that the tests set."""

import io
import logging
import re
from typing import NamedTuple

import pytest
from rich.console import Console

from coprefl_flwr.federation.progress import LOG_INTERVAL, Progress, quiet_flower
from coprefl_flwr.strategies import RoundReport


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def shown(self):
        """Return all lines that were written, including overwritten lines, without colours."""
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
    """Return a function that returns the lines of the log."""
    caplog.set_level(logging.INFO, "flwr.coprefl")
    return lambda: [record.getMessage() for record in caplog.records]


class Planned(NamedTuple):
    """A part of the work that has not begun."""

    title: str
    kind: str = "task"
    rounds: int = 10


def report(number, rounds=10, seconds=1.0, **metrics):
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    return RoundReport(number, rounds, {}, named, None, seconds)


def run(part, clock, seconds, rounds=100, first=1):
    """Report a round for each of these durations."""
    for number, each in enumerate(seconds, first):
        clock[0] += each
        part(report(number, rounds, each, loss=1.0))


def test_a_terminal_shows_parts_and_ticks_what_is_over(terminal, clock, lines):
    progress = Progress(stream=terminal, workers=2)
    progress.add([Planned("pre-training fedavg", rounds=3), Planned("task [b]0", rounds=4)])
    both = [
        progress.begin("pre-training fedavg", "task", 3),
        progress.begin("task [b]0", "task", 4),
    ]
    run(both[0], clock, [9, 2], 3)
    first, second, total = _shown(progress._table())
    assert first == "  pre-training FedAvg ━━━━━━╸        2/3  loss 1.000  estimating"
    assert second.split() == ["task", "[b]0", "0/4", "estimating"]
    assert total.split() == ["all", "parts", "0/2", "estimating"]
    run(both[0], clock, [2], 3, first=3)
    (tick,) = [line for line in terminal.shown() if line.startswith("✓")]
    assert re.sub(" +", " ", tick) == "✓ pre-training FedAvg 3 rounds loss 1.000 0:13"
    progress.end(both[1])
    assert lines() == []
    # The cursor is hidden while the table is shown; at the end it is visible again.
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


def _shown(table):
    """Return the lines of a table on a terminal of 80 columns."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_is_no_wider_than_the_terminal(clock, monkeypatch, width):
    for name, value in {"TERM": "xterm", "COLUMNS": str(width), "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    progress = Progress(stream=Terminal())
    title = f"task 0 from {'a' * 200}"
    progress.add([Planned(title), Planned("other", rounds=10**4)])
    run(progress.begin(title), clock, 3 * [30], 10**4)
    wide = Console(file=io.StringIO(), width=500, force_terminal=True, color_system=None)
    with wide.capture() as captured:
        wide.print(progress._table())
    assert max(map(len, captured.get().splitlines())) <= width


def test_methods_have_their_names_and_options_where_two_differ(clock, lines):
    progress = Progress(stream=io.StringIO())
    texts = ["random", "qffl:q=1", "coprefl:gamma=0,mu=1", "coprefl:gamma=1,mu=1", "my.py:A"]
    progress.add(Planned(f"task 0 from {text}, seed 1") for text in texts)
    for text in texts:
        progress.note(f"task 0 from {text}, seed 1")
    names = ["random", "q-FFL", "CoPreFL:gamma=0", "CoPreFL:gamma=1", "my.py:A"]
    of_each = enumerate(names, 1)
    assert lines() == [f"[{at}/5] task 0 from {name}, seed 1" for at, name in of_each]


def test_lines_of_the_log_go_above_the_table_and_then_where_they_went_before(terminal, clock):
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
def test_tables_are_for_terminals_that_can_show_them(terminal, clock, lines, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    run(Progress(parts=1, stream=terminal).begin("x"), clock, [1], 1)
    assert lines() == (["[1/1] x  round 1/1  loss 1.000"] if term == "dumb" else [])
    ticked = [line for line in terminal.shown() if line.startswith("✓ x")]
    assert len(ticked) == (term == "xterm") == bool(terminal.getvalue())


def test_a_log_gets_few_lines_and_always_the_last(clock, lines):
    progress = Progress(parts=2, stream=io.StringIO())
    run(progress.begin("task 0 from random"), clock, 11 * [LOG_INTERVAL / 4], 11)
    begun = [line.split("  loss")[0] for line in lines()]
    assert begun == [
        f"[1/2] task 0 from random  round {number}/11" for number in (" 4", " 8", "11")
    ]
    assert progress.stream.getvalue() == ""


def test_metrics_that_are_there_are_shown(clock, lines):
    progress = Progress(parts=1, stream=io.StringIO())
    part = progress.begin("x")
    part(report(1, 1, loss=0.12345, query_loss=2.0, evaluate_loss=3.5, other=9.0))
    assert lines() == ["[1/1] x  round 1/1  loss 0.123  query 2.000  test loss 3.500"]


@pytest.fixture
def every(monkeypatch):
    """Log a line for every round."""
    monkeypatch.setattr("coprefl_flwr.federation.progress.LOG_INTERVAL", 0.0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, ""),
        (0.5, "  0:01 left"),
        (29.7, "  0:59 left"),
        (29.9, "  1:00 left"),
        (95, "  3:10 left"),
    ],
)
def test_time_left(clock, lines, every, seconds, expected):
    """Two rounds are left. 59.8 seconds are shown as 1:00, not as 0:60. Round 1 is not counted."""
    run(Progress(parts=1, stream=io.StringIO()).begin("x"), clock, [600, seconds, seconds], 5)
    assert lines()[:2] == [f"[1/1] x  round {at}/5  loss 1.000  estimating" for at in (1, 2)]
    assert lines()[2] == f"[1/1] x  round 3/5  loss 1.000  {seconds:.2f} s/round{expected}"


def test_the_pace_is_the_median_round(clock, lines, every):
    """One slow round, such as a round that tests the model, does not change the time left."""
    part = Progress(parts=1, stream=io.StringIO()).begin("x")
    run(part, clock, [9, 1, 1, 60, 1, 1], 10)
    assert lines()[-1] == "[1/1] x  round  6/10  loss 1.000  1.00 s/round  0:04 left"


def test_pace_of_a_resumed_run_counts_its_own_rounds(clock, lines, every):
    run(Progress(parts=1, stream=io.StringIO()).begin("x"), clock, [9, 3, 3], 11, first=8)
    assert lines()[-1] == "[1/1] x  round 10/11  loss 1.000  3.00 s/round  0:03 left"


def test_each_part_has_its_own_pace(clock, lines, every):
    progress = Progress(parts=2, stream=io.StringIO())
    run(progress.begin("a"), clock, 4 * [5], 4)
    run(progress.begin("b"), clock, 3 * [6], 4)
    assert lines()[-1] == "[2/2] b  round 3/4  loss 1.000  6.00 s/round  0:06 left"


def test_the_time_left_in_total_of_parts_side_by_side(clock, lines, every):
    progress = Progress(parts=4, stream=io.StringIO(), workers=3)
    progress.ahead = {"task": 9}
    part = progress.begin("a", "long", 10, workers=2)
    other = progress.begin("b", "task", 4)
    run(part, clock, [20, 20], 10)
    assert lines()[-1] == "[1/4] a  round  2/10  loss 1.000  estimating"
    run(part, clock, [20], 10, first=3)
    # Part a needs 140 more seconds. How long a round of a task takes is not known yet.
    assert lines()[-1] == "[1/4] a  round  3/10  loss 1.000  20.00 s/round  2:20 left"
    run(other, clock, 3 * [30], 4)
    # In seconds of one worker: 280 for a, which has two workers; 30 for b; 150 for the rounds
    # ahead. Three workers share them.
    shown = "[2/4] b  round 3/4  loss 1.000  30.00 s/round  0:30 left  2:33 left in total"
    assert lines()[-1] == shown
    run(other, clock, [30], 4, first=4)
    # Three workers need 143 s for 150 + 280 s of one worker.
    assert lines()[-1] == "[2/4] b  round 4/4  loss 1.000  30.00 s/round  2:23 left in total"
    part(report(10))
    assert lines()[-1].endswith("  0:50 left in total")


def test_parts_of_few_rounds_are_estimated_by_those_before(clock, lines, every):
    progress = Progress(parts=2, stream=io.StringIO(), ahead={"task": 4})
    run(progress.begin("a", "task", 2), clock, [3, 3], 2)
    assert lines()[-1] == "[1/2] a  round 2/2  loss 1.000  0:06 left in total"
    run(progress.begin("b", "task", 2), clock, [3], 2)
    assert lines()[-1] == "[2/2] b  round 1/2  loss 1.000  estimating"


def test_in_a_log_parts_side_by_side_take_turns(clock, lines):
    progress = Progress(parts=2, stream=io.StringIO())
    both = [progress.begin("a", rounds=20), progress.begin("b", rounds=20)]
    for number in range(1, 21):
        clock[0] += LOG_INTERVAL / 4
        for part in both:
            part(report(number, 20))
    begun = [line.split("  1.00 s")[0] for line in lines()]
    parts = ("[1/2] a", "[2/2] b")
    assert begun == [f"{part}  round {at:2}/20" for at in (8, 16, 20) for part in parts]


@pytest.fixture
def slow(lines):
    """Return a function that returns the log lines about rounds that got slower."""
    return lambda: [line for line in lines() if "a round takes" in line]


def test_rounds_of_another_method_are_not_slower_than_those_before(clock, slow):
    """This holds even if rounds are not reported: here the switch, round 12, and round 13."""
    part = Progress(parts=1, stream=io.StringIO()).begin("x", "task", 100, switch=12)
    run(part, clock, 11 * [1])
    run(part, clock, 11 * [9], first=14)
    assert slow() == []
    run(part, clock, 9 * [40], first=30)
    assert [line.partition(";")[0] for line in slow()] == [
        "x: a round takes 4.4 times as long as at first (40 s, not 9 s)"
    ]


def test_what_gets_several_times_slower_is_told_once_with_the_load(clock, slow, monkeypatch):
    monkeypatch.setattr(
        "coprefl_flwr.federation.progress.load", lambda: "the load is 9.0 on 2 cores"
    )
    progress = Progress(parts=2, stream=io.StringIO())
    part = progress.begin("x", "task", 100)
    # The first round loads data; two later rounds are slow for a while.
    run(part, clock, [60] + 7 * [1] + 2 * [9] + 3 * [1])
    assert slow() == []
    run(part, clock, 9 * [4], first=14)
    warning = "x: a round takes 4.0 times as long as at first (4 s, not 1 s)"
    assert slow() == [f"{warning}; the load is 9.0 on 2 cores"]
    progress.end(part)
    other = progress.begin("y", "task", 100)
    run(other, clock, 8 * [1] + 8 * [5])
    assert len(slow()) == 1


def test_what_takes_longer_by_its_nature_is_not_told(clock, slow):
    """No warning for the second phase of "A+B", or for rounds much shorter than a write to disk."""
    progress = Progress(parts=2, stream=io.StringIO())
    both = [progress.begin("a+b", "task", 100, switch=10), progress.begin("c", "task", 100)]
    run(both[0], clock, 10 * [1] + 20 * [5])
    run(both[1], clock, 10 * [0.01] + 20 * [0.05])
    assert slow() == []


def test_a_part_without_rounds_to_show_is_a_line(lines):
    progress = Progress(parts=4, stream=io.StringIO(), ahead={"task": 5})
    progress.note("task 0 from fedavg", "task", 5, "already done")
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
