"""Progress of long work: a table on a terminal, or a few lines in a log file."""

import logging
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coprefl_flwr.federation.run import RoundReport
from coprefl_flwr.named import display_names

logger = logging.getLogger("flwr.coprefl")

LOG_INTERVAL = 5.0
"""Least time, in seconds, between two lines of the log about the same part of the work."""

PRETRAINING_KIND, TASK_KIND, PERSONAL_KIND = "pre-training", "task", "personalised"
"""Kinds of parts. The time per round is estimated separately for each kind."""

SHOWN = {"loss": "loss", "query-loss": "query", "evaluate-loss": "test loss"}
"""{metric that is shown: label of the metric}."""

ESTIMATED_FROM = 3
"""Number of finished rounds from which on the time left is shown: the first round loads data."""

_TITLE_WIDTH, _BAR_WIDTH = 28, 10
"""Largest width of a title on a terminal of 80 columns, and the width of a bar, in characters."""


@dataclass(eq=False)
class Part:
    """A part of the work that is running, such as one training run; a hook of its rounds.

    `workers` is the number of worker processes that the part uses. After the round `switch`, the
    part continues with another method. `seconds` holds the times of its rounds.
    """

    of: "Progress"
    number: str
    title: str
    kind: str
    rounds_left: int
    switch: int
    workers: int = 1
    began: float = 0.0
    shown: float = 0.0
    last: int = 0
    seconds: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def __call__(self, report: RoundReport) -> None:
        """Record and show a finished round; called as a hook of `RoundStrategy.start`."""
        self.rounds_left = report.num_rounds - report.round
        # Rounds after the switch may take longer or shorter; not every round is reported.
        if self.last <= self.switch < report.round:
            self.seconds.clear()
        self.last = report.round
        self.seconds.append(report.seconds)
        values = report.metrics.items()
        self.metrics = {name: float(value) for name, value in values if name in SHOWN}
        self.of.show(self, report, time.monotonic())

    @property
    def pace(self) -> float | None:
        """Median seconds per round, without the first round; None before the third round."""
        if len(self.seconds) < ESTIMATED_FROM:
            return None
        return statistics.median(self.seconds[1:])

    @property
    def rounds(self) -> int:
        """Number of rounds of the part, finished and left, as far as is known."""
        return self.last + self.rounds_left


