"""Progress of long work: a table of parts on a terminal, few lines in a log."""

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

from coprefl_flwr.errors import for_terminal
from coprefl_flwr.federation.machine import load
from coprefl_flwr.federation.run import RoundReport
from coprefl_flwr.named import display_names

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

ESTIMATED_FROM = 3
"""Rounds of a part before its time left is shown: in the first round data is loaded."""

_TITLE_WIDTH, _BAR_WIDTH = 28, 10
"""Most characters of a title on a terminal of 80 columns, and those of a bar."""


@dataclass(eq=False)
class Part:
    """A part of the work that is under way, on this many workers: a hook of its rounds."""

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
        """Show a finished round (a hook of `RoundStrategy.start`)."""
        self.rounds_left = report.num_rounds - report.round
        # What follows a switch may take another time by its nature; not every round is reported.
        if self.last <= self.switch < report.round:
            self.seconds.clear()
        self.last = report.round
        self.seconds.append(report.seconds)
        values = report.metrics.items()
        self.metrics = {name: float(value) for name, value in values if name in SHOWN}
        self.of.show(self, report, time.monotonic())

    @property
    def pace(self) -> float | None:
        """Seconds of a round: the median of all except the first; None before the third round."""
        if len(self.seconds) < ESTIMATED_FROM:
            return None
        return statistics.median(self.seconds[1:])

    @property
    def rounds(self) -> int:
        """How many rounds it has, as far as is known."""
        return self.last + self.rounds_left

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
    """Shows how far `parts` parts of the work are, on this many worker processes.

    Each part is a run of rounds. `ahead` are the rounds of each kind of part that were not begun
    yet, for the time left in total.
    """

    parts: int = 0
    ahead: dict[str, int] = field(default_factory=dict)
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    done: int = 0
    workers: int = 1
    _titles: dict[str, str] = field(default_factory=dict)
    _live: list[Part] = field(default_factory=list)
    _pace: dict[str, float] = field(default_factory=dict)
    _warned: bool = False
    _terminal: Console | None = None
    _display: ExitStack | None = None

    def __post_init__(self) -> None:
        """Look whether the stream is a terminal that can renew lines."""
        console = Console(file=self.stream, highlight=False, force_jupyter=False)
        if self.stream.isatty() and not console.is_dumb_terminal:
            self._terminal = console

    def add(self, parts: Iterable[tuple[str, str, int]]) -> None:
        """Add parts, each a title, a kind and a number of rounds, to what is ahead."""
        titles = list(self._titles)
        for title, kind, rounds in parts:
            self.parts += 1
            self.ahead[kind] = self.ahead.get(kind, 0) + rounds
            titles.append(title)
        names = display_names(word for title in titles for word in _WORD.findall(title))
        self._titles = {
            title: for_terminal(_WORD.sub(lambda word: names[word[0]], title)) for title in titles
        }

    def _begun(self, title: str, kind: str, rounds: int) -> tuple[str, str]:
        """Take a part from what is ahead; return its number, such as "[2/9]", and its title."""
        self.done += 1
        if kind in self.ahead:
            self.ahead[kind] -= rounds
        return f"[{self.done}/{self.parts}]", self._titles.get(title, for_terminal(title))

    def note(self, title: str, kind: str = "", rounds: int = 0, remark: str = "") -> None:
        """Show the title of a part that has no rounds to show, and a remark on it."""
        number, title = self._begun(title, kind, rounds)
        if self._terminal:
            self._tick(title, remark=remark)
        else:
            logger.info("%s", "  ".join(filter(None, [f"{number} {title}", remark])))

    def begin(
        self, title: str, kind: str = "", rounds: int = 0, switch: int = 0, workers: int = 1
    ) -> Part:
        """Start a part; the caller ends it, also after an error.

        Rounds after `switch`, if there is one, are those of another method.
        """
        part = Part(self, *self._begun(title, kind, rounds), kind, rounds, switch)
        self.go_on(part, workers)
        return part

    def go_on(self, part: Part, workers: int) -> None:
        """Start a part, or continue with one that was ended before it was over."""
        part.workers = workers
        part.began = part.shown = time.monotonic()
        self._live.append(part)
        if self._terminal and not self._display:
            self._display = _open_live(self._terminal, self._table)

    def end(self, part: Part) -> None:
        """Take away a part, whether or not it came to its last round."""
        if part in self._live:
            self._live.remove(part)
        if self._display and not self._live:
            self._display.close()
            self._display = None

    def show(self, part: Part, report: RoundReport, now: float) -> None:
        """Show a finished round of a part: in the table, or in a line of the log if one is due."""
        over = not part.rounds_left
        if part.pace is not None:
            self._pace[part.kind] = part.pace * part.workers
        elif over and part.kind not in self._pace:  # Of few rounds, which load data too.
            self._pace[part.kind] = statistics.median(part.seconds) * part.workers
        if self._terminal and over:
            rounds = f"{part.rounds} round{'s' * (part.rounds != 1)}"
            self._tick(part.title, rounds, _losses(part, 1), clock(now - part.began))
        elif not self._terminal and (over or now - part.shown >= LOG_INTERVAL * len(self._live)):
            part.shown = now
            logger.info("%s", self._line(part))
        if over:
            self.end(part)
        if not self._warned and (slower := part.slower()):
            self._warned = True
            logger.warning("%s", "; ".join(filter(None, [slower, load()])))

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
        """Return the parts that are under way, and below them how far all parts are."""
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
        """Return an empty table: titles, bars, rounds, loss, and time."""
        table = Table.grid(padding=(0, 1, 0, 0))
        titles = [*self._titles.values(), *(part.title for part in self._live), "all parts"]
        room = _TITLE_WIDTH + max(0, (self._terminal.width if self._terminal else 80) - 80)
        table.add_column(no_wrap=True, width=2 + min(room, max(map(cell_len, titles))))
        table.add_column(justify="right", width=_BAR_WIDTH)
        for least in (7, 11, 11):
            table.add_column(justify="right", no_wrap=True, min_width=least)
        return table

    def _tick(self, title: str, rounds: str = "", losses: str = "", remark: str = "") -> None:
        """Leave a line about a part that is over on the terminal, above the table."""
        assert self._terminal is not None
        table = self._columns()
        mark = "+" if self._terminal.options.ascii_only else "✓"
        words = [Text(word, style="dim") for word in (rounds, "", losses, remark)]
        table.add_row(Text.assemble((f"{mark} ", "green"), title), *words)
        self._terminal.print(table)

    def _left_in_total(self) -> float | None:
        """Return the seconds that are left for all parts; None where that is not known."""
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
"""A word of a title, without the comma behind it."""


