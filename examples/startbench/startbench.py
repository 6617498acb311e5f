"""Measure every start of the package under one rule (see README.md in this folder).

    python examples/startbench/startbench.py [SETTING ...] [--plan] [--write-rates]
    python examples/startbench/startbench.py --entry FILE.yaml [--check]

For each SETTING (all six, if none is named) rates are chosen first, then starts are trained and
measured. Finished work is reused: after Ctrl-C, run the same command again to continue. The command
prints the hours first; with --plan it prints only the hours.

The rates in a SETTING's recipe must be those that its protocols `tune` and `tune-scaffold` choose.
If they are not, the command names the right rates and ends before starts are trained. --write-rates
writes them into the recipe. --rows measures only some rows of a recipe.

--entry measures another start, which a YAML file names. Its rates are searched in the same
way. With --check, it is only checked.
"""

import argparse
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import read_json, read_text
from coprefl_flwr.named import folder_of
from coprefl_flwr.recipes.listing import FAILED

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "claims"))
import entries  # noqa: E402
from starts import FRESH, HEADS, SEARCHES, SETTINGS  # noqa: E402
from tables import cells_of  # noqa: E402

PROTOCOLS = (*SEARCHES, FRESH, *HEADS)


def main(given: Sequence[str] | None = None) -> int:
    """Run the settings one after the other; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"of {', '.join(SETTINGS)}")
    parser.add_argument("--workers", default="1", help="processes (1: the same digits every time)")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="folder of results")
    parser.add_argument("--plan", action="store_true", help="only say what all of it would take")
    parser.add_argument(
        "--write-rates", action="store_true", help="write the rates that were chosen"
    )
    parser.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="only these rows")
    parser.add_argument("--entry", type=Path, help="measure the start that this file names")
    parser.add_argument("--check", action="store_true", help="only check the entry")
    asked = parser.parse_args(given)
    if asked.entry:
        try:
            return measure_entry(asked)
        except SettingsError as error:
            parser.error(str(error))
    for name in asked.settings:
        if name not in SETTINGS:
            parser.error(f"setting '{name}': allowed are {', '.join(SETTINGS)}")
    recipes = [HERE / f"{name}.yaml" for name in asked.settings or SETTINGS]
    # The heads use the starts of `fresh` and need no training, so they cost almost nothing.
    for path, protocol in itertools.product(recipes, (*SEARCHES, FRESH)):
        changes = entries.only(path, protocol, asked.rows)
        if changes is not None and (status := coprefl("plan", path, protocol, changes)):
            return status
    for path in [] if asked.plan else recipes:
        rates: dict[str, dict[str, float]] = {}
        for protocol in PROTOCOLS:
            changes = entries.only(path, protocol, asked.rows)
            if changes is None:
                continue
            out, status = run(asked, path, protocol, changes, asked.rows)
            if status:
                return status
            if protocol in SEARCHES:
                rates |= chosen(out)
                wrong = []
                if asked.write_rates:
                    wrong = set_rates(path, rates)
                elif protocol == SEARCHES[-1] or asked.rows:
                    wrong = unlike(path, rates)
                if wrong:
                    print("\n".join(wrong), file=sys.stderr)
                    return 1
    return 0


def measure_entry(asked: argparse.Namespace) -> int:
    """Check an entry and, unless only this was asked for, measure it; return the exit status."""
    entry = entries.read_entry(asked.entry, SETTINGS)
    paths = [HERE / f"{name}.yaml" for name in asked.settings or entry.settings]
    entries.check_code(entry)
    for path in paths:
        print(f"{path.stem}: {entry.name}: its gradients are {entries.check(path, entry)}")
    for path in [] if asked.check else paths:
        values: dict[str, float] = {}
        if entry.search:
            changes = entries.changes(path, entry, None)
            out, status = run(asked, path, SEARCHES[0], changes, [entry.name])
            if status or not (values := chosen(out).get(entry.name, {})):
                return status or 1
        for protocol in (FRESH, *HEADS):
            changes = entries.changes(path, entry, values)
            _, status = run(asked, path, protocol, changes, [entry.name])
            if status:
                return status
    return 0


def run(
    asked: argparse.Namespace,
    path: Path,
    protocol: str,
    changes: Sequence[str],
    rows: Sequence[str],
) -> tuple[Path, int]:
    """Run a protocol of a recipe; return the folder of the results, and the exit status.

    If the training of a run diverges, only this run fails: the others are used, and the status is
    0. `rows` are in the folder's name.
    """
    name = "-".join(["startbench", path.stem, protocol, *rows])
    out = asked.outputs / folder_of(name)
    options = [*changes, "--workers", asked.workers, "--out", str(out)]
    status = coprefl("run", path, protocol, options)
    return out, 0 if status == 1 and failed_runs(out) else status


def coprefl(verb: str, path: Path, protocol: str, options: Sequence[str]) -> int:
    """Run the command on one protocol of a recipe; return its exit status."""
    command = ["coprefl", verb, str(path), "--protocol", protocol, *options]
    print(shlex.join(command), flush=True)
    return subprocess.run(command, check=False).returncode


def failed_runs(out: Path) -> list[str]:
    """Return the keys of the runs that failed; the file is written when all runs have ended."""
    file = out / FAILED
    return list(read_json(file)) if file.exists() else []


def search_of(out: Path) -> Path:
    """Return the file with the trials of a run."""
    return out / "report" / "tables" / "table-search.md"


def chosen(out: Path) -> dict[str, dict[str, float]]:
    """Return, by row, the values that the search in a folder chose."""
    lines = cells_of(read_text(search_of(out)))
    return {
        row: {key: float(value) for key, _, value in (p.partition("=") for p in values.split(","))}
        for row, values, *_, fate in lines[1:]
        if fate == "chosen"
    }


def unlike(path: Path, rates: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a line for each rate of a recipe that differs from the chosen rate."""
    has = dict(rows(path))
    return [
        f"{path}: {label}: {key} is {has[label].get(key)}, chosen was {value:g}"
        for label, values in rates.items()
        for key, value in values.items()
        if has[label].get(key) != value
    ]


def rows(path: Path) -> Iterator[tuple[str, Mapping[str, float | str]]]:
    """Yield the label and the options of each row of a recipe."""
    for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["methods"]:
        yield next(iter(entry.items())) if isinstance(entry, dict) else (entry, {})


def set_rates(path: Path, rates: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Write the chosen rates into the rows of a recipe; all other lines are unchanged."""
    before, mark, after = path.read_text(encoding="utf-8").partition("\nreference:")
    for label, values in rates.items():
        for key, value in values.items():
            row = re.compile(rf"(?m)^(  - {re.escape(label)}: \{{.*(?<![\w-]){key}: )[^,}}]+")
            before, count = row.subn(rf"\g<1>{value:g}", before)
            if count != 1:
                return [f"{path}: {label} has no {key} to be set"]
    path.write_text(before + mark + after, encoding="utf-8")
    return []


if __name__ == "__main__":
    raise SystemExit(main())
