"""Progress on a terminal and in a log, with a clock that the tests set."""

import io
import logging
import re

import pytest
from rich.console import Console

from coprefl_flwr.federation.progress import LOG_INTERVAL, Progress, quiet_flower
from coprefl_flwr.strategies import RoundReport


class Terminal(io.StringIO):
    def isatty(self):
        return True


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


def report(number, rounds=10, seconds=1.0, **metrics):
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    return RoundReport(number, rounds, {}, named, None, seconds)


def run(part, clock, seconds, first=1):
    """Report a round for each of these durations."""
    for number, each in enumerate(seconds, first):
        clock[0] += each
        part(report(number, loss=1.0))


def plain(text):
    """Return the lines of a text without colours and with single spaces."""
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).splitlines()
    return [re.sub(" +", " ", line).strip() for line in lines]


def shown(progress, width=100):
    """Return the lines of the page on a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(progress.page.make_tasks_table(progress.page.tasks))
    return captured.get().splitlines()


def test_terminal_shows_running_parts_and_ticks_finished_parts(terminal, clock, lines):
    with Progress(3, 9, terminal) as progress:
        with progress.part("task [b]0", 2), progress.part("pre-training fedavg", 3) as part:
            run(part, clock, [9, 2])
            total, other, row = [line[2:] for line in plain("\n".join(shown(progress)))]
            assert total == "all 3 parts ━ 2/9 0:00:14"
            assert other == "task [b]0 0/2 -:--:--"
            assert row == "pre-training fedavg ━━━━ 2/3 loss 1.000 2.00 s/round 0:00:02"
            run(part, clock, [2], first=3)
        with pytest.raises(KeyError), progress.part("broken", 4):
            raise KeyError
    ticks = [line for line in plain(terminal.getvalue()) if "✓" in line]
    assert [tick[tick.index("✓") :] for tick in ticks] == [
        "✓ pre-training fedavg ━━━━━━ 3/3 loss 1.000 2.00 s/round 0:00:13",
        "✓ task [b]0 ━━━━━━ 2/2 already done 0:00:13",
    ]
    assert lines() == []
    # The cursor is hidden while the page is shown; at the end it is visible again.
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


def test_page_is_no_wider_than_the_terminal(terminal, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    progress = Progress(2, 2 * 10**4, terminal)
    part = progress.part(f"task 0 from {'a' * 200}", 10**4)
    run(part, clock, 3 * [300])
    rows = shown(progress, 500)
    assert {len(row.rstrip()) for row in rows} == {80}
    assert "3/10000   loss 1.000  300 s/round" in rows[1]


def test_log_lines_are_printed_above_the_page(terminal, clock):
    handler = logging.StreamHandler(terminal)
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    try:
        with Progress(1, 3, terminal):
            logger.warning("first")
            assert "first" in plain(terminal.getvalue())
            assert handler.stream is not terminal
        assert handler.stream is terminal
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_dumb_terminal_gets_lines_instead_of_a_page(terminal, clock, lines, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    with Progress(1, 1, terminal) as progress, progress.part("x", 1) as part:
        run(part, clock, [6])
    assert lines() == (["[1/1] x  round 1/1  loss 1.000"] if term == "dumb" else [])
    assert bool(terminal.getvalue()) == (term == "xterm")


def test_log_gets_few_lines_and_always_the_last_round(clock, lines):
    stream = io.StringIO()
    with Progress(3, 20, stream) as progress:
        with progress.part("task 0 from fedavg", 5):
            pass
        with progress.part("task 0 from random", 11) as part:
            run(part, clock, 11 * [LOG_INTERVAL / 4])
    begun = [line.split("  loss")[0] for line in lines()]
    assert begun == [
        "[1/3] task 0 from fedavg  already done",
        *(f"[2/3] task 0 from random  round {number}/11" for number in (4, 8, 11)),
    ]
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "first", "expected"),
    [
        ([600], 1, "1/11  loss 1.000  estimating"),
        ([600, 0.2, 0.2], 1, "3/11  loss 1.000  0.20 s/round  0:00:02 left"),
        ([600, 30, 30], 1, "3/11  loss 1.000  30 s/round  0:04:00 left"),
        # A resumed run.
        ([9, 3, 3], 8, "10/11  loss 1.000  3.00 s/round  0:00:03 left"),
    ],
)
def test_time_left_is_that_of_all_rounds_but_the_first(
    clock, lines, monkeypatch, seconds, first, expected
):
    monkeypatch.setattr("coprefl_flwr.federation.progress.LOG_INTERVAL", 0.0)
    run(Progress(1, 11, io.StringIO()).part("x", 11), clock, seconds, first)
    assert lines()[-1] == f"[1/1] x  round {expected}"


def test_part_shows_the_rounds_of_its_stages(clock):
    """A pre-training that stops early counts as whole; a task follows."""
    part = Progress(1, 5, io.StringIO()).part("run", 5)
    with part.part("pre-training", 3) as hook:
        hook(report(1, loss=4.0))
        assert part.task.completed == 1
    assert part.task.completed == 3
    with part.part("task", 2) as hook:
        hook(report(1, query_loss=1.0))
        assert part.task.completed == 4
    assert (part.task.completed, part.task.fields["loss"]) == (5, "query 1.000")


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
