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


def test_terminal_shows_running_parts_and_ticks_finished_parts(terminal, clock, lines):
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


def _shown(table, width=80):
    """Return the lines of a table on a terminal."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_table_is_no_wider_than_the_terminal(clock, monkeypatch):
    width = 80
    for name, value in {"TERM": "xterm", "COLUMNS": str(width), "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    progress = Progress(stream=Terminal())
    title = f"task 0 from {'a' * 200}"
    progress.add([Planned(title), Planned("other", rounds=10**4)])
    run(progress.begin(title), clock, 3 * [30], 10**4)
    assert max(map(len, _shown(progress._table(), 500))) <= width


def test_log_lines_are_printed_above_the_table(terminal, clock):
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
def test_dumb_terminal_gets_lines_instead_of_a_table(terminal, clock, lines, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    run(Progress(parts=1, stream=terminal).begin("x"), clock, [1], 1)
    assert lines() == (["[1/1] x  round 1/1  loss 1.000"] if term == "dumb" else [])
    ticked = [line for line in terminal.shown() if line.startswith("✓ x")]
    assert len(ticked) == (term == "xterm") == bool(terminal.getvalue())


def test_log_gets_few_lines_and_always_the_last_round(clock, lines):
    progress = Progress(parts=3, stream=io.StringIO(), ahead={"task": 5})
    progress.note("task 0 from fedavg", "task", 5, "already done")
    assert (progress.done, progress.ahead) == (1, {"task": 0})
    run(progress.begin("task 0 from random"), clock, 11 * [LOG_INTERVAL / 4], 11)
    begun = [line.split("  loss")[0] for line in lines()]
    assert begun == [
        "[1/3] task 0 from fedavg  already done",
        *(f"[2/3] task 0 from random  round {number}/11" for number in (" 4", " 8", "11")),
    ]
    assert progress.stream.getvalue() == ""


@pytest.fixture
def every(monkeypatch):
    """Log a line for every round."""
    monkeypatch.setattr("coprefl_flwr.federation.progress.LOG_INTERVAL", 0.0)


@pytest.mark.parametrize(
    ("seconds", "first", "expected"),
    [
        ([600, 0.2, 0.2], 1, "3/11  loss 1.000  0.20 s/round  0:02 left"),
        ([600, 29.99, 29.99], 1, "3/11  loss 1.000  29.99 s/round  4:00 left"),
        # One slow round, such as a round that tests the model, does not change the median.
        ([9, 1, 1, 60, 1, 1], 1, "6/11  loss 1.000  1.00 s/round  0:05 left"),
        # A resumed run.
        ([9, 3, 3], 8, "10/11  loss 1.000  3.00 s/round  0:03 left"),
    ],
)
def test_time_left_is_that_of_the_median_round_without_the_first(
    clock, lines, every, seconds, first, expected
):
    progress = Progress(parts=2, stream=io.StringIO())
    run(progress.begin("another"), clock, 4 * [5], 4)
    run(progress.begin("x"), clock, seconds, 11, first)
    assert lines()[4].endswith("/11  loss 1.000  estimating")
    assert lines()[-1].removeprefix("[2/2] x  round").lstrip() == expected


def test_total_time_left_of_parallel_parts(clock, lines, every):
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


def test_quiet_flower_keeps_lines_of_this_package_and_all_warnings(caplog):
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


def test_parts_are_called_by_the_labels_of_their_rows(clock, lines):
    """Labels are shown like the rows of a table: "coprefl" as CoPreFL, other names as they are."""
    progress = Progress(stream=io.StringIO())
    progress.labels = {"qffl:q=1.0": "fair", "coprefl:gamma=0.5": "coprefl"}
    titles = [
        "pre-training qffl:q=1.0",
        "task 0 from coprefl:gamma=0.5, seed 1",
        "task 0 from moon",
    ]
    progress.add([Planned(title) for title in titles])
    for title in titles:
        progress.note(title)
    shown = ["pre-training fair", "task 0 from CoPreFL, seed 1", "task 0 from MOON"]
    assert lines() == [f"[{n}/3] {title}" for n, title in enumerate(shown, 1)]
