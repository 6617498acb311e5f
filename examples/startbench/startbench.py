"""Measure every start of the package under one rule (see README.md in this folder).

    python examples/startbench/startbench.py [SETTING ...] [--plan] [--write-rates]

For each SETTING (all five, if none is named) rates are chosen first, then starts are trained and
measured. Finished work is reused: after Ctrl-C, run the same command again to continue. The command
prints the hours first; with --plan it prints only the hours.

The rates in a SETTING's recipe must be those that its protocols `tune` and `tune-scaffold` choose.
If they are not, the command names the right rates and ends before starts are trained. --write-rates
writes them into the recipe.
"""

import argparse
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from coprefl_flwr.files import read_json, read_text
from coprefl_flwr.recipes.listing import FAILED

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "claims"))
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
    asked = parser.parse_args(given)
    for name in asked.settings:
        if name not in SETTINGS:
            parser.error(f"setting '{name}': allowed are {', '.join(SETTINGS)}")
    recipes = [HERE / f"{name}.yaml" for name in asked.settings or SETTINGS]
    # The heads use the starts of `fresh` and need no training, so they cost almost nothing.
    for path, protocol in itertools.product(recipes, (*SEARCHES, FRESH)):
        if status := coprefl("plan", path, protocol, []):
            return status
    for path in [] if asked.plan else recipes:
        rates: dict[str, dict[str, float]] = {}
        for protocol in PROTOCOLS:
            out = asked.outputs / f"startbench-{path.stem}-{protocol}"
            options = ["--workers", asked.workers, "--out", str(out)]
            status = coprefl("run", path, protocol, options)
            # If the training of a run diverges, only this run fails; the others are used.
            if status and not (status == 1 and failed_runs(out)):
                return status
            if protocol in SEARCHES:
                rates |= chosen(out)
                wrong = []
                if asked.write_rates:
                    wrong = set_rates(path, rates)
                elif protocol == SEARCHES[-1]:
                    wrong = unlike(path, rates)
                if wrong:
                    print("\n".join(wrong), file=sys.stderr)
                    return 1
    return 0


def coprefl(verb: str, path: Path, protocol: str, options: Sequence[str]) -> int:
    """Run the command on one protocol of a recipe; return its exit status."""
    command = ["coprefl", verb, str(path), "--protocol", protocol, *options]
    print(" ".join(command), flush=True)
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
