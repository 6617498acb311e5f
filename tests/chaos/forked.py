"""A run in a forked process, which is killed at a file operation.

The process is forked from this one, which has imported everything. A new Python process would take
seconds to start.
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
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coprefl_flwr.errors import RunFailedError, SettingsError, os_error_line


@dataclass(frozen=True)
class Kill:
    """At the n-th file operation; if it is 0, never."""

    operation: int = 0


@dataclass(frozen=True)
class Ended:
    """How a process ended; `operations` is 0 if it was killed."""

    killed: bool
    status: int
    output: str
    operations: int = 0


class Counter:
    """Counts the file operations of this process, and kills the process at one of them.

    The process is killed before a file is renamed, removed or flushed, before a folder is made, or
    in the middle of a write.
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
    """A file open for writing; if a write kills the process, half of the content is written."""

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
    """Print and log nothing."""
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
    """Run a program in a separate process, which may be killed; `folder` is for its output."""
    folder.mkdir(parents=True, exist_ok=True)
    log, about = folder / "log", folder / "about.json"
    about.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _run(program, kill, log, about)
    _, status = os.waitpid(child, 0)
    counts = json.loads(about.read_text()) if about.exists() else {}
    code = os.waitstatus_to_exitcode(status)
    return Ended(code < 0, code, log.read_text(errors="replace"), **counts)


def _refusing(program) -> int:
    """Return the exit status of a program; print a refusal in one line, as the commands do."""
    try:
        return int(program() or 0)
    except (SettingsError, RunFailedError, OSError) as error:
        line = os_error_line(error) if isinstance(error, OSError) else error
        print(f"refused: {line}", file=sys.stderr)
        return 1


def _run(program, kill, log, about) -> None:
    """Run the program in the child process; never return."""
    status = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)  # Not pytest's.
        for handler in logging.getLogger("flwr").handlers:
            if isinstance(handler, logging.StreamHandler):  # Its stream is from the import.
                handler.setStream(sys.stderr)
        counter, opened = Counter(kill.operation), io.open
        counter.install()
        status = _refusing(program)
        with opened(about, "w") as file:
            json.dump({"operations": counter.count}, file)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
