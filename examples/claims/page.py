"""Whether the papers' claims hold, as a page: what claims.yaml says, against what its recipes gave.

    python examples/claims/page.py [--outputs outputs] [--page docs/claims.md] [--check]

Of each recipe that was run into a folder of OUTPUTS, `report/units.csv` gives a mean per row,
metric and seed. These means go into a table beside the page (docs/claims.csv), in the place of
those of the same recipe and protocol. The table keeps the values of what has no report in OUTPUTS,
so the page can be made where the results are not. With --check nothing is written, and the exit
status is 1 if the page is not the one that the table gives.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import budgets
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from verdicts import ERROR, MARGIN, MIN_SEEDS, OPEN, SAYS, Question, Verdict, judge, usual_margin

from coprefl_flwr.errors import SettingsError, say, unknown
from coprefl_flwr.files import read_text, write_atomically
from coprefl_flwr.recipes.collect import table_name
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.recipe import ALL, Recipe
from coprefl_flwr.recipes.yaml_file import read_yaml
from coprefl_flwr.report.columns import STOPPED, column
from coprefl_flwr.report.figures import save
from coprefl_flwr.report.forms import escaped
from coprefl_flwr.report.table import shown

CLAIMS, OUTPUTS, PAGE = Path("examples/claims/claims.yaml"), Path("outputs"), Path("docs/claims.md")
TEMPLATE = Path(__file__).with_name("page.md.jinja")
PICTURED = "coprefl-pretraining"  # the recipe whose rows are drawn over their budgets
KEY = ["table", "row", "metric", "seed"]
COLUMNS = ["recipe", "protocol", *KEY, "value", "tasks"]
UNNAMED = "as set"  # the protocol of a recipe that has none
COUNTED = ("holds", "does not hold", OPEN, "not measured")


# ---- claims --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """What a paper says of two rows, or what a measurement of it needs (see claims.yaml)."""

    claim: str
    source: str  # begins with the paper's short name and a comma
    of: str = ""
    against: str = ""
    table: str | Sequence[str] = table_name({})
    metric: str = ""
    says: str = ""
    margin: float | None = None
    printed: str = ""
    cause: str | Mapping[str, str] = ""
    open: str = ""

    @property
    def sides(self) -> list[tuple[str, str]]:
        """The table and the row of what is compared; none of an open claim."""
        tables = [self.table] * 2 if isinstance(self.table, str) else self.table
        return [] if self.open else list(zip(tables, (self.of, self.against), strict=True))


def read_claims(file: Path) -> dict[Path, list[Claim]]:
    """Return the claims by the file of their recipe, which lies beside theirs.

    Raises a SettingsError for a claim about what its recipe does not have.
    """
    found = {}
    for name, entries in read_yaml(file).plain().items():
        path = file.with_name(f"{name}.yaml")
        recipe = read_recipe(path, protocol=next(iter(protocols_of(path)), ""))
        found[path] = [checked(one, recipe, f"{file}: {name}") for one in entries]
    return found


def checked(entry: Mapping[str, Any], recipe: Recipe, place: str) -> Claim:
    """Return a claim of a recipe."""
    try:
        claim = Claim(**entry)
        sides = claim.sides
    except (TypeError, ValueError) as error:  # A key is unknown or missing, or a table too many.
        raise SettingsError(f"{place}: {error}") from error
    if claim.open:
        return claim
    of_rows = [(row.label, one.chosen) for row in recipe.entrants for one in row.candidates()]
    rows = [f"{row}:{value}" if value and recipe.select == ALL else row for row, value in of_rows]
    compared = [{key: one[key] for key in recipe.compared} for one in recipe.combinations()]
    tables = [table_name(one) for one in compared]
    named = [("metric", claim.metric, recipe.metrics), ("says", claim.says, SAYS)]
    for table, row in sides:
        named += [("table", table, tables), ("row", row, rows)]
    for what, value, allowed in named:
        if value not in allowed:
            found = unknown(what, value, list(allowed))
            raise SettingsError(f"{place}, '{claim.claim}': {found}")
    equal = claim.says == "equal"
    if (margin_of(claim) if equal else column(claim.metric).better) is None:
        why = "equal needs a margin" if equal else f"no way of {claim.metric} is better"
        raise SettingsError(f"{place}, '{claim.claim}': {why}")
    return claim


def margin_of(claim: Claim) -> float | None:
    """Return within what a difference is none."""
    return usual_margin(claim.metric) if claim.margin is None else claim.margin


def protocols_of(path: Path) -> dict[str, str]:
    """Return the protocols of a recipe, each with its reason."""
    given = read_yaml(path).plain().get("protocols", {})
    return {name: one["because"] for name, one in given.items()}


# ---- values --------------------------------------------------------------------------------------


def read_values(path: Path) -> pd.DataFrame:
    """Return the table of values; an empty one where there is no such file."""
    if not path.is_file():
        return pd.DataFrame(columns=COLUMNS)
    found = pd.read_csv(path, keep_default_na=False, dtype=dict.fromkeys(COLUMNS[:5], str))
    if list(found.columns) != COLUMNS:
        raise SettingsError(f"{path}: its columns must be {', '.join(COLUMNS)}")
    return found.astype({"value": float})


def renewed(
    values: pd.DataFrame, outputs: Path, claims: Mapping[Path, Sequence[Claim]]
) -> pd.DataFrame:
    """Return the values with those of reports in the place of the same recipe and protocol's.

    What was run with other settings than its recipe has is left out, with a line that says so.
    """
    titles = {read_yaml(path).plain()["title"]: path for path in claims}
    found = []
    for file in sorted(outputs.glob("*/recipe.yaml")):
        run = read_yaml(file).plain()
        path, protocol = titles.get(run.get("title")), run.get("protocol", "")
        if path is None:
            continue
        if why := left_out(file, run, path, protocol):
            say(f"{file.parent} is left out: {why}", file=sys.stderr)
            continue
        metrics = [one.metric for one in claims[path]]
        metrics += budgets.METRICS if path.stem == PICTURED else ()
        of_run = values_of(file.parent / "report" / "units.csv", metrics)
        found.append(of_run.assign(recipe=path.stem, protocol=protocol or UNNAMED)[COLUMNS])
    if not found:
        return values
    # The same seed may lie in two folders.
    new, of = pd.concat(found).drop_duplicates(COLUMNS[:6]), COLUMNS[:2]
    old = values[~values.set_index(of).index.isin(new.set_index(of).index)]
    both = [one for one in (old, new) if len(one)]
    return pd.concat(both).sort_values(of, kind="stable") if both else values


def left_out(file: Path, run: Mapping[str, Any], path: Path, protocol: str) -> str:
    """Say why a run is not that of a recipe and its protocol, or not reported; "" if it is."""
    try:
        here, there = settings_of(run), settings_of(read_recipe(path, protocol=protocol).effective)
    except SettingsError as error:  # The recipe has not this protocol any more.
        return str(error)
    other = [key for key in here | there if here.get(key) != there.get(key)]
    if other:
        return f"it has another {', '.join(other)} than {path}"
    units = file.parent / "report" / "units.csv"
    if not units.is_file() or units.stat().st_mtime < file.stat().st_mtime:
        return f"it has no report since its last run: coprefl report {file.parent}"
    return ""


def settings_of(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return what decides on a recipe's numbers but for seeds; its files may lie elsewhere."""
    keys = ("scale", "methods", "search", "select", "search-by", "search-trials")
    given = recipe["settings"] | {key: recipe[key] for key in keys if key in recipe}
    texts = {key: json.dumps(given[key], sort_keys=True) for key in given if key != "data-dir"}
    return {key: re.sub(r'[^\s":]*/', "", text) for key, text in texts.items()}


