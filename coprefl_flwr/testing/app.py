"""Check a Flower app before it is deployed: send CoPreFL's two exchanges once, in one process."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from coprefl_flwr.errors import RunFailedError, prefixed, say, shorten
from coprefl_flwr.federation.messages import ROSTER, reason
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.testing.small_study import quiet_log

EXCHANGES = ("train", "train.query")


class _FirstRound(LocalGrid):
    """Sends each exchange once; `lines` has a line about the replies, by type of message."""

    lines: dict[str, str]

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> list[Message]:
        """Return the replies to the messages; raise a RunFailedError after the two exchanges.

        The round does not end, so that a strategy writes no checkpoint.
        """
        sent = list(messages)
        kind = sent[0].metadata.message_type if sent else ""
        if kind in (ROSTER, *EXCHANGES) and kind not in self.lines:
            replies = list(super().send_and_receive(sent))
            self.lines[kind] = min(map(_line, replies))  # One that failed, if there is one.
            if kind != EXCHANGES[1]:
                return replies
        raise RunFailedError("the first round has ended")


def _line(reply: Message) -> str:
    if reply.has_error():
        return f"failed: {reason(reply)}"
    parts = [part for record in reply.content.values() for part in record.items()]
    return "ok: " + shorten(", ".join(f"{name} {getattr(of, 'shape', of)}" for name, of in parts))


def exchanges_of_app(folder: Path, nodes: int, node_config: str) -> int:
    """Print a line for each exchange of an app's first round, and the warnings of the server's log.

    The app runs on `nodes` nodes with a `node_config` as that of `flower-supernode`. Returns 1 if
    an exchange failed, was not sent, or caused a warning, or else 0. Raises a SettingsError if the
    app cannot be loaded.
    """
    with prefixed(f"{folder}: the app cannot be loaded", of=Exception):
        app = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]
        of_node = tomllib.loads(re.sub(r"\s+(?=[\w.-]+=)", "\n", node_config))
        sys.path.insert(0, str(folder.resolve()))
        places = [app["components"][part].split(":") for part in ("clientapp", "serverapp")]
        client, server = (getattr(importlib.import_module(name), of) for name, of in places)
    config = _flat(app.get("config", {}))
    grid = _FirstRound(client, nodes, config)
    grid.lines = {}
    for context in grid._contexts.values():
        context.node_config = of_node | context.node_config
    with quiet_log() as log:
        try:
            server(grid, Context(1, 1, {}, RecordDict(), config))
        except RunFailedError as error:
            log += [] if EXCHANGES[1] in grid.lines else [str(error)]
    lines = [f"{kind}: {grid.lines.get(kind, 'not sent')}" for kind in EXCHANGES]
    say("\n".join([*lines, *(f"the server's log: {line}" for line in log)]))
    return int(bool(log) or not all(": ok: " in line for line in lines))


def _flat(table: dict[str, Any], at: str = "") -> dict[str, Any]:
    """Return a table of TOML without tables in it, as Flower does: their keys get dots."""
    parts = (
        _flat(v, f"{at}{k}.") if isinstance(v, dict) else {at + k: v} for k, v in table.items()
    )
    return {name: value for part in parts for name, value in part.items()}
