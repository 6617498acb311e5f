"""Runs the commands of the methods' pages, cut down to seconds each.

`make docs-examples`, or `python -m docs.examples moon qffl` for some pages. What is run is
read from the page itself; a command that fails is named, and the exit status is 1.
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
    "clients": "12",
    "participants": "3",
    "tasks": "1",
    "task-rounds": "1",
    "figures": "[]",
    "seeds": "[0]",
}
SMALL_PERSONAL = {"rounds": "2", "figures": "[]", "seeds": "[0]"}


def commands(page: Path) -> list[list[str]]:
    """Return the `coprefl` commands of a page's blocks, in their order."""
    found, inside = [], False
    for line in page.read_text().replace("\\\n", "").splitlines():
        if line.startswith("```"):
            inside = line == "```sh"
        elif inside and line.startswith("coprefl "):
            found.append(shlex.split(line, comments=True))
    return found


def cut(command: list[str]) -> list[str]:
    """Return a command with settings that make it a matter of seconds."""
    if command[1] != "run":
        return command
    small = SMALL_PERSONAL if "--scale" in command else SMALL
    return [*command, *(part for key, one in small.items() for part in ("--set", f"{key}={one}"))]


def run(command: list[str]) -> bool:
    """Run a command in this process; print how it ended."""
    if command[1] == "new":
        Path(f"{command[2]}.yaml").unlink(missing_ok=True)
    arguments = [str(ROOT / one) if (ROOT / one).is_file() else one for one in cut(command)[1:]]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        status = cli.main(arguments)
    print(f"{'FAILS' if status else 'ok':6}{shlex.join(command)}", flush=True)
    if status:
        print(told.getvalue()[-2000:])
    return not status


def main(names: list[str]) -> int:
    """Run the commands of the pages of these names, or of all."""
    pages = sorted((PAGES / "methods").glob("*.md"))
    chosen = [one for one in pages if one.stem in names or not names]
    # In one folder, so that what several pages compare with is made once.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        good = [run(command) for page in chosen for command in commands(page)]
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