def values_of(path: Path, metrics: Iterable[str]) -> pd.DataFrame:
    """Return the means of a report's metrics over the tasks of each seed that is done.

    Those of a start that never came to the loss at which it was to stop are infinite.
    """
    texts = dict.fromkeys(("comparison", "row", "label"), str)
    units = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=texts)
    units["seed"] = units["unit"].str.extract(r"^seed (\d+)", expand=False).astype(int)
    units["table"], row = units["comparison"], units["row"]
    # A label names a row where no other row has it.
    alone = units.groupby(["table", "label"])["row"].transform("nunique") == 1
    units["row"] = units["label"].where(alone, row)
    seed = [units[name] for name in ("table", "row", "seed")]
    has = [name for name in dict.fromkeys(metrics) if name in units]
    if STOPPED in units:
        never = units[STOPPED].groupby(seed).transform("max") == math.inf
        units.loc[never, has] = units.loc[never, has].mask(units.loc[never, has].notna(), math.inf)
    if "accuracy" in units:
        units = units[units["accuracy"].notna().groupby(seed).transform("all")]
    found = units.set_index(["table", "row", "seed"])[has].rename_axis(columns="metric").stack()
    of_seeds = found.dropna().groupby(level=KEY, sort=False)
    return of_seeds.agg(["mean", "count"]).set_axis(["value", "tasks"], axis=1).reset_index()


