"""Progress of long work: a line that renews itself on a terminal, few lines in a log."""

import logging
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from coprefl_flwr.cores import load
from coprefl_flwr.errors import for_terminal
from coprefl_flwr.rounds.strategy import RoundReport

logger = logging.getLogger("flwr.coprefl")

LOG_INTERVAL = 5.0
"""Seconds between two lines of one part of the work in a log."""

PRETRAINING_KIND, TASK_KIND, PERSONAL_KIND = "pre-training", "task", "personalised"
"""Kinds of parts: a round of one takes another time than a round of the other."""

SHOWN = (
    ("loss", "loss {:.3f}"),
    ("query-loss", "query {:.3f}"),
    ("evaluate-loss", "test loss {:.3f}"),
)


SLOWER, AT_FIRST = 3.0, 5
"""A warning is given when the last rounds take this many times as long as the first ones: the
medians of this many rounds are compared."""


@dataclass(eq=False)
class Part:
    """A part of the work that is under way, on so many workers: a hook of its rounds."""

    of: "Progress"
    number: int
    title: str
    kind: str
    workers: int
    began: float
    shown: float
    switch: int = 0
    first_round: int = 0
    last: int = 0
    pace: float = 0.0
    left: int = 0
    at: str = ""
    seconds: list[float] = field(default_factory=list)

    def __call__(self, report: RoundReport) -> None:
        """Show a finished round (a hook of `RoundStrategy.start`)."""
        self.of.show(self, report)

    def take(self, report: RoundReport, now: float) -> None:
        """Take in a finished round."""
        self.first_round = self.first_round or report.round
        self.pace = (now - self.began) / (report.round - self.first_round + 1)
        self.left = report.num_rounds - report.round
        self.at = f"{report.round}/{report.num_rounds}"
        # What follows a switch may take another time by its nature; not every round is told.
        if self.last <= self.switch < report.round:
            self.seconds.clear()
        self.last = report.round
        self.seconds.append(report.seconds)

    def slower(self) -> tuple[float, float] | None:
        """Return the seconds of its first rounds and of its last, if these take much longer."""
        # Not the very first: there data is loaded.
        first, last = self.seconds[1 : AT_FIRST + 1], self.seconds[-AT_FIRST:]
        if len(self.seconds) <= 2 * AT_FIRST:
            return None
        before, now = statistics.median(first), statistics.median(last)
        return (before, now) if now > SLOWER * before and now - before > 0.1 else None


