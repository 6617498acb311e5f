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


def test_parts_side_by_side_share_a_line_until_they_are_over(clock, lines, monkeypatch):
    terminal = Terminal()
    progress = Progress(parts=4, stream=terminal, workers=3)
    progress.ahead = {"task": 9}
    one = progress.beside("a", "long", 10, workers=2)
    other = progress.beside("b", "task", 3)
    clock[0] += 2
    one(report(1))
    one(report(2))
    clock[0] += 1
    # 16 seconds of a worker are left of a; 6 of b, and 18 of what is ahead: 40 of three workers.
    other(report(1, 3))
    # 22 of three workers, and 8 are left of a, which has two.
    other(report(3, 3))
    one(report(10))
    shown = terminal.getvalue().split("\r\x1b[2K")[1:]
    assert shown == [
        "[2/4]  a 1/10  |  b",
        "[2/4]  a 2/10  |  b",
        "[2/4]  0:13 in all  a 2/10  |  b 1/3",
        "[2/4] b  round 3/3  1.00 s/round  0:08 in all\n[2/4]  0:08 in all  a 2/10",
        "[1/4] a  round 10/10  0.30 s/round  0:02 in all\n",
    ]
    monkeypatch.setenv("COLUMNS", "30")
    again = progress.beside("a very long title of a part", "long", 10)
    progress.beside("c")
    clock[0] += 1
    again(report(1))
    assert terminal.getvalue().rpartition("\x1b[2K")[2] == "[4/4]  0:09 in all  a very lo"


def test_in_a_log_parts_side_by_side_take_turns(clock, lines):
    progress = Progress(parts=2, stream=io.StringIO())
    both = [progress.beside("a", rounds=20), progress.beside("b", rounds=20)]
    for number in range(1, 21):
        clock[0] += LOG_INTERVAL / 4
        for part in both:
            part(report(number, 20))
    begun = [line.split("  1.25 s")[0] for line in lines()]
    parts = ("[1/2] a", "[2/2] b")
    assert begun == [f"{part}  round {at:2}/20" for at in (8, 16, 20) for part in parts]


def paced(progress, clock, seconds, rounds=100, first=1):
    for number, each in enumerate(seconds, first):
        clock[0] += each
        progress(RoundReport(number, rounds, {}, {}, None, each))


def test_rounds_of_another_method_are_not_slower_than_those_before(clock, lines):
    """Also where not every round is told: here the switch's own and the one behind it are not."""
    progress = Progress(parts=1, stream=Terminal())
    progress.begin("x", "task", 100, switch=12)
    paced(progress, clock, 11 * [1])
    paced(progress, clock, 11 * [9], first=14)
    assert lines() == []
    paced(progress, clock, 9 * [40], first=30)
    assert [line.partition(";")[0] for line in lines()] == [
        "x: a round takes 4.4 times as long as at first (40 s, not 9 s)"
    ]


def test_what_gets_several_times_slower_is_told_once_with_the_load(clock, lines, monkeypatch):
    monkeypatch.setattr("coprefl_flwr.rounds.progress.load", lambda: "the load is 9.0 on 2 cores")
    progress = Progress(parts=2, stream=Terminal())
    progress.begin("x", "task", 100)
    # The first round loads data; some later ones are slow for a while.
    paced(progress, clock, [60] + 7 * [1] + 2 * [9] + 3 * [1])
    assert lines() == []
    paced(progress, clock, 9 * [4], first=14)
    told = "x: a round takes 4.0 times as long as at first (4 s, not 1 s)"
    assert lines() == [f"{told}; the load is 9.0 on 2 cores"]
    progress.begin("y", "task", 100)
    paced(progress, clock, 8 * [1] + 8 * [5])
    assert len(lines()) == 1


def test_what_takes_longer_by_its_nature_is_not_told(clock, lines):
    """The second phase of "A+B"; and rounds so short that a write to disk is several of them."""
    progress = Progress(parts=2, stream=Terminal())
    progress.begin("a+b", "task", 100, switch=10)
    paced(progress, clock, 10 * [1] + 20 * [5])
    progress.begin("c", "task", 100)
    paced(progress, clock, 10 * [0.01] + 20 * [0.05])
    assert lines() == []


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
