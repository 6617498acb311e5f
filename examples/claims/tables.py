"""The stored results behind the pages: one line per row, seed, task and metric.

docs/tables/NAME.csv.gz has the results of the run in the folder NAME of the outputs, and about.json
has its versions, machine, date and commit. Older runs have one mean per seed in docs/claims.csv.
"""

import gzip
import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from coprefl_flwr.errors import SettingsError, say
from coprefl_flwr.files import read_json, read_text, write_atomically
from coprefl_flwr.recipes.listing import FAILED
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.yaml_file import read_yaml
from coprefl_flwr.report.columns import STOPPED

FOLDERS = ("claims", "claims/primary", "startbench")  # of the examples, with recipes
NO_RECIPES = ("claims.yaml", "primary.yaml")
KEY = ["table", "row", "seed", "task", "metric"]
OF_SEED = ["recipe", "protocol", "table", "row", "metric", "seed"]
UNNAMED = "as set"  # stored as the protocol of a recipe without protocols
MADE = {
    "versions": "versions", "machine": "machine", "date": "date (UTC)",
    "commit": "commit of the package",
}  # fmt: skip
"""By key of about.json, the name of the value in a report."""


class Stored(NamedTuple):
    """The results of a run."""

    # Recipe, protocol, rows, hash of the settings, the keys of MADE, number of failed runs, and the
    # trials of a search. Tables stored before 28 November 2026 have no rows.
    about: dict[str, Any]
    rows: pd.DataFrame  # the columns of KEY, and value


def recipes_of(examples: Path) -> dict[str, Path]:
    """Return the recipes by their names, such as primary/coprefl-ratio."""
    found = [path for one in FOLDERS for path in sorted((examples / one).glob("*.yaml"))]
    return {f"{p.parent.name}/{p.stem}": p for p in found if p.name not in NO_RECIPES}


# ---- from reports --------------------------------------------------------------------------------


def collected(outputs: Path, recipes: Mapping[str, Path]) -> dict[str, Stored]:
    """Return the results of the finished runs of recipes, by the names of their folders.

    A run whose settings differ from its recipe is left out, and a line names the difference.
    """
    names = {read_yaml(path)[0]["title"]: name for name, path in recipes.items()}
    found = {}
    for file in sorted(outputs.glob("*/recipe.yaml")):
        run, report = read_yaml(file)[0], file.parent / "report"
        name, protocol = names.get(run.get("title")), run.get("protocol", "")
        if name is None:
            continue
        if why := left_out(file, run, recipes[name], protocol):
            say(f"{file.parent} is left out: {why}", file=sys.stderr)
            continue
        made = dict(cells_of(read_text(report / "provenance.md").partition("\n## Settings")[0]))
        about = {"recipe": name, "protocol": protocol or UNNAMED, "settings": hashed(run)}
        about["rows"] = labels_of(run)
        about |= {key: made.get(line, "") for key, line in MADE.items()}
        trials = [
            cells
            for search in sorted((report / "tables").glob("*-search.md"))
            for cells in cells_of(read_text(search))
        ]
        about |= {"trials": trials} if trials else {}
        failed = file.parent / FAILED
        if failed.is_file() and (runs := read_json(failed)):
            about["failed runs"] = len(runs)
        found[file.parent.name] = Stored(about, rows_of_units(report / "units.csv"))
    return found


def left_out(file: Path, run: Mapping[str, Any], path: Path, protocol: str) -> str:
    """Return why a run does not match a recipe and its protocol, or has no report; or ""."""
    here = settings_of(run)
    try:
        there = settings_of(read_recipe(path, protocol=protocol).effective, labels_of(run))
    except SettingsError as error:  # The recipe no longer has this protocol.
        return str(error)
    other = [key for key in here | there if here.get(key) != there.get(key)]
    if other:
        return f"it differs from {path} in {', '.join(other)}"
    units = file.parent / "report" / "units.csv"
    if not units.is_file() or units.stat().st_mtime < file.stat().st_mtime:
        return f"its report is missing or older than its run: coprefl report {file.parent}"
    return ""


def labels_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return the labels of a recipe's rows."""
    return [one if isinstance(one, str) else next(iter(one)) for one in recipe["methods"]]


def settings_of(recipe: Mapping[str, Any], rows: Sequence[str] | None = None) -> dict[str, str]:
    """Return all settings that affect a recipe's results except the seeds, without folder names.

    `rows` are the only rows that count; None: all.
    """
    keys = ("scale", "methods", "search", "select", "search-by")
    given = recipe["settings"] | {key: recipe[key] for key in keys if key in recipe}
    if rows is not None:
        labelled = zip(labels_of(recipe), recipe["methods"], strict=True)
        given["methods"] = [one for label, one in labelled if label in rows]
    texts = {key: json.dumps(given[key], sort_keys=True) for key in given if key != "data-dir"}
    return {key: re.sub(r'[^\s":]*/', "", text) for key, text in texts.items()}


def hashed(recipe: Mapping[str, Any], rows: Sequence[str] | None = None) -> str:
    """Return the first 16 digits of the SHA-256 of a recipe's settings, with only these `rows`."""
    settings = json.dumps(sorted(settings_of(recipe, rows).items()))
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def is_of(about: Mapping[str, Any], recipe: Mapping[str, Any]) -> bool:
    """Return whether the rows of a stored table still have the same settings in a recipe.

    The recipe may have further rows. If the table does not name its rows, these come after them.
    """
    now = labels_of(recipe)
    rows = [about["rows"]] if "rows" in about else [now[:n] for n in range(len(now), 0, -1)]
    return any(hashed(recipe, one) == about["settings"] for one in rows)


