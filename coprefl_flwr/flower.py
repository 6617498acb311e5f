"""What this package needs of flwr beyond its public modules; there is a test of each function.

Everything else is imported from `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and, for
`NumPyClient`, `flwr.client`.
"""

import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from flwr.app import Message
from flwr.common.config import flatten_dict, parse_config_args
from flwr.common.logger import update_console_handler
from flwr.supercore.task_identity import TaskIdentity

from coprefl_flwr.errors import RunFailedError, SettingsError

OF_CLIENTS = {("vce_api", "worker"), ("raybackend", "process_message")}
"""The modules and functions of Flower's simulation that log what a client raised."""


def enter_run(run_id: int, node_id: int) -> None:
    """Make `Message(...)` work in this process, as it does inside a run that Flower started.

    Flower sets who the process is when it starts a ServerApp; the grid in `grids.local` stands
    outside of Flower and sets it itself. Inside a run, nothing is changed.
    """
    if TaskIdentity._run_id is None:
        TaskIdentity.task_id = run_id
        TaskIdentity.run_id = run_id
        TaskIdentity.node_id = node_id


def name_message(message: Message, message_id: str) -> None:
    """Give a message the id that its reply refers to (Flower's grids do this when they send)."""
    message.metadata.__dict__["_message_id"] = message_id


class _Ending:
    """The filter of Flower's log that `end_log_with` sets."""

    def __init__(self) -> None:
        # Weak, as an error holds everything that its traceback saw.
        self.error: Callable[[], Exception | None] = lambda: None
        self.text = ""

    def __call__(self, record: logging.LogRecord) -> bool:
        """Take away the error's traceback, and put the error behind what Flower says of its end."""
        if record.exc_info and record.exc_info[1] is not None:
            self.text = ""
            if record.exc_info[1] is self.error():
                self.text = str(record.exc_info[1])
                record.exc_info = None
        if str(record.msg).startswith("Exit Code:") and self.text:
            record.msg = f"{record.msg}\n\n{self.text}"
            self.text = ""
        return True


_ENDING = _Ending()


def end_log_with(error: Exception) -> None:
    """Make `error` the last line of Flower's log of a run that it ends, without a traceback.

    Flower logs the traceback of what a ServerApp raises and then a paragraph on its exit code; the
    line that says what the user can do about it would be lost between them.
    """
    _ENDING.error = weakref.ref(error)
    logging.getLogger("flwr").addFilter(_ENDING)


@contextmanager
def plain_log() -> Iterator[None]:
    """Keep tracebacks out of Flower's log of a run, which says in one line what failed.

    What a simulation logs of each exception of a client is at its level DEBUG then
    (FLWR_LOG_LEVEL=DEBUG shows it), and an error that is written for the user ends the log.
    """

    def demote(record: logging.LogRecord) -> bool:
        if (record.module, record.funcName) in OF_CLIENTS and record.levelno == logging.ERROR:
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return True

    flower = logging.getLogger("flwr")
    flower.addFilter(demote)
    try:
        yield
    except (RunFailedError, SettingsError) as error:
        end_log_with(error)
        raise
    finally:
        flower.removeFilter(demote)


def refuse_old_style(strategy: object, *_: Any, **__: Any) -> NoReturn:
    """Take the place of the first method of an old-style strategy, and say what to do instead."""
    name = type(strategy).__name__
    error = SettingsError(
        f"{name} cannot run in ServerApp(server_fn=...), whose strategies are Flower's old kind: "
        f"write a main function, decorated with @app.main(), that calls {name}(...).start(grid, "
        "initial_arrays, num_rounds); see 'In an app of your own' in the README of coprefl-flwr "
        "and examples/old_app.diff"
    )
    end_log_with(error)
    raise error


def without_colours() -> None:
    """Leave colour codes out of Flower's log and of what Ray puts before its workers' lines.

    Where the log goes to a terminal they stay, unless NO_COLOR is set (https://no-color.org).
    """
    if os.environ.get("NO_COLOR") or not sys.stderr.isatty():
        update_console_handler(colored=False)
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")


def given_config(texts: Sequence[str]) -> dict[str, Any]:
    """Return the run-config, by key, that `flwr run` reads from what follows each of its -c."""
    return dict(parse_config_args(list(texts)))


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run-config of a pyproject.toml by key; tables in it as "table.key"."""
    return dict(flatten_dict(dict(config)))
