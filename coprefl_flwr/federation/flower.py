"""All code that uses internals of flwr, outside its public modules; each function has a test.

Other modules of this package import only from `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and,
for `NumPyClient`, `flwr.client`.
"""

import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from flwr.app import Message
from flwr.common.logger import console_handler, update_console_handler
from flwr.supercore.task_identity import TaskIdentity

from coprefl_flwr.errors import RunFailedError, SettingsError

# What a handler of Python's root logger writes to the console, Flower's handler does not repeat.
console_handler.addFilter(
    lambda _: logging.StreamHandler not in map(type, logging.getLogger().handlers)
)

FRAME = '\n  File "'
"""Text of a log record that contains a traceback, as of a client in a simulation."""


def enter_run(run_id: int, node_id: int) -> None:
    """Allow this process to create `Message` objects outside a run that Flower started.

    A `Message` needs the ids of a run and a node. Flower sets these ids when it starts a ServerApp.
    The grid in `grids.local` runs without Flower and sets the ids by this function. If the ids are
    set already, nothing is changed.
    """
    if TaskIdentity._run_id is None:
        TaskIdentity.task_id = run_id
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = node_id


def name_message(message: Message, message_id: str) -> None:
    """Set the id of a message, to which its reply refers; Flower's grids do this when they send."""
    message.metadata.__dict__["_message_id"] = message_id


class _Ending:
    """A filter of Flower's log that makes the reason of a failed run the last line of the log."""

    def __init__(self) -> None:
        # A weak reference, because an exception keeps its traceback's variables in memory.
        self.error: Callable[[], Exception | None] = lambda: None
        self.text, self.runs = "", 0

    def __call__(self, record: logging.LogRecord) -> bool:
        """Remove the error's traceback; append its message to Flower's line on the exit code."""
        if self.runs and record.levelno == logging.ERROR and FRAME in record.getMessage():
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        if error := record.exc_info and record.exc_info[1]:
            ended = error is self.error()
            self.text = str(error) if ended else ""
            record.exc_info = None if ended else record.exc_info
        if str(record.msg).startswith("Exit Code:") and self.text:
            record.msg = f"{record.msg}\n\n{self.text}"
            self.text = ""
        return True


_ENDING = _Ending()


def end_log_with(error: Exception) -> None:
    """Make the message of `error` the last line of Flower's log, without a traceback.

    `error` is the exception that ends the run. By default, Flower logs the exception's traceback
    and then a paragraph on the exit code. Users then do not find the exception's message, which
    states the remedy.
    """
    _ENDING.error = weakref.ref(error)
    logging.getLogger("flwr").addFilter(_ENDING)


@contextmanager
def plain_log() -> Iterator[None]:
    """Keep tracebacks out of Flower's log while a strategy runs; failures are logged as one line.

    In the context, the tracebacks that Flower logs have the level DEBUG, which FLWR_LOG_LEVEL=DEBUG
    shows. If the context ends with a RunFailedError or a SettingsError, the error's message is the
    last line of the log.
    """
    _ENDING.runs += 1
    logging.getLogger("flwr").addFilter(_ENDING)  # Stays, as errors may be logged later.
    try:
        yield
    except (RunFailedError, SettingsError) as error:
        end_log_with(error)
        raise
    finally:
        _ENDING.runs -= 1


@plain_log()
def refuse_old_style(strategy: object, *_: Any, **__: Any) -> NoReturn:
    """Raise a SettingsError with the remedy, if Flower uses a strategy in the old style.

    Strategies have this function as the method that Flower would call first in the old style.
    """
    problem = f"{type(strategy).__name__} cannot run in ServerApp(server_fn=...)"
    raise SettingsError(f"{problem}: call its start() in @app.main(), as in examples/old_app.diff")


def without_colours() -> None:
    """Remove colour codes from Flower's log and from the prefixes of Ray's lines of workers.

    If the log is shown on a terminal, the colours stay unless NO_COLOR is set
    (https://no-color.org).
    """
    if os.environ.get("NO_COLOR") or not sys.stderr.isatty():
        update_console_handler(colored=False)
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