def _open_live(terminal: Console, table: Callable[[], Table]) -> ExitStack:
    """Show a table at the end of a terminal, below the lines of the log, until it is closed."""
    display = ExitStack()
    live = Live(console=terminal, get_renderable=table, refresh_per_second=2, transient=True)
    display.enter_context(live)
    for handler in logging.getLogger("flwr").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream.isatty():
            display.callback(handler.setStream, handler.stream)
            handler.setStream(FileProxy(terminal, handler.stream))
    return display


def _bar(total: int, completed: int) -> ProgressBar:
    return ProgressBar(total or 1, completed, width=_BAR_WIDTH)


def _losses(part: Part, most: int) -> str:
    """Return the losses of a part's last round, at most this many of them."""
    names = [name for name in SHOWN if name in part.metrics][:most]
    return "  ".join(f"{SHOWN[name]} {part.metrics[name]:.3f}" for name in names)


def _seconds_left(part: Part) -> float | None:
    """Return the seconds that are left for a part; None where that is not known."""
    if not part.rounds_left:
        return 0.0
    return None if part.pace is None else part.pace * part.rounds_left


def _time_left(seconds: float | None) -> str:
    return "estimating" if seconds is None else f"{clock(seconds)} left"


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

    quiet = logging.getLogger(name)
    quiet.addFilter(only_warnings)
    try:
        yield
    finally:
        quiet.removeFilter(only_warnings)