@dataclass
class Progress:
    """Display of the progress of all parts of the work; each part is a run of rounds.

    `labels` are names of methods to show instead of their texts.
    `parts` is the number of all parts, `done` the number of parts that have begun, and `workers`
    the number of worker processes. `ahead` is {kind of part: number of rounds in parts that have
    not begun}, from which the total time left is estimated.
    """

    parts: int = 0
    ahead: dict[str, int] = field(default_factory=dict)
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    labels: dict[str, str] = field(default_factory=dict)
    done: int = 0
    workers: int = 1
    _titles: dict[str, str] = field(default_factory=dict)
    _live: list[Part] = field(default_factory=list)
    _pace: dict[str, float] = field(default_factory=dict)
    _terminal: Console | None = None
    _display: ExitStack | None = None

    def __post_init__(self) -> None:
        """Set `_terminal` if the stream is a terminal on which lines can be overwritten."""
        console = Console(file=self.stream, highlight=False, force_jupyter=False)
        if self.stream.isatty() and not console.is_dumb_terminal:
            self._terminal = console

    def add(self, parts: Iterable[tuple[str, str, int]]) -> None:
        """Add parts that have not begun, each given as (title, kind, number of rounds)."""
        titles = list(self._titles)
        for title, kind, rounds in parts:
            self.parts += 1
            self.ahead[kind] = self.ahead.get(kind, 0) + rounds
            titles.append(title)
        words = {word for title in titles for word in _WORD.findall(title)}
        labels = {word: self.labels.get(word, word) for word in sorted(words)}
        names = display_names(labels.values())
        self._titles = {
            title: _WORD.sub(lambda word: names[labels[word[0]]], title) for title in titles
        }

    def _begun(self, title: str, kind: str, rounds: int) -> tuple[str, str]:
        """Count a part as begun; return its number, such as "[2/9]", and its title."""
        self.done += 1
        if kind in self.ahead:
            self.ahead[kind] -= rounds
        return f"[{self.done}/{self.parts}]", self._titles.get(title, title)

    def note(self, title: str, kind: str = "", rounds: int = 0, remark: str = "") -> None:
        """Show the title of a part whose rounds are not run or not shown, and a remark."""
        number, title = self._begun(title, kind, rounds)
        if self._terminal:
            self._tick(title, remark=remark)
        else:
            logger.info("%s", "  ".join(filter(None, [f"{number} {title}", remark])))

    def begin(
        self, title: str, kind: str = "", rounds: int = 0, switch: int = 0, workers: int = 1
    ) -> Part:
        """Start showing a part, and return the part; the caller must call `end`, also on an error.

        If `switch` is not 0, the rounds after round `switch` are trained by another method.
        """
        part = Part(self, *self._begun(title, kind, rounds), kind, rounds, switch)
        self.go_on(part, workers)
        return part

    def go_on(self, part: Part, workers: int) -> None:
        """Start showing a part, which is new or was ended before its last round."""
        part.workers = workers
        part.began = part.shown = time.monotonic()
        self._live.append(part)
        if self._terminal and not self._display:
            self._display = _open_live(self._terminal, self._table)

    def end(self, part: Part) -> None:
        """Stop showing a part, whether or not its last round has finished."""
        if part in self._live:
            self._live.remove(part)
        if self._display and not self._live:
            self._display.close()
            self._display = None

    def show(self, part: Part, report: RoundReport, now: float) -> None:
        """Show a finished round of a part, in the table or, if a line is due, in the log."""
        over = not part.rounds_left
        if part.pace is not None:
            self._pace[part.kind] = part.pace * part.workers
        elif over and part.kind not in self._pace:  # Few rounds, with the one that loads data.
            self._pace[part.kind] = statistics.median(part.seconds) * part.workers
        if self._terminal and over:
            rounds = f"{part.rounds} round{'s' * (part.rounds != 1)}"
            self._tick(part.title, rounds, _losses(part, 1), clock(now - part.began))
        elif not self._terminal and (over or now - part.shown >= LOG_INTERVAL * len(self._live)):
            part.shown = now
            logger.info("%s", self._line(part))
        if over:
            self.end(part)

    def _line(self, part: Part) -> str:
        """Return e.g. "[2/9] task 0 from random  round 10/15  loss 4.127  1.20 s/round"."""
        words = [f"{part.number} {part.title}"]
        words.append(f"round {part.last:{len(str(part.rounds))}}/{part.rounds}")
        words.append(_losses(part, len(SHOWN)))
        if part.pace is not None:
            words.append(f"{part.pace:.2f} s/round")
        words.append(_time_left(_seconds_left(part)))
        total = self._left_in_total()
        if total is not None and len(self._live) + sum(self.ahead.values()) > 1:
            words.append(f"{clock(total)} left in total")
        return "  ".join(word for word in words if word and word != "0:00 left")

    def _table(self) -> Table:
        """Return a table of the running parts, with the progress of all parts in the last row."""
        table = self._columns()
        for part in self._live:
            bar, rounds = (part.rounds, part.last), f"{part.last}/{part.rounds}"
            time_left = _time_left(_seconds_left(part))
            table.add_row(Text(f"  {part.title}"), _bar(*bar), rounds, _losses(part, 1), time_left)
        over = self.done - len(self._live)
        if self.parts > 1:
            time_left, count = _time_left(self._left_in_total()), f"{over}/{self.parts}"
            table.add_row("  all parts", _bar(self.parts, over), count, "", time_left, style="dim")
        return table

    def _columns(self) -> Table:
        """Return a table without rows; its columns are title, bar, rounds, loss and time."""
        table = Table.grid(padding=(0, 1, 0, 0))
        titles = [*self._titles.values(), *(part.title for part in self._live), "all parts"]
        room = _TITLE_WIDTH + max(0, (self._terminal.width if self._terminal else 80) - 80)
        table.add_column(no_wrap=True, width=2 + min(room, max(map(cell_len, titles))))
        table.add_column(justify="right", width=_BAR_WIDTH)
        for least in (7, 11, 11):
            table.add_column(justify="right", no_wrap=True, min_width=least)
        return table

    def _tick(self, title: str, rounds: str = "", losses: str = "", remark: str = "") -> None:
        """Print a line about a finished part on the terminal, above the table."""
        assert self._terminal is not None
        table = self._columns()
        mark = "+" if self._terminal.options.ascii_only else "✓"
        words = [Text(word, style="dim") for word in (rounds, "", losses, remark)]
        table.add_row(Text.assemble((f"{mark} ", "green"), title), *words)
        self._terminal.print(table)

    def _left_in_total(self) -> float | None:
        """Return the estimated seconds left for all parts, or None if there is no estimate."""
        paces = [(self._pace.get(kind), rounds) for kind, rounds in self.ahead.items() if rounds]
        seconds = [None if pace is None else pace * rounds for pace, rounds in paces]
        longest = 0.0
        for part in self._live:
            seconds_left = _seconds_left(part)
            if seconds_left is None and part.kind in self._pace:
                seconds_left = self._pace[part.kind] * part.rounds_left / part.workers
            longest = max(longest, seconds_left or 0.0)
            seconds.append(None if seconds_left is None else seconds_left * part.workers)
        known_seconds = [value for value in seconds if value is not None]
        if len(known_seconds) < len(seconds):
            return None
        return max(sum(known_seconds) / self.workers, longest)