@dataclass
class Progress:
    """Shows how far a study of `parts` parts is; each part is a run of rounds.

    Parameters
    ----------
    ahead : dict[str, int]
        Rounds of each kind of part that were not begun yet, for the time left in all.
    workers : int
        How many processes there are for them.
    """

    parts: int
    ahead: dict[str, int] = field(default_factory=dict)
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    done: int = 0
    workers: int = 1
    _live: list[Part] = field(default_factory=list)
    _pace: dict[str, float] = field(default_factory=dict)
    _told: bool = False

    @classmethod
    def of(cls, parts: Sequence[tuple[str, int]]) -> "Progress":
        """Return the account of parts, each of a kind and so many rounds."""
        progress = cls(0)
        progress.add(parts)
        return progress

    def add(self, parts: Sequence[tuple[str, int]]) -> None:
        """Add parts to what is ahead."""
        for kind, rounds in parts:
            self.parts += 1
            self.ahead[kind] = self.ahead.get(kind, 0) + rounds

    def begin(self, title: str, kind: str = "", rounds: int = 0, switch: int = 0) -> None:
        """Start the next part, of so many rounds; the one before it is over.

        Rounds after `switch`, if there is one, are those of another method.
        """
        self._live.clear()
        self.beside(title, kind, rounds, switch=switch)

    def beside(
        self, title: str, kind: str = "", rounds: int = 0, workers: int = 1, switch: int = 0
    ) -> Part:
        """Start a part beside those that are under way."""
        self._count(kind, rounds)
        now = time.monotonic()
        shown = for_terminal(title)
        part = Part(self, self.done, shown, kind, workers, now, now, switch, left=rounds)
        self._live.append(part)
        return part

    def skip(self, title: str, kind: str = "", rounds: int = 0) -> None:
        """Say that a part was finished by the run that this one resumes."""
        self._count(kind, rounds)
        logger.info("[%s/%s] %s  already done", self.done, self.parts, title)

    def note(self, title: str) -> None:
        """Say that a part without rounds is begun."""
        self._count("", 0)
        self.clear()
        logger.info("[%s/%s] %s", self.done, self.parts, title)

    def clear(self) -> None:
        """Take the line that renews itself away, for another that stays."""
        if self._live and self.stream.isatty():
            self.stream.write("\r\x1b[2K")
            self.stream.flush()

    def _count(self, kind: str, rounds: int) -> None:
        self.done += 1
        if kind in self.ahead:
            self.ahead[kind] -= rounds

    def again(self, part: Part, workers: int) -> None:
        """Go on with a part that was taken away before it was over."""
        part.workers, part.began, part.first_round = workers, time.monotonic(), 0
        self._live.append(part)

    def end(self, part: Part) -> None:
        """Take away a part, whether or not it came to its last round."""
        if part in self._live:
            self._live.remove(part)

    def __call__(self, report: RoundReport) -> None:
        """Show a finished round of the part that was begun last."""
        self.show(self._live[-1], report)

    def show(self, part: Part, report: RoundReport) -> None:
        """Show a finished round of a part."""
        now = time.monotonic()
        part.take(report, now)
        self._pace[part.kind] = part.pace * part.workers
        last = report.round == report.num_rounds
        if self.stream.isatty():
            # What is over stays, and below it one line renews itself.
            line, alone = self._line(part, report), len(self._live) == 1
            if last:
                self.end(part)
                line += "\n" + (self._beside() if self._live else "")
            self.stream.write("\r\x1b[2K" + (line if last or alone else self._beside()))
            self.stream.flush()
        elif last or now - part.shown >= LOG_INTERVAL * len(self._live):
            part.shown = now
            logger.info("%s", self._line(part, report))
            if last:
                self.end(part)
        self._tell_slower(part)

    def _line(self, part: Part, report: RoundReport) -> str:
        """Return e.g. "[2/9] pre-training coprefl  round 10/15  loss 4.127  1.2 s/round"."""
        width = len(str(report.num_rounds))
        words = [
            f"[{part.number}/{self.parts}] {part.title}",
            f"round {report.round:{width}}/{report.num_rounds}",
            *(text.format(report.metrics[name]) for name, text in SHOWN if name in report.metrics),
            f"{part.pace:.2f} s/round",
        ]
        if round(part.pace * part.left):
            words.append(f"{clock(part.pace * part.left)} left")
        return "  ".join(words + self._in_all())

    def _beside(self) -> str:
        """Return what is under way at once, in one line of the terminal."""
        under_way = "  |  ".join(f"{one.title} {one.at}".strip() for one in self._live)
        line = "  ".join([f"[{self.done}/{self.parts}]", *self._in_all(), under_way])
        return line[: shutil.get_terminal_size().columns - 1]

    def _in_all(self) -> list[str]:
        """Return ["1:05 in all"], the time that is left for all parts, [] where it is not known."""
        waiting = {kind: rounds for kind, rounds in self.ahead.items() if rounds > 0}
        kinds = waiting.keys() | {one.kind for one in self._live if one.left}
        alone = not waiting and len(self._live) < 2
        if alone or not kinds <= self._pace.keys():
            return []
        each = [self._pace.get(one.kind, 0.0) * one.left for one in self._live]
        left = sum(each) + sum(self._pace[kind] * rounds for kind, rounds in waiting.items())
        longest = (time / one.workers for time, one in zip(each, self._live, strict=True))
        left = max(left / self.workers, *longest, 0.0)
        return [f"{clock(left)} in all"] if round(left) else []

    def _tell_slower(self, part: Part) -> None:
        """Say once that rounds take much longer than at first, and how busy the machine is."""
        if self._told or not (found := part.slower()):
            return
        self._told = True
        before, now = found
        many = f"{now / before:.1f} times as long as at first ({now:.2g} s, not {before:.2g} s)"
        told = "; ".join(filter(None, [f"{part.title}: a round takes {many}", load()]))
        logger.warning("%s", told)


def clock(seconds: float) -> str:
    """Return a time such as "3:05" or "2:03:05"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def quiet_flower(name: str = "flwr") -> Iterator[None]:
    """Keep Flower's own account of every round out of the log; its warnings stay.

    `name` is the logger whose lines are kept out: "flwr.coprefl" is this package's own.
    """

    def only_warnings(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    kept = logging.getLogger(name)
    kept.addFilter(only_warnings)
    try:
        yield
    finally:
        kept.removeFilter(only_warnings)
