"""Plant small mistakes in the package, one at a time, and print which of them the tests catch.

    python -m tests.mistakes [--only NAME ...] [--outcomes FILE]

`mistakes.yaml` lists the mistakes: a file of the package, the code to replace, the new code, and
the tests that must then fail. Only tests that `make test` runs count, so no slow ones. Each mistake
is planted in a copy of the checkout. A mistake counts as caught if pytest ran and a test failed
(exit status 1). A run that cannot collect its tests is an error. A mistake whose outcome is in FILE
is not planted again, so an interrupted run can continue.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mistakes.yaml")
COPIED = ("coprefl_flwr", "tests", "examples", "benchmarks", "docs")
COPIED += ("pyproject.toml", "LICENSE", "README.md")
CAUGHT, MISSED, ERROR = "caught", "MISSED", "ERROR"


@dataclass(frozen=True)
class Mistake:
    """A piece of code, the code that replaces it, and the tests that must notice the change."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    def planted(self, text: str) -> str:
        """Return the text of the file with the mistake in it."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: its code is {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def mistakes() -> list[Mistake]:
    """Read the list; raise a ValueError if a piece of code is no longer in the package."""
    found = [Mistake(**one) for one in yaml.safe_load(LIST.read_text())]
    for mistake in found:
        mistake.planted((ROOT / "coprefl_flwr" / mistake.file).read_text())
    return found


def outcome(mistake: Mistake, copy: Path) -> tuple[str, str]:
    """Plant a mistake in the copy, run its tests, remove it; return the outcome and a line."""
    file = copy / "coprefl_flwr" / mistake.file
    text = file.read_text()
    file.write_text(mistake.planted(text))
    options = ["-x", "-p", "no:cacheprovider", "-m", "not slow and not ray and not deployment"]
    command = [sys.executable, "-m", "pytest", *options, *mistake.tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    finally:
        file.write_text(text)
    lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    kind = {0: MISSED, 1: CAUGHT}.get(run.returncode, ERROR)
    return kind, (lines or run.stdout.splitlines()[-1:] or [run.stderr[-200:]])[0]


def main() -> int:
    """Run the list; the exit status is 0 if all mistakes were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mistakes", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--outcomes", type=Path, metavar="FILE", help="JSON lines, added to")
    given = parser.parse_args()
    done = {}
    if given.outcomes and given.outcomes.exists():
        lines = given.outcomes.read_text().splitlines()
        done = {one["name"]: one for one in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        for mistake in mistakes():
            if given.only and mistake.name not in given.only:
                continue
            if mistake.name not in done:
                kind, line = outcome(mistake, Path(folder))
                done[mistake.name] = {"name": mistake.name, "outcome": kind, "line": line}
                if given.outcomes:
                    with given.outcomes.open("a") as file:
                        file.write(json.dumps(done[mistake.name]) + "\n")
            one = done[mistake.name]
            print(f"{one['outcome']:8}{mistake.name:32}{one['line']}", flush=True)
    caught = sum(one["outcome"] == CAUGHT for one in done.values())
    print(f"{caught} of {len(done)} caught")
    return 0 if caught == len(done) else 1


if __name__ == "__main__":
    raise SystemExit(main())
