"""All code that uses internals of flwr, outside its public modules; each function has a test.

Other modules of this package import only from `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and,
for `NumPyClient`, `flwr.client`.
"""

import logging
import os
import socket
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Message
from flwr.common.config import flatten_dict, parse_config_args
from flwr.common.logger import console_handler, update_console_handler
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coprefl_flwr.errors import RunFailedError, SettingsError, one_line

CLIENT_LOGS = {("vce_api", "worker"), ("raybackend", "process_message")}
"""(module, function) in Flower's simulation that log an exception of a client."""

RUNTIME_LOGS = {("vce_api", "run_api"), ("run_simulation", "_main_loop")}
"""(module, function) in Flower that log the error that ended a simulation; both log the error."""


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


def _not_twice(record: logging.LogRecord) -> bool:
    """Return False for a line that a handler of Python's root logger writes to the console too."""
    handlers = [h for h in logging.getLogger().handlers if record.levelno >= h.level]
    streams = [getattr(handler, "stream", None) for handler in handlers]
    # A progress display puts a proxy in front of the stream.
    files = {getattr(stream, "rich_proxied_file", stream) for stream in streams} - {None}
    twice = files & {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}
    return not (twice and logging.getLogger("flwr").propagate)


console_handler.addFilter(_not_twice)


class _Ending:
    """A filter of Flower's log that makes the reason of a failed run the last line of the log."""

    def __init__(self) -> None:
        # A weak reference, because an exception keeps its traceback's variables in memory.
        self.error: Callable[[], Exception | None] = lambda: None
        self.text = self.crash = ""
        self.runs = 0

    def __call__(self, record: logging.LogRecord) -> bool:
        """Remove an error's traceback, and append its message to Flower's line on the exit code."""
        where, first = (record.module, record.funcName), None
        if isinstance(record.args, tuple) and record.args:
            first = record.args[0]
        traceback = where in RUNTIME_LOGS or (self.runs and where in CLIENT_LOGS)
        if where in RUNTIME_LOGS and isinstance(first, Exception):
            self.crash = _crash(first)
        elif traceback and record.levelno == logging.ERROR:
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        error = record.exc_info and record.exc_info[1]
        if error:
            line = str(error) if error is self.error() else _crash(error)
            self.text = line if error is self.error() or line == self.crash else ""
            record.exc_info = None if self.text else record.exc_info
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


def _crash(error: BaseException) -> str:
    """Return a line on a crashed simulation, with the root cause of the error."""
    while error.__cause__ is not None:
        error = error.__cause__
    address, hint = _named_cluster()
    return f"Flower's simulation ended: {one_line(error)}{f' ({hint})' if address else ''}"


def _named_cluster() -> tuple[str, str]:
    """Return (address of the Ray cluster that Ray would join or "", hint on its source)."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address, f"RAY_ADDRESS={address} names a Ray cluster: unset it if the cluster ended"
    file = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
    hint = f"{file} names a Ray cluster: delete it if the cluster ended"
    return (file.read_text().strip() if file.is_file() else ""), hint


def check_cluster() -> None:
    """Raise a RunFailedError if Ray is set to join a cluster that does not answer."""
    address, hint = _named_cluster()
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        line = f"Ray cannot start: no cluster answers at {address} ({hint})"
        raise RunFailedError(line) from None


def end_with_simulation(grid: Grid) -> bool:
    """Make the grid of a simulation raise a RunFailedError after the simulation has crashed.

    Returns whether `grid` belongs to a simulation. Other grids are not changed.

    If a simulation crashes, Flower does not stop the ServerApp, which waits for replies. The crash
    is detected in Flower's log. If the simulation is set to join an existing Ray cluster and that
    cluster does not answer, a RunFailedError is raised at once.
    """
    if type(grid).__name__ != "InMemoryGrid" or "pull_messages" in vars(grid):
        return type(grid).__name__ == "InMemoryGrid"
    try:
        check_cluster()
    except RunFailedError as error:
        logging.getLogger("flwr.coprefl").error("%s", error)  # Flower logs it when Ray gives up.
        raise

    def ending(call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **named: Any) -> Any:
            if _ENDING.crash:
                raise RunFailedError(_ENDING.crash)
            return call(*args, **named)

        return checked

    for name in ("get_node_ids", "pull_messages"):
        setattr(grid, name, ending(getattr(grid, name)))
    return True


@contextmanager
def plain_log() -> Iterator[None]:
    """Keep tracebacks out of Flower's log while a strategy runs; failures are logged as one line.

    In the context, the exceptions of clients that a simulation logs have the level DEBUG, which
    FLWR_LOG_LEVEL=DEBUG shows. If the context ends with a RunFailedError or a SettingsError, the
    error's message is the last line of the log.
    """
    if not _ENDING.runs:  # The crash is from an earlier simulation of this process.
        _ENDING.crash = ""
    _ENDING.runs += 1
    logging.getLogger("flwr").addFilter(_ENDING)  # Stays, as errors may be logged later.
    try:
        yield
    except (RunFailedError, SettingsError) as error:
        end_log_with(error)
        raise
    finally:
        _ENDING.runs -= 1


def refuse_old_style(strategy: object, *_: Any, **__: Any) -> NoReturn:
    """Raise a SettingsError with the remedy, if Flower uses a strategy in the old style.

    Strategies have this function as the method that Flower would call first in the old style.
    """
    name = type(strategy).__name__
    error = SettingsError(
        f"{name} cannot run in ServerApp(server_fn=...), which is for Flower's old strategies: "
        f"write a main function, decorated with @app.main(), that calls {name}(...).start(grid, "
        "initial_arrays, num_rounds); see 'In your own Flower app' in the README of coprefl-flwr "
        "and examples/old_app.diff"
    )
    end_log_with(error)
    raise error


def without_colours() -> None:
    """Remove colour codes from Flower's log and from the prefixes of Ray's lines of workers.

    If the log is shown on a terminal, the colours stay unless NO_COLOR is set
    (https://no-color.org).
    """
    if os.environ.get("NO_COLOR") or not sys.stderr.isatty():
        update_console_handler(colored=False)
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")


def parse_run_config(texts: Sequence[str]) -> dict[str, Any]:
    """Return the run-config {key: value} that `flwr run` makes of the values of its -c options."""
    return dict(parse_config_args(list(texts)))


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run-config of a pyproject.toml as {key: value}; tables become "table.key"."""
    return dict(flatten_dict(dict(config)))
