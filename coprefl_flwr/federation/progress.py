"""Progress of long work: bars on a terminal, few lines in a log."""

import logging
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from rich import progress as rich
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.table import Column

from coprefl_flwr.errors import for_terminal
from coprefl_flwr.federation.machine import load
from coprefl_flwr.federation.run import RoundReport

logger = logging.getLogger("flwr.coprefl")

LOG_INTERVAL = 5.0
"""Seconds between two lines of one part of the work in a log."""

PRETRAINING_KIND, TASK_KIND, PERSONAL_KIND = "pre-training", "task", "personalised"
"""Kinds of parts: a round of one takes another time than a round of the other."""

SHOWN = {"loss": "loss", "query-loss": "query", "evaluate-loss": "test loss"}
"""Metrics that are shown, and what they are called."""

SLOWER, AT_FIRST = 3.0, 5
"""A warning is given when the last rounds take this many times as long as the first ones: the
medians of this many rounds are compared."""


@dataclass(eq=False)
class Part:
    """A part of the work that is under way, on so many workers: a hook of its rounds."""

    of: "Progress"
    number: str
    title: str
    kind: str
    left: int
    switch: int
    workers: int = 1
    began: float = 0.0
    shown: float = 0.0
    first: int = 0
    last: int = 0
    pace: float = 0.0
    seconds: list[float] = field(default_factory=list)
    bar: rich.TaskID | None = None

    def __call__(self, report: RoundReport) -> None:
        """Show a finished round (a hook of `RoundStrategy.start`)."""
        now = time.monotonic()
        self.first = self.first or report.round
        self.pace = (now - self.began) / (report.round - self.first + 1)
        self.left = report.num_rounds - report.round
        # What follows a switch may take another time by its nature; not every round is reported.
        if self.last <= self.switch < report.round:
            self.seconds.clear()
        self.last = report.round
        self.seconds.append(report.seconds)
        self.of.show(self, report, now)

    def slower(self) -> str:
        """Return by how much its last rounds take longer than the first ones, "" if not much."""
        # Not the very first: there data is loaded.
        first, last = self.seconds[1 : AT_FIRST + 1], self.seconds[-AT_FIRST:]
        before, now = statistics.median(first or last), statistics.median(last)
        if len(self.seconds) <= 2 * AT_FIRST or now <= max(SLOWER * before, before + 0.1):
            return ""
        longer = f"{now / before:.1f} times as long as at first ({now:.2g} s, not {before:.2g} s)"
        return f"{self.title}: a round takes {longer}"


