"""All code that depends on more of flwr than its public modules; each function has a test.

The package imports only from `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and, in this file,
`NumPyClient` from `flwr.client`, which is legacy: without it, the class here has its methods. What
Flower's log and messages have beyond that is looked up by name, and left alone if it has gone.
"""

import inspect
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from flwr.app import Message, Metadata
from flwr.serverapp import Grid

from coprefl_flwr.errors import RunFailedError, SettingsError

try:
    from flwr.client import Client as Client
    from flwr.client import NumPyClient as NumPyClient
except ImportError:

    class NumPyClient:  # type: ignore[no-redef]
        """A client whose methods get and return lists of arrays, as Flower's legacy class."""

        def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
            """Return no properties."""
            return {}

        def get_parameters(self, config: dict[str, Any]) -> list[Any]:
            """Return no arrays."""
            return []

        def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, Any]:
            """Return (arrays after local training, number of samples, metrics): none."""
            return [], 0, {}

        def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, Any]:
            """Return (loss, number of samples, metrics): none."""
            return 0.0, 0, {}

        def to_client(self) -> Any:
            """Return the client itself, which `clients.client_app` runs."""
            return self

    Client = NumPyClient  # type: ignore[assignment, misc]

_FLOWER = logging.getLogger("flwr")
_CONSOLE: list[Any] = [handler for handler in _FLOWER.handlers if hasattr(handler, "colored")]
"""Flower's handler of lines for the console."""

# What a handler of Python's root logger writes to the console, Flower's handler does not repeat.
for _handler in _CONSOLE:
    _handler.addFilter(
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
    # Where Message itself finds it; a Message that does not use it needs no ids.
    identity: Any = getattr(sys.modules[Message.__module__], "TaskIdentity", None)
    if identity is not None and identity._run_id is None:
        identity.task_id = identity.run_id = run_id
        identity.node_id = node_id


def name_message(message: Message, message_id: str) -> None:
    """Set the id of a message, to which its reply refers; Flower's grids do this when they send."""
    metadata: Any = message.metadata
    fields = {name: getattr(metadata, name) for name in inspect.signature(Metadata).parameters}
    metadata.__init__(**fields | {"message_id": message_id})


def send_and_receive(grid: Grid, messages: list[Message], timeout: float) -> list[Message]:
    """Send messages, and return the replies that come within `timeout` seconds.

    Does what the grid's method does. That of a deployment looks for replies every 3 s; here each
    wait is a tenth of the time since the messages were sent, at least 0.05 s and at most 3 s. A
    reply whose arrays are still on their way is asked for again after 0.05 s, not after 1 s.
    """
    if type(grid).__name__ != "HttpGrid":
        return list(grid.send_and_receive(messages, timeout=timeout))
    pull: Any = getattr(sys.modules[type(grid).__module__], "pull_objects", None)
    if "initial_backoff" in (getattr(pull, "__kwdefaults__", None) or {}):
        pull.__kwdefaults__["initial_backoff"] = 0.05
    waiting, replies, began = set(grid.push_messages(messages)), [], time.monotonic()
    while waiting and (waited := time.monotonic() - began) < timeout:
        time.sleep(min(max(0.05, waited / 10), 3.0))
        for reply in grid.pull_messages(waiting):
            replies.append(reply)
            waiting.discard(reply.metadata.reply_to_message_id)
    return replies


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
    _FLOWER.addFilter(_ENDING)


@contextmanager
def plain_log() -> Iterator[None]:
    """Keep tracebacks out of Flower's log while a strategy runs; failures are logged as one line.

    In the context, the tracebacks that Flower logs have the level DEBUG, which FLWR_LOG_LEVEL=DEBUG
    shows. If the context ends with a RunFailedError or a SettingsError, the error's message is the
    last line of the log.
    """
    _ENDING.runs += 1
    _FLOWER.addFilter(_ENDING)  # Stays, as errors may be logged later.
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
        for handler in _CONSOLE:
            handler.colored = False
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
