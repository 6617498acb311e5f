"""A run in a forked process, which is killed at a random moment or at a file operation.

It is forked from this one, in which everything is imported: a new Python would take seconds.
"""

import builtins
import contextlib
import io
import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coprefl_flwr.errors import RunFailedError, SettingsError, os_error_line


@dataclass(frozen=True)
class Kill:
    """At the n-th file operation, or after so many seconds; neither is never."""

    operation: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Ended:
    """How a process ended; `operations` and `seconds` are of one that was not killed."""

    killed: bool
    status: int
    output: str
    operations: int = 0
    seconds: float = 0.0


class Counter:
    """Counts this process's file operations, and kills it at one of them.

    That is before a file is renamed, removed, flushed or a folder made, and in the middle of what
    is written.
    """

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def reached(self) -> bool:
        self.count += 1
        return self.count == self.at

    def install(self) -> None:
        for name in ("replace", "rename", "fsync", "unlink", "mkdir"):
            setattr(os, name, self._counted(getattr(os, name)))
        shutil.rmtree = self._counted(shutil.rmtree)
        builtin = io.open

        def opened(file, mode="r", *arguments, **options):
            found = builtin(file, mode, *arguments, **options)
            writes = any(letter in mode for letter in "wax+") and not isinstance(file, int)
            return Halved(found, self) if writes else found

        builtins.open = io.open = opened

    def _counted(self, function):
        def counted(*arguments, **options):
            if self.reached():
                die()
            return function(*arguments, **options)

        return counted


class Halved:
    """A file that is written to: of the content at which the process is killed, half is written."""

    def __init__(self, file, counter) -> None:
        self._file, self._counter = file, counter

    def write(self, content):
        if self._counter.reached():
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            die()
        return self._file.write(content)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        return self._file.__exit__(*error)

    def __iter__(self):
        return iter(self._file)


@contextlib.contextmanager
def quiet():
    """Let nothing be printed, nor logged."""
    nowhere = io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(logging.NOTSET)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def forked(program: Callable[[], object], kill: Kill, folder: Path) -> Ended:
    """Run a program in a process of its own, which may be killed; `folder` is for its output."""
    folder.mkdir(parents=True, exist_ok=True)
    log, told = folder / "log", folder / "told.json"
    told.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _run(program, kill, log, told)
    if kill.seconds:
        time.sleep(kill.seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    known = json.loads(told.read_text()) if told.exists() else {}
    code = os.waitstatus_to_exitcode(status)
    return Ended(code < 0, code, log.read_text(errors="replace"), **known)


def _refusing(program) -> int:
    """Return the status of a program, of which a refusal is printed in one line, as commands do."""
    try:
        return int(program() or 0)
    except (SettingsError, RunFailedError, OSError) as error:
        line = os_error_line(error) if isinstance(error, OSError) else error
        print(f"refused: {line}", file=sys.stderr)
        return 1


def _run(program, kill, log, told) -> None:
    """Be the child: never return."""
    status = 1
    begun = time.monotonic()
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)  # Not a test's own.
        for handler in logging.getLogger("flwr").handlers:
            if isinstance(handler, logging.StreamHandler):  # Its stream is that of the import.
                handler.setStream(sys.stderr)
        counter, opened = Counter(kill.operation), io.open
        counter.install()
        status = _refusing(program)
        about = {"operations": counter.count, "seconds": time.monotonic() - begun}
        with opened(told, "w") as file:
            json.dump(about, file)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