@dataclass
class Progress:
    """Shows how far `parts` parts of the work are, on so many worker processes.

    Each part is a run of rounds. `ahead` are the rounds of each kind of part that were not begun
    yet, for the time left in all.
    """

    parts: int = 0
    ahead: dict[str, int] = field(default_factory=dict)
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    done: int = 0
    workers: int = 1
    _live: list[Part] = field(default_factory=list)
    _pace: dict[str, float] = field(default_factory=dict)
    _warned: bool = False
    _bars: rich.Progress | None = None
    _opened: ExitStack = field(default_factory=ExitStack)

    def add(self, parts: Iterable[tuple[str, int]]) -> None:
        """Add parts, each of a kind and so many rounds, to what is ahead."""
        for kind, rounds in parts:
            self.parts += 1
            self.ahead[kind] = self.ahead.get(kind, 0) + rounds

    def _count(self, kind: str, rounds: int) -> str:
        """Take a part from what is ahead; return its number, such as "[2/9]"."""
        self.done += 1
        if kind in self.ahead:
            self.ahead[kind] -= rounds
        return f"[{self.done}/{self.parts}]"

    def note(self, title: str, kind: str = "", rounds: int = 0) -> None:
        """Log the title of a part that has no rounds to show."""
        logger.info("%s %s", self._count(kind, rounds), title)

    def begin(
        self, title: str, kind: str = "", rounds: int = 0, switch: int = 0, workers: int = 1
    ) -> Part:
        """Start a part; whoever starts it ends it, also after an error.

        Rounds after `switch`, if there is one, are those of another method.
        """
        part = Part(self, self._count(kind, rounds), for_terminal(title), kind, rounds, switch)
        self.go_on(part, workers)
        return part

    def go_on(self, part: Part, workers: int) -> None:
        """Start a part, or go on with one that was ended before it was over."""
        part.workers, part.first = workers, 0
        part.began = part.shown = time.monotonic()
        self._live.append(part)
        if not self._bars and self.stream.isatty():
            self._open(Console(file=self.stream))
        if self._bars:
            part.bar = self._bars.add_task(f"{part.number} {part.title}", total=part.left)

    def _open(self, console: Console) -> None:
        """Open bars on a terminal; lines of the log go above them."""
        if console.is_dumb_terminal:
            return
        rest = Column(no_wrap=True, ratio=1)
        line = rich.TextColumn("{task.description}", markup=False, table_column=rest)
        self._bars = rich.Progress(
            rich.BarColumn(12),
            line,
            console=console,
            refresh_per_second=2,
            transient=True,
            expand=True,
        )
        self._opened.enter_context(self._bars)
        for handler in logging.getLogger("flwr").handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream.isatty():
                self._opened.callback(handler.setStream, handler.stream)
                handler.setStream(FileProxy(console, handler.stream))

    def end(self, part: Part) -> None:
        """Take away a part, whether or not it came to its last round."""
        if part in self._live:
            self._live.remove(part)
            if self._bars and part.bar is not None:
                self._bars.remove_task(part.bar)
        if not self._live:
            self._opened.close()
            self._bars = None

    def show(self, part: Part, report: RoundReport, now: float) -> None:
        """Show a finished round of a part: in its bar, or in a line of the log if one is due."""
        self._pace[part.kind] = part.pace * part.workers
        line, bars, last = self._line(part, report), self._bars, not part.left
        if bars and part.bar is not None:
            bars.update(part.bar, completed=part.last, total=report.num_rounds, description=line)
            if last:  # What is over stays above the bars.
                bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif last or now - part.shown >= LOG_INTERVAL * len(self._live):
            part.shown = now
            logger.info("%s", line)
        if last:
            self.end(part)
        if not self._warned and (slower := part.slower()):
            self._warned = True
            logger.warning("%s", "; ".join(filter(None, [slower, load()])))

    def _line(self, part: Part, report: RoundReport) -> str:
        """Return e.g. "[2/9] task 0 from random  round 10/15  loss 4.127  1.20 s/round"."""
        words = [f"{part.number} {part.title}"]
        words.append(f"round {report.round:{len(str(report.num_rounds))}}/{report.num_rounds}")
        known = [metric for metric in SHOWN if metric in report.metrics]
        words += [f"{SHOWN[metric]} {report.metrics[metric]:.3f}" for metric in known]
        words.append(f"{part.pace:.2f} s/round")
        times = {"left": part.pace * part.left, "in all": self._in_all()}
        words += [f"{clock(seconds)} {what}" for what, seconds in times.items() if round(seconds)]
        return "  ".join(words)

    def _in_all(self) -> float:
        """Return the seconds that are left for all parts; 0 where that is not known."""
        left = [(kind, rounds, self.workers) for kind, rounds in self.ahead.items() if rounds > 0]
        left += [(one.kind, one.left, one.workers) for one in self._live]
        if len(left) < 2 or any(rounds and kind not in self._pace for kind, rounds, _ in left):
            return 0.0
        seconds = [self._pace.get(kind, 0.0) * rounds for kind, rounds, _ in left]
        longest = max(each / workers for each, (_, _, workers) in zip(seconds, left, strict=True))
        return max(sum(seconds) / self.workers, longest)


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