# ---- the page ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Row:
    """A claim under one protocol, or one of which nothing was measured."""

    claim: Claim
    protocol: str = ""
    question: Question | None = None

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.claim.source.partition(",")[0]


def rows_of(claim: Claim, values: pd.DataFrame, protocols: Iterable[str]) -> list[Row]:
    """Return a row for each protocol that has values of a claim, or one where none has."""
    found = []
    for protocol in [] if claim.open else protocols:
        here = values[(values["protocol"] == protocol) & (values["metric"] == claim.metric)]
        of, against = (
            here[(here["table"] == table) & (here["row"] == row)] for table, row in claim.sides
        )
        # A seed counts where both rows have as many tasks.
        both = of.merge(against, on=["seed", "tasks"]).sort_values("seed")
        pairs = both["value_x"].tolist(), both["value_y"].tolist()
        question = Question(claim.metric, claim.says, margin_of(claim), *pairs)
        found += [Row(claim, protocol, question)] if len(both) else []
    return found or [Row(claim)]


def page_of(
    claims: Mapping[Path, Sequence[Claim]], values: pd.DataFrame, **given: Any
) -> tuple[str, str]:
    """Return the page, and a line that says how many of its rows have which verdict."""
    sections = []
    for path, of_recipe in claims.items():
        here, reasons = values[values["recipe"] == path.stem], protocols_of(path)
        names = list(dict.fromkeys([*reasons, *here["protocol"]])) or [UNNAMED]
        rows = [row for claim in of_recipe for row in rows_of(claim, here, names)]
        about = {
            "title": read_yaml(path).plain()["title"],
            "note": note_of(path),
            "protocols": reasons,
            "commands": [
                f"coprefl run {path}" + f" --protocol {name}" * (name != UNNAMED) for name in names
            ],
        }
        sections.append((about, rows))
    every = [row for _, rows in sections for row in rows]
    asked = {row: row.question for row in every if row.question}
    judged = dict(zip(asked, judge(list(asked.values())), strict=True))
    papers = dict.fromkeys(row.paper for row in every)
    for paper in papers:
        own = [(about, [row for row in rows if row.paper == paper]) for about, rows in sections]
        papers[paper] = [about | {"rows": cells_of(rows, judged)} for about, rows in own if rows]
    words = [(row.paper, judged[row].word if row in judged else COUNTED[-1]) for row in every]
    counts = [
        [name, *(sum(name in (of, "all") and one == word for of, one in words) for word in COUNTED)]
        for name in [*papers, "all"]
    ]
    pages = Environment(
        loader=FileSystemLoader(TEMPLATE.parent), undefined=StrictUndefined, trim_blocks=True,
    )  # fmt: skip
    pages.filters["escaped"] = escaped
    tested = sum(one.low < one.high for one in judged.values())
    text = pages.get_template(TEMPLATE.name).render(
        given, papers=papers, counts=counts, tested=tested, error=f"{100 * ERROR:g}",
        sure=f"{100 - 100 * ERROR:g}", margin=MARGIN, seeds=MIN_SEEDS,
    )  # fmt: skip
    told = [f"{sum(one.word == word for one in judged.values())} {word}" for word in COUNTED[:3]]
    return text, f"{len(judged)} measured rows: {', '.join(told)}"


def note_of(path: Path) -> str:
    """Return the comment at the beginning of a recipe's file."""
    lines = re.match(r"(?:#.*\n)*", read_text(path))[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines)


