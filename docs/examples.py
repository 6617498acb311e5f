"""Runs the commands of the methods' pages, cut down to seconds each.

`make docs-examples`, or `python -m docs.examples moon qffl` for some pages. What is run is
read from the page itself; a command that fails is named, and the exit status is 1.
"""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

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
    for line in page.read_text().splitlines():
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


def run(command: list[str], folder: Path) -> bool:
    """Run a command in a folder; print how it ended."""
    program = [sys.executable, "-m", "coprefl_flwr.recipes.command_line"]
    arguments = [str(ROOT / one) if (ROOT / one).is_file() else one for one in cut(command)[1:]]
    done = subprocess.run([*program, *arguments], cwd=folder, capture_output=True, text=True)
    print(f"{'ok' if done.returncode == 0 else 'FAILS':6}{shlex.join(command)}", flush=True)
    if done.returncode:
        print(done.stdout[-1000:], done.stderr[-2000:], sep="\n")
    return done.returncode == 0


def main(names: list[str]) -> int:
    """Run the commands of the pages of these names, or of all."""
    pages = [
        one for one in sorted((PAGES / "methods").glob("*.md")) if one.stem in names or not names
    ]
    good = True
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            for command in commands(page):
                good = run(command, Path(folder)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
