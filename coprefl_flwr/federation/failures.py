"""Why a client failed, in one line: what was raised, and where in the user's own files.

The line is "KIND: text (file.py:LINE)". A node that hosts clients writes it from the exception; of
other apps the server has what Flower's error reply says, which in a simulation holds the traceback
and in a deployment the exception alone, without its place.
"""

import re
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Message

from coprefl_flwr.errors import cut, one_line

PROGRAM_ERRORS = {
    *("AssertionError", "AttributeError", "ImportError", "IndentationError", "IndexError"),
    *("KeyError", "LoadClientAppError", "ModuleNotFoundError", "NameError", "NotImplementedError"),
    *("SyntaxError", "TypeError", "UnboundLocalError"),
}
"""Errors that stand in the program: if all clients raise one, they will raise it again."""

NOT_REGISTERED = r"No \w+ function registered"
"""What Flower's ClientApp says of a message that it has no function for."""

DIVERGED = r"^metric '.*loss' is (nan|-?inf)|holds a NaN or an infinity$"
"""What is said of a client whose training left the numbers that a float holds."""

OLD_STYLE = {
    "KeyError: 'fitins.parameters'": "its ClientApp(client_fn) is of Flower's old kind: make it "
    "client_app(client_fn), imported from coprefl_flwr.clients"
}
"""What to do about errors that say it to nobody."""

MOD = "a client-side mod"
"""What a line says of a mod that refused a message or spoilt an answer: it will do it again."""

_OF_MOD = 6
"""Flower's code of an error that a mod answers with."""

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = sysconfig.get_path("stdlib")
_FRAME = re.compile(r'^ *File "(.+?)", line (\d+), in .*$', re.MULTILINE)
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n"
_ONLY_RAISED = re.compile(r"<class '(?:\w+\.)*(\w+)'>:<(['\"])(.*)\2>( \(.+:\d+\))?", re.DOTALL)


_LONGEST = 20_000
"""Characters of an error reply that are read: a traceback is shorter."""


def describe_exception(error: BaseException) -> str:
    """Return an exception as one line, with its place if it went through a user's file."""
    return one_line(error) + place(error)


def place(error: BaseException) -> str:
    """Return " (file.py:LINE)", the innermost line of a user's file, or "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    return _place((frame.filename, frame.lineno or 0) for frame in frames)


def reason(message: Message) -> str:
    """Return why a node sent no answer, of an error reply, in one line that can be shown."""
    text = (message.error.reason or "").strip() or f"error {message.error.code}"
    if len(text) > _LONGEST:
        text = text[: _LONGEST // 2] + text[-_LONGEST // 2 :]
    line = f"{MOD} refused: {_line(text)}" if message.error.code == _OF_MOD else _line(text)
    return cut(f"{line}: {OLD_STYLE[line]}" if line in OLD_STYLE else line)


def _line(text: str) -> str:
    """Return what was raised and its place, of a traceback or what else Flower says."""
    # Ray's worker wraps what an app raised in an exception of Flower's.
    own, _, wrapping = text.rpartition(_CAUSED)
    own = own if "ClientAppException" in wrapping and own else text
    frames = list(_FRAME.finditer(own))
    if frames:
        behind = own[frames[-1].end() :].splitlines()
        # Indented are the source line and the marks below it.
        start = next((n for n, line in enumerate(behind) if line and line[0] != " "), 0)
        line = " ".join(" ".join(behind[start:]).split())
        kind, mark, rest = line.partition(": ")
        where = _place((frame[1], int(frame[2])) for frame in frames)
        return kind.rpartition(".")[2] + mark + rest + where
    if raised := _ONLY_RAISED.fullmatch(text):
        kind, _, said, where = raised.groups()
        return f"{kind}: {' '.join(said.split())}{where or ''}"
    return text.splitlines()[-1]


def program_error(reasons: Iterable[str]) -> str:
    """Return the first of the clients' reasons if all are one kind of program error, else ""."""
    lines = list(reasons)
    kinds = {_kind(line) for line in lines}
    return lines[0] if len(kinds) == 1 and kinds != {""} else ""


def most_often(reasons: Iterable[str]) -> str:
    """Return the clients' most frequent reason, with a hint where training diverged; or ""."""
    for line, number in Counter(reasons).most_common(1):
        hint = ": a smaller learning rate?" if re.search(DIVERGED, line) else ""
        return f"{number} failed: {line}{hint}"
    return ""


def _kind(line: str) -> str:
    """Return which program error a line is of, "" if of none."""
    if registered := re.search(NOT_REGISTERED, line):
        return registered[0]
    if MOD in line:
        return MOD
    kind = line.partition(":")[0]
    return kind if kind in PROGRAM_ERRORS else ""


def _place(frames: Iterable[tuple[str, int]]) -> str:
    """Return the last of the frames (file, line) that is in a user's file."""
    own = [(file, line) for file, line in frames if _is_users(file)]
    return f" ({_short(own[-1][0])}:{own[-1][1]})" if own else ""


def _is_users(file: str) -> bool:
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    within = any(path.is_relative_to(folder) for folder in (_PACKAGE, _LIBRARIES))
    return not (file.startswith("<") or installed or within)


def _short(file: str) -> str:
    """Return a file as seen from the working folder, else its name and its folder's."""
    path = Path(file)  # `flwr run` runs a copy of an app, whose path says nothing to its author.
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return "/".join(path.parts[-2:])