_WORD = re.compile(r"[^\s,](?:\S*[^\s,])?")
"""Pattern of a word in a title, without a comma after the word."""


def _open_live(terminal: Console, table: Callable[[], Table]) -> ExitStack:
    """Show a table below the log's lines on a terminal, until the returned stack is closed."""
    display = ExitStack()
    live = Live(console=terminal, get_renderable=table, refresh_per_second=2, transient=True)
    display.enter_context(live)
    for handler in logging.getLogger("flwr").handlers + logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream.isatty():
            display.callback(handler.setStream, handler.stream)
            handler.setStream(FileProxy(terminal, handler.stream))
    return display


def _bar(total: int, completed: int) -> ProgressBar:
    return ProgressBar(total or 1, completed, width=_BAR_WIDTH)


def _losses(part: Part, most: int) -> str:
    """Return a text with the losses of a part's last round, at most `most` of them."""
    names = [name for name in SHOWN if name in part.metrics][:most]
    return "  ".join(f"{SHOWN[name]} {part.metrics[name]:.3f}" for name in names)


def _seconds_left(part: Part) -> float | None:
    """Return the estimated seconds left for a part, or None if there is no estimate."""
    if not part.rounds_left:
        return 0.0
    return None if part.pace is None else part.pace * part.rounds_left


def _time_left(seconds: float | None) -> str:
    return "estimating" if seconds is None else f"{clock(seconds)} left"


def clock(seconds: float) -> str:
    """Return a duration in seconds as a text such as "3:05" or "2:03:05"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def quiet_flower(name: str = "flwr") -> Iterator[None]:
    """Remove the lines that Flower logs for every round from the log; keep its warnings.

    `name` is the logger that is filtered; "flwr.coprefl" is the logger of this package.
    """

    def only_warnings(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    quiet = logging.getLogger(name)
    quiet.addFilter(only_warnings)
    try:
        yield
    finally:
        quiet.removeFilter(only_warnings)