def cells_of(markdown: str) -> list[list[str]]:
    """Return the cells of each line of a report's table, as plain text."""
    lines = [one[2:-2].split(" | ") for one in markdown.splitlines() if one.startswith("| ")]
    return [
        [re.sub(r"\\(.)", r"\1", cell.strip("*").rstrip(" †")) for cell in one] for one in lines
    ]


def rows_of_units(path: Path) -> pd.DataFrame:
    """Return the values of the finished seeds in a report's units.csv."""
    texts = dict.fromkeys(("comparison", "row", "label"), str)
    units = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=texts)
    units = units.rename(columns={"comparison": "table"})
    of = units.pop("unit").str.extract(r"^seed (\d+)(?:, task (\d+))?").fillna(0).astype(int)
    units["seed"], units["task"] = of[0], of[1]
    # A row is named by its label if no other row has the same label.
    alone = units.groupby(["table", "label"])["row"].transform("nunique") == 1
    units["row"] = units.pop("label").where(alone, units["row"])
    if "accuracy" in units:
        seed = [units[name] for name in ("table", "row", "seed")]
        units = units[units["accuracy"].notna().groupby(seed).transform("all")]
    found = units.melt(KEY[:-1], var_name="metric").dropna()
    # Rounded as in the stored table, so that a page does not change when it is read again.
    return found.assign(value=[float(f"{one:.10g}") for one in found["value"]])


# ---- stored tables -----------------------------------------------------------------------------


def write(folder: Path, tables: Mapping[str, Stored]) -> None:
    """Store tables; equal tables give equal bytes."""
    for name, one in tables.items():
        texts = one.rows.assign(value=[f"{value:.10g}" for value in one.rows["value"]])
        content = texts.to_csv(index=False, lineterminator="\n").encode()
        write_atomically(folder / f"{name}.csv.gz", gzip.compress(content, mtime=0))
    abouts = {name: tables[name].about for name in sorted(tables)}
    write_atomically(folder / "about.json", (json.dumps(abouts, indent=1) + "\n").encode())


def read(folder: Path) -> dict[str, Stored]:
    """Return the stored tables by name."""
    file = folder / "about.json"
    abouts = read_json(file) if file.is_file() else {}
    texts = dict.fromkeys(("table", "row", "metric"), str)
    return {
        name: Stored(about, pd.read_csv(folder / f"{name}.csv.gz", dtype=texts))
        for name, about in abouts.items()
    }


def of_today(tables: Mapping[str, Stored], recipes: Mapping[str, Path]) -> dict[str, Stored]:
    """Return the tables whose recipes still have the same settings; a line names each other."""
    found = {}
    for name, one in tables.items():
        path, protocol = recipes.get(one.about["recipe"]), one.about["protocol"]
        protocol = "" if protocol == UNNAMED else protocol
        try:
            now = path and is_of(one.about, read_recipe(path, protocol=protocol).effective)
        except SettingsError:
            now = False
        if now:
            found[name] = one
        else:
            say(f"table {name} is left out: its recipe has other settings now", file=sys.stderr)
    return found


def rows_of(tables: Mapping[str, Stored], recipe: str, protocol: str) -> pd.DataFrame:
    """Return all results of a recipe and protocol. Two tables may have the same seed."""
    of = (recipe, protocol)
    own = [t.rows for t in tables.values() if (t.about["recipe"], t.about["protocol"]) == of]
    empty = pd.DataFrame(columns=[*KEY, "value"])
    return pd.concat(own).drop_duplicates(KEY) if own else empty


def named_rows(tables: Mapping[str, Stored], recipe: str, protocol: str) -> set[str]:
    """Return the rows that the tables of a recipe and protocol name, also those that failed."""
    own = [t.about for t in tables.values()]
    own = [a for a in own if (a["recipe"], a["protocol"]) == (recipe, protocol)]
    return {row for about in own for row in about.get("rows", ())}


def by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the means over tasks: one line per table, row, metric and seed.

    The means of a start that never reached the loss at which it stops are infinite.
    """
    of_start = ["table", "row", "seed"]
    late = rows[(rows["metric"] == STOPPED) & (rows["value"] == math.inf)]
    never = rows.set_index(of_start).index.isin(late.set_index(of_start).index)
    values = rows.assign(value=rows["value"].mask(never, math.inf))
    found = values.groupby(["table", "row", "metric", "seed"], sort=False)["value"]
    return found.agg(["mean", "count"]).set_axis(["value", "tasks"], axis=1).reset_index()


def means(tables: Mapping[str, Stored], older: Path) -> pd.DataFrame:
    """Return all means by seed. A recipe and protocol without a table has those in `older`."""
    texts = dict.fromkeys(OF_SEED[:-1], str)
    old = pd.DataFrame(columns=[*OF_SEED, "value", "tasks"])
    if older.is_file():
        old = pd.read_csv(older, keep_default_na=False, dtype=texts).astype({"value": float})
    old["recipe"] = "claims/" + old["recipe"]
    new = [
        by_seed(rows_of(tables, *of)).assign(recipe=of[0], protocol=of[1])
        for of in {(t.about["recipe"], t.about["protocol"]): None for t in tables.values()}
    ]
    known = {(t.about["recipe"], t.about["protocol"]) for t in tables.values()}
    kept = [pair not in known for pair in zip(old["recipe"], old["protocol"], strict=True)]
    every = [one for one in (old[kept], *new) if len(one)]
    return pd.concat(every) if every else old