def cells_of(rows: Sequence[Row], judged: Mapping[Row, Verdict]) -> list[list[str]]:
    """Return the table of a recipe's claims; a claim is written once, above its protocols."""
    found = []
    for before, row in zip([None, *rows], rows, strict=False):
        claim, verdict = row.claim, judged.get(row)
        again = before is not None and before.claim is claim
        cause = claim.cause if isinstance(claim.cause, str) else claim.cause.get(row.protocol, "")
        needs = verdict.needs if verdict else claim.open or "to be run, as it was not yet"
        settings = {table for table, _ in claim.sides} - {table_name({})}
        setting = settings.pop() if len(settings) == 1 else ""
        cells = [
            "" if again else claim.claim,
            "" if again else printed(claim),
            f"{row.protocol}\n{setting}",
            ours(claim, row.question, verdict) if row.question and verdict else "",
            verdict.word if verdict else OPEN,
            f"{cause}\n" + (f"Would need: {needs}." if needs else ""),
        ]
        cells = ["<br>".join(escaped(one) for one in cell.strip().splitlines()) for cell in cells]
        cells[4] = cells[4] if cells[4] == OPEN else f"**{cells[4]}**"
        found.append(cells)
    return found


def printed(claim: Claim) -> str:
    """Return where the paper has a claim, and its figures: those of counts have no decimals."""
    numbers = [float(one) for one in claim.printed.split()]
    figures = [f"{one:,.0f}" if one >= 1000 else f"{one:.2f}" for one in numbers]
    place = claim.source.partition(",")[2].strip() or claim.source
    return "\n".join([place, " against ".join(figures)])


def ours(claim: Claim, question: Question, verdict: Verdict) -> str:
    """Return the difference with its corrected interval, and both rows' means over seeds."""
    heading, means = column(claim.metric), []
    same = claim.sides[0][0] == claim.sides[1][0]
    for (table, row), values in zip(claim.sides, (question.of, question.against), strict=True):
        mean = shown(sum(values) / len(values), f",.{heading.decimals}f")
        means.append(f"{row} {mean}" if same else f"{row} ({table}) {mean}")
    spec = f"+,.{heading.decimals}f"
    low, high = f"{verdict.low:{spec}}", f"{verdict.high:{spec}}"
    between = f" [{low}, {high}]" if verdict.low < verdict.high else ""
    difference = "" if math.isnan(verdict.mean) else f": {verdict.mean:{spec}}{between}"
    seeds = f"{verdict.seeds} seed{'s' * (verdict.seeds != 1)}"
    return f"{heading.title}{difference}\n{', '.join(means)}; {seeds}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--claims", type=Path, default=CLAIMS, help="with its recipes beside it")
    parser.add_argument("--outputs", type=Path, default=OUTPUTS, help="the recipes' runs")
    parser.add_argument("--page", type=Path, default=PAGE, help="its table is beside it")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    given = parser.parse_args(arguments)
    try:
        return write(given.claims, given.outputs, given.page, given.check)
    except SettingsError as error:
        say(f"claims: {error}", file=sys.stderr)
        return 1


def write(file: Path, outputs: Path, page: Path, check: bool) -> int:
    """Write the page, its table of values and its figures, or check that the page is theirs."""
    claims, table = read_claims(file), page.with_suffix(".csv")
    values = read_values(table)
    if not check:
        values = renewed(values, outputs, claims)
    of_figures = values[values["recipe"] == PICTURED]
    drawn = {name: budgets.points(of_figures, at) for name, (at, _) in budgets.FIGURES.items()}
    figures = {
        name: page.with_name(f"{page.stem}_{name}.png") for name in drawn if len(drawn[name])
    }
    text, counts = page_of(
        claims,
        values,
        command="python examples/claims/page.py",
        figures={path.name: budgets.FIGURES[name][1] for name, path in figures.items()},
    )
    if check:
        same = page.is_file() and read_text(page) == text
        say(f"{page}: {counts}" if same else f"{page} is not the page that {table} gives")
        return 0 if same else 1
    shortened = values.assign(value=[f"{value:.10g}" for value in values["value"]])
    write_atomically(table, shortened.to_csv(index=False, lineterminator="\n").encode())
    for name, path in figures.items():
        save(budgets.budget_figure(drawn[name], budgets.FIGURES[name][0]), path)
    write_atomically(page, text.encode())
    say(f"{page}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
