"""Progress of long work: a line that renews itself on a terminal, few lines in a log."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

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


@dataclass
class Progress:
    """Shows how far a study of `parts` parts is; each part is a run of rounds.

    Parameters
    ----------
    ahead : dict[str, int]
        Rounds of each kind of part that were not begun yet, for the time left in all.
    """

    parts: int
    ahead: dict[str, int] = field(default_factory=dict)
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    done: int = 0
    _began: float = 0.0
    _shown: float = 0.0
    _title: str = ""
    _first_round: int = 0
    _kind: str = ""
    _pace: dict[str, float] = field(default_factory=dict)

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

    def begin(self, title: str, kind: str = "", rounds: int = 0) -> None:
        """Start the next part, of so many rounds."""
        self.done += 1
        self._title, self._kind = title, kind
        self._started(kind, rounds)
        self._began = self._shown = time.monotonic()
        self._first_round = 0

    def skip(self, title: str, kind: str = "", rounds: int = 0) -> None:
        """Say that a part was finished by the run that this one resumes."""
        self.done += 1
        self._started(kind, rounds)
        logger.info("[%s/%s] %s  already done", self.done, self.parts, title)

    def _started(self, kind: str, rounds: int) -> None:
        if kind in self.ahead:
            self.ahead[kind] -= rounds

    def __call__(self, report: RoundReport) -> None:
        """Show a finished round (a hook of `RoundStrategy.start`)."""
        now = time.monotonic()
        self._first_round = self._first_round or report.round
        last = report.round == report.num_rounds
        if self.stream.isatty():
            self.stream.write("\r\x1b[2K" + self._line(report, now) + ("\n" if last else ""))
            self.stream.flush()
        elif last or now - self._shown >= LOG_INTERVAL:
            self._shown = now
            logger.info("%s", self._line(report, now))

    def _line(self, report: RoundReport, now: float) -> str:
        """Return e.g. "[2/9] pre-training coprefl  round 10/15  loss 4.127  1.2 s/round"."""
        width = len(str(report.num_rounds))
        pace = (now - self._began) / (report.round - self._first_round + 1)
        self._pace[self._kind] = pace
        left = pace * (report.num_rounds - report.round)
        words = [
            f"[{self.done}/{self.parts}] {self._title}",
            f"round {report.round:{width}}/{report.num_rounds}",
            *(text.format(report.metrics[name]) for name, text in SHOWN if name in report.metrics),
            f"{pace:.2f} s/round",
        ]
        waiting = {kind: rounds for kind, rounds in self.ahead.items() if rounds > 0}
        if round(left):
            words.append(f"{clock(left)} left")
        if waiting and waiting.keys() <= self._pace.keys():
            left += sum(self._pace[kind] * rounds for kind, rounds in waiting.items())
            if round(left):
                words.append(f"{clock(left)} in all")
        return "  ".join(words)


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
