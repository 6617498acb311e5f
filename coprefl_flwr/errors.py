"""The exceptions and the logs of this package, and functions that make error messages."""

import asyncio
import difflib
import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

flower_log = logging.getLogger("flwr")
logger = flower_log.getChild("coprefl")
"""Flower's log, and the log of this package, which is a part of it."""


@functools.cache
def say_once(line: str) -> None:
    """Log a line at its first time in this process."""
    logger.info(line)


class SettingsError(ValueError):
    """A setting or an argument of the user is wrong; the message is one line.

    The message names the wrong value and the values that are allowed. `keys` are the settings that
    the error is about, the most important first. For a recipe, the lines of these settings are
    reported.
    """

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message.replace("\n", "\\n"))
        self.keys = keys


class RoundFailedError(RuntimeError):
    """An attempt at a round failed; the round can be repeated with other clients."""


class RunFailedError(RuntimeError):
    """A run ended without a result; the last checkpoint, if there is one, is still valid."""


@contextmanager
def about_settings(*keys: str) -> Iterator[None]:
    """Set `keys` as the settings that a SettingsError from this block is about.

    An error that already names settings keeps them.
    """
    try:
        yield
    except SettingsError as error:
        error.keys = error.keys or keys
        raise


@contextmanager
def prefixed(
    what: str, *keys: str, of: type[Exception] | tuple[type[Exception], ...] = SettingsError
) -> Iterator[None]:
    """Raise an exception of the block as a SettingsError whose message begins with `what`.

    `of` are the types of these exceptions. The error is about the settings `keys`, or else about
    those of the exception.
    """
    try:
        yield
    except of as error:
        own = keys or getattr(error, "keys", ())
        raise SettingsError(f"{what}: {one_line(error)}", *own) from error


def one_line(error: BaseException) -> str:
    """Return the message of an exception as one line.

    The line begins with the type of the exception, unless the exception is a ValueError, a
    RoundFailedError or a RunFailedError with a message.
    """
    text = " ".join(str(error).split())
    written = isinstance(error, ValueError | RoundFailedError | RunFailedError) and text
    return text if written else f"{type(error).__name__}: {text}"


EXITS = (SystemExit, asyncio.CancelledError, GeneratorExit)
"""Exceptions that end a program or a task. If a client raises one, only its own work ends."""


LONGEST = 200
"""The largest number of characters that `shorten` returns."""


def say(text: object, file: TextIO | None = None) -> None:
    """Print a text at once."""
    print(text, file=file, flush=True)


def shorten(text: str) -> str:
    """Return a text from outside as one line of at most `LONGEST` printable characters.

    If the text is longer, its middle is left out.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    end = LONGEST // 4
    return line if len(line) <= LONGEST else f"{line[: LONGEST - end - 5]} ... {line[-end:]}"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message that `name` is unknown, with the most similar known name.

    Upper and lower case are not distinguished. `what` is the kind of the name, such as "setting".
    """
    spelled = {spelling.lower(): spelling for spelling in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    names = ", ".join(spelled.values())
    hint = f"known are {names}" if names else f"no {what} exists"
    hint = f"did you mean '{spelled[near[0]]}'?" if near else hint
    return f"unknown {what} '{excerpt(name, 200)}': {hint}"


def check_name(what: str, name: str, known: Iterable[str], about: str = "", *keys: str) -> None:
    """Raise a SettingsError if a name is not known, which names the most similar known name.

    `what` is the kind of the name. The message begins with `about`; `keys` are as in the error.
    """
    names = list(known)
    if name not in names:
        raise SettingsError(f"{about}: " * bool(about) + unknown(what, name, names), *keys)


def wrong_type(name: str, value: object, needed: str, example: str) -> SettingsError:
    """Return the error for an argument of a wrong type, such as a class instead of an object.

    `name` is the name of the argument, `needed` describes a right value, such as "a network", and
    `example` is code that passes a right value. The message states all three and the wrong value.
    """
    what = f"an object of type {type(value).__name__}"
    if isinstance(value, type):
        what = f"the class {value.__name__}"
    elif value is None or isinstance(value, str | int | float):
        what = excerpt(repr(value))
    return SettingsError(f"{name}: got {what}; pass {needed}, as in {example}")


def os_error_line(error: OSError) -> str:
    """Return the operating system's error message with the name of the file."""
    # If the error has two names, the first is a temporary file that should have been renamed.
    name = error.filename2 or error.filename
    file = f"{name}: " if name else ""
    return excerpt(f"{file}{error.strerror or one_line(error)}", 400)


def excerpt(value: object, most: int = 60) -> str:
    """Return a value as a string of at most `most` characters, for an error message."""
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
