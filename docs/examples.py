"""Runs the commands of the methods' pages, each reduced to some seconds.

`make docs-examples`, or `python -m docs.examples moon qffl` for some pages. The commands are read
from the pages. Failed commands are printed, and the exit status is then 1.
"""

import contextlib
import io
import shlex
import sys
import tempfile
from pathlib import Path

from coprefl_flwr import cli
from docs.tables import PAGES, ROOT

SMALL = {
    "rounds": "2",
    "clients": "25",  # As many as the largest `participants` in the text of a method.
    "participants": "3",
    "tasks": "1",
    "task-rounds": "1",
    "figures": "[]",
    "seeds": "[0]",
}
SMALL_PERSONAL = {"rounds": "2", "figures": "[]", "seeds": "[0]"}


def commands(page: Path) -> list[list[str]]:
    """Return the `coprefl` commands of a page's blocks, in their order."""
    lines, inside = [], False
    for line in page.read_text().replace("\\\n", "").splitlines():
        if line.startswith("```"):
            inside = line == "```sh"
        elif inside and line.startswith("coprefl "):
            lines.append(shlex.split(line, comments=True))
    return lines


def cut(command: list[str]) -> list[str]:
    """Return a command with settings for a run of some seconds."""
    if command[1] != "run":
        return command
    small = SMALL_PERSONAL if "--scale" in command else SMALL
    settings = (("--set", f"{key}={value}") for key, value in small.items())
    return [*command, *(part for setting in settings for part in setting)]


def run(command: list[str]) -> bool:
    """Run a command in this process; print how it ended."""
    if command[1] == "new":
        Path(f"{command[2]}.yaml").unlink(missing_ok=True)
    arguments = [str(ROOT / a) if (ROOT / a).is_file() else a for a in cut(command)[1:]]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = cli.main(arguments)
    print(f"{'FAILS' if status else 'ok':6}{shlex.join(command)}", flush=True)
    if status:
        print(output.getvalue()[-2000:])
    return not status


def main(names: list[str]) -> int:
    """Run the commands of the named pages, or of all pages."""
    pages = sorted((PAGES / "methods").glob("*.md"))
    chosen = [page for page in pages if page.stem in names or not names]
    # In one folder, so that methods on several pages are trained once.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        good = [run(command) for page in chosen for command in commands(page)]
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
