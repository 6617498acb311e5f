"""Progress of long work: a live page on a terminal, or a few lines in a log file."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TextIO

from rich import progress
from rich.console import Console, JustifyMethod
from rich.file_proxy import FileProxy
from rich.table import Column
from rich.text import Text

from coprefl_flwr.errors import logger
from coprefl_flwr.federation.run import RoundReport

LOG_INTERVAL = 5.0
"""Least time, in seconds, between two lines of the log about the same part of the work."""

SHOWN = {"loss": "loss", "query-loss": "query", "evaluate-loss": "test"}
"""{metric: its label}. The first of these metrics that a round has is shown."""

_TITLE_WIDTH, _WIDEST_TITLE = 25, 40
"""Width of a title on a terminal of 80 columns and on a wide terminal, in characters."""


class Progress:
    """Display of the progress of all parts of the work; each part is a number of rounds.

    The page is shown inside a `with` block. On a stream that is not a terminal, or on which lines
    cannot be overwritten, the progress is logged instead.

    Parameters
    ----------
    parts, rounds : int
        The number of all parts, and the number of their rounds.
    stream : TextIO, optional
        Where the page is shown. If it is None, it is the standard error.
    """

    def __init__(self, parts: int, rounds: int, stream: TextIO | None = None) -> None:
        self.parts, self.begun = parts, 0
        stream = stream or sys.stderr
        console = Console(file=stream, highlight=False, force_jupyter=False)
        self.on_terminal = stream.isatty() and not console.is_dumb_terminal
        self.page = progress.Progress(
            *_columns(console),
            console=console,
            refresh_per_second=2,
            speed_estimate_period=86400.0,  # A day, because a round may take hours.
            transient=True,
            get_time=time.monotonic,
            disable=not self.on_terminal,
        )
        self.page.add_task(f"all {parts} parts", total=rounds, visible=parts > 1, loss="", rate="")
        (self.total,) = self.page.tasks
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        """Show the page below the lines of the log."""
        if self.on_terminal:
            self._opened.enter_context(self.page)
            for handler in logging.getLogger("flwr").handlers + logging.getLogger().handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream.isatty():
                    self._opened.callback(handler.setStream, handler.stream)
                    handler.setStream(FileProxy(self.page.console, handler.stream))
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the page from the terminal."""
        self._opened.close()

    def part(self, title: str, rounds: int) -> "Part":
        """Start showing a part with this number of rounds, until a `with` block of it ends."""
        self.begun += 1
        self.page.add_task(title, total=rounds, loss="", rate="")
        return Part(self, self.page.tasks[-1], f"[{self.begun}/{self.parts}]", time.monotonic())


@dataclass(eq=False)
class Part(AbstractContextManager["Part"]):
    """A part of the work that is running, such as one training run; a hook of its rounds.

    `task` is rich's record of its rounds, `number` its number, such as "[2/9]", and `logged` the
    time of its last line in the log, in seconds.
    """

    of: Progress
    task: progress.Task
    number: str
    logged: float

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop showing the part, which is done unless the block raised an exception."""
        self.end(done=kind is None)

    def __call__(self, report: RoundReport) -> None:
        """Show a finished round; called as a hook of `RoundStrategy.start`."""
        self.show(report.round, report.metrics)

    @contextmanager
    def part(self, _: str, rounds: int) -> Iterator[Callable[[RoundReport], None]]:
        """Context manager: give a hook that shows the next `rounds` rounds of this part."""
        before = int(self.task.completed)
        yield lambda report: self.show(before + report.round, report.metrics)
        self.show(before + rounds, {})

    def show(self, finished: int, metrics: Mapping[str, Any]) -> None:
        """Show the number of finished rounds, and a loss from the metrics of the last one."""
        page, task, total = self.of.page, self.task, self.of.total
        if finished == task.completed:
            return
        page.advance(total.id, finished - task.completed)
        if not task.completed and finished > 1:  # These rounds were run before.
            page.reset(task.id, completed=finished)
        losses = [f"{SHOWN[name]} {float(metrics[name]):.3f}" for name in SHOWN if name in metrics]
        page.update(task.id, completed=finished, loss=(losses or [task.fields["loss"]])[0])
        if speed := task.finished_speed or task.speed:
            page.update(task.id, rate=f"{1 / speed:.{2 if speed > 0.1 else 0}f} s/round")
        now = time.monotonic()
        due = now - self.logged >= LOG_INTERVAL * (len(page.tasks) - 1) or task.finished
        if due and not self.of.on_terminal:
            self.logged = now
            rounds = f"round {finished}/{task.total:.0f}"
            in_total = f"{_left(total)} in total" if self.of.parts > 1 and _left(total) else ""
            left = "" if task.finished else _left(task) or "estimating"
            self._log(rounds, task.fields["loss"], task.fields["rate"], left, in_total)

    def end(self, *, done: bool = True) -> None:
        """Stop showing the part. If it is done, a line about it is left above the page."""
        page, task = self.of.page, self.task
        if done:
            if before := not task.completed:
                remark = "already done" if task.total else ""
                page.update(task.id, completed=task.total, loss=remark)
                page.advance(self.of.total.id, task.completed)
            page.update(task.id, total=task.completed)  # It may have stopped early.
            if self.of.on_terminal:
                page.console.print(page.make_tasks_table([task]))
            elif before:
                self._log(task.fields["loss"])
        page.remove_task(task.id)

    def _log(self, *words: str) -> None:
        logger.info(
            "%s", "  ".join(filter(None, [f"{self.number} {self.task.description}", *words]))
        )


# ---- the columns of the page ---------------------------------------------------------------------


def _columns(console: Console) -> list[progress.ProgressColumn]:
    """Return the columns mark, title, bar, rounds, loss, seconds per round, and time."""
    spinner, mark = ("line", "+") if console.options.ascii_only else ("dots", "✓")
    width = min(_TITLE_WIDTH + max(0, console.width - 80), _WIDEST_TITLE)
    return [
        progress.SpinnerColumn(spinner, finished_text=Text(mark, style="green")),
        _text("{task.description}", width, "left"),
        progress.BarColumn(6),
        _text("{task.completed:.0f}/{task.total:.0f}", 10),
        _text("{task.fields[loss]}", 12),
        _text("{task.fields[rate]}", 12),
        progress.TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(width=8)),
    ]


def _text(text: str, width: int, justify: JustifyMethod = "right") -> progress.TextColumn:
    column = Column(width=width, no_wrap=True, overflow="ellipsis")
    return progress.TextColumn(text, justify=justify, markup=False, table_column=column)


def _left(task: progress.Task) -> str:
    """Return e.g. "0:02:05 left"; "" if the time is not known, or if nothing is left."""
    return f"{timedelta(seconds=task.time_remaining)} left" if task.time_remaining else ""


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
