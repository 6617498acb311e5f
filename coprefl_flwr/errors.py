"""What this package raises, and why a run ended."""

import asyncio
import difflib
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO


class SettingsError(ValueError):
    """Something the user set cannot be used; one line says what, and what is allowed.

    `keys` are the settings that it is about, the most important first: a recipe names their lines.
    """

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(printable(message))
        self.keys = keys


class RoundFailedError(RuntimeError):
    """An attempt at a round came to nothing; it can be repeated with other clients."""


class RunFailedError(RuntimeError):
    """A run ended without a result; the last checkpoint, if any, is good."""


@contextmanager
def concerning(*keys: str) -> Iterator[None]:
    """Say which settings a SettingsError raised inside is about, unless it says so itself."""
    try:
        yield
    except SettingsError as error:
        error.keys = error.keys or keys
        raise


def one_line(error: BaseException) -> str:
    """Return an exception as one line, with its type unless the message is written for people."""
    text = " ".join(text_of(error).split())
    written = isinstance(error, ValueError | RoundFailedError | RunFailedError) and text
    return text if written else f"{type(error).__name__}: {text}"


def text_of(error: BaseException) -> str:
    """Return what an exception says, "" for one of somebody's own that cannot say it."""
    try:
        return str(error)
    except Exception:
        return ""


EXITS = (SystemExit, asyncio.CancelledError, GeneratorExit)
"""What ends a program, or a part of one, where a client raises it: that client's work alone."""


LONGEST = 200
"""Characters of a line from outside that are shown."""


LONGEST_LINE = 5000
"""Characters of a line about what a user set, which may name all that is known."""


def printable(text: str) -> str:
    """Return a text as one line, with escapes for what does not print, as Python writes them.

    It has at most `LONGEST_LINE` characters: of a longer one the middle is left out.
    """
    return for_terminal(_without_middle(text, LONGEST_LINE)).replace("\n", "\\n")


def for_terminal(text: object) -> str:
    """Return a text of any number of lines, with escapes for what does not print.

    A terminal acts on control characters, and those that turn the direction of writing hide the
    rest of the line: texts that somebody else wrote can hold both.
    """
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in str(text))


def say(text: object, file: TextIO | None = None) -> None:
    """Print a text as `for_terminal` returns it."""
    print(for_terminal(text), file=file, flush=True)


def waiting(what: str) -> AbstractContextManager[object]:
    """Show on a terminal what is done meanwhile; nothing in a log."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)


def _as_for_terminal(record: logging.LogRecord) -> bool:
    record.msg, record.args = for_terminal(record.getMessage()), ()
    return True


# Here, as every room imports this module: no line of the log is left out.
logging.getLogger("flwr.coprefl").addFilter(_as_for_terminal)


def cut(text: str) -> str:
    """Return text from outside as one line of at most `LONGEST` printable characters.

    If the text is longer, its middle is left out.
    """
    known = text if len(text) <= 10 * LONGEST else text[: 5 * LONGEST] + text[-5 * LONGEST :]
    line = " ".join("".join(c if c.isprintable() else " " for c in known).split())
    return _without_middle(line, LONGEST)


def _without_middle(text: str, most: int) -> str:
    """Return at most `most` characters of a text: of a longer text, its begin and its last part."""
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end - 5]} ... {text[-end:]}"


_DEVICE = ("device", "devices", "cuda", "gpu", "gpus", "num-gpus")
_HOW_DEVICE = (
    "a process computes on the GPU that it sees, or on the CPU where it sees none; the environment "
    "variable CUDA_VISIBLE_DEVICES says which it sees"
)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return a line that says `name` is unknown, with the nearest known one, whatever its case."""
    spelled = {spelling.lower(): spelling for spelling in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    names = ", ".join(spelled.values())
    if what in ("setting", "option") and name.lower() in _DEVICE:
        return f"unknown {what} '{name}': {_HOW_DEVICE}"
    hint = f"known are {names}" if names else "there are none"
    hint = f"did you mean '{spelled[near[0]]}'?" if near else hint
    return f"unknown {what} '{short(name, 200)}': {hint}"


def wrong_type(name: str, value: object, needed: str, example: str) -> SettingsError:
    """Return the error for an argument of a wrong type, such as a class instead of an object.

    It says what the argument `name` is, what is `needed` (such as "a network"), and an `example`.
    """
    what = f"an object of type {type(value).__name__}"
    if isinstance(value, type):
        what = f"the class {value.__name__}"
    elif value is None or isinstance(value, str | int | float):
        what = short(repr(value))
    return SettingsError(f"{name}: got {what}; pass {needed}, as in {example}")


def os_error_line(error: OSError) -> str:
    """Return what the operating system refused, and for which file."""
    # Of two it is the second: the first is what was to be renamed, which nobody knows of.
    name = error.filename2 or error.filename
    file = f"{name}: " if name else ""
    return short(f"{file}{error.strerror or one_line(error)}", 400)


def short(value: object, most: int = 60) -> str:
    """Return a value as a text of at most `most` characters, for a line about it."""
    try:
        text = str(value)
    except ValueError:  # Python writes no number of more than 4300 digits.
        text = "a number of thousands of digits"
    return text if len(text) <= most else f"{text[: most - 3]}..."
