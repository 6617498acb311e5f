"""What this package needs of flwr beyond its public modules; there is a test of each function.

Everything else is imported from `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and, for
`NumPyClient`, `flwr.client`.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.common.config import flatten_dict, parse_config_args
from flwr.common.logger import update_console_handler
from flwr.supercore.task_identity import TaskIdentity


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


def end_log_with(error: Exception) -> None:
    """Make `error` the last line of Flower's log of a run that it ends, without a traceback.

    Flower logs the traceback of what a ServerApp raises and then a paragraph on its exit code; the
    line that says what the user can do about it would be lost between them.
    """

    def edit(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is error:
            record.exc_info = None
        if str(record.msg).startswith("Exit Code:"):
            record.msg = f"{record.msg}\n\n{error}"
        return True

    logging.getLogger("flwr").addFilter(edit)


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
