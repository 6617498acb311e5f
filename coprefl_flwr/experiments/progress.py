"""Progress of long work: a line that renews itself on a terminal, few lines in a log."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from coprefl_flwr.strategies import RoundReport

logger = logging.getLogger("flwr.coprefl")

LOG_INTERVAL = 5.0
"""Seconds between two lines of one part of the work in a log."""

SHOWN = (
    ("loss", "loss {:.3f}"),
    ("query-loss", "query {:.3f}"),
    ("evaluate-loss", "test loss {:.3f}"),
)


@dataclass
class Progress:
    """Shows how far a study of `parts` parts is; each part is a run of rounds."""

    parts: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    done: int = 0
    _began: float = 0.0
    _shown: float = 0.0
    _title: str = ""
    _first_round: int = 0

    def begin(self, title: str) -> None:
        """Start the next part."""
        self.done += 1
        self._title = title
        self._began = self._shown = time.monotonic()
        self._first_round = 0

    def skip(self, title: str) -> None:
        """Say that a part was finished by the run that this one resumes."""
        self.done += 1
        logger.info("[%s/%s] %s  already done", self.done, self.parts, title)

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
        minutes, seconds = divmod(round(pace * (report.num_rounds - report.round)), 60)
        words = [
            f"[{self.done}/{self.parts}] {self._title}",
            f"round {report.round:{width}}/{report.num_rounds}",
            *(text.format(report.metrics[name]) for name, text in SHOWN if name in report.metrics),
            f"{pace:.2f} s/round",
        ]
        if minutes or seconds:
            words.append(f"{minutes}:{seconds:02} left")
        return "  ".join(words)


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Keep Flower's own account of every round out of the log; its warnings stay."""

    def only_warnings(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    flower = logging.getLogger("flwr")
    flower.addFilter(only_warnings)
    try:
        yield
    finally:
        flower.removeFilter(only_warnings)
