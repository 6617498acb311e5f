"""The two pages of results: docs/claims.md and docs/which-start.md.

    python examples/claims/page.py [--outputs outputs] [--examples examples] [--docs docs] [--check]

First the results of the recipes' runs in OUTPUTS are stored in docs/tables (see tables.py). Then
both pages are computed from these tables only: the claims here, the starts in starts.py. With
--check nothing is written, and the exit status is 1 if a page differs from the computed one.
"""

import argparse
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
import numpy as np
import pandas as pd
import starts
import tables
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from verdicts import Verdict, interval, judge

from coprefl_flwr.errors import SettingsError, say, unknown
from coprefl_flwr.files import read_text, write_atomically
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.recipe import ALL, Recipe, table_name
from coprefl_flwr.recipes.yaml_file import read_yaml
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.figures import save
from coprefl_flwr.report.formats import escaped
from coprefl_flwr.report.statistics import summarise
from coprefl_flwr.report.tables import shown

HERE = Path(__file__).parent
HIGHER, LOG = "higher", "log"


# ---- claims --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim of a paper about two rows: the keys of claims.yaml; the last four: primary.yaml."""

    paper: str
    recipe: str  # its name, such as primary/coprefl-ratio
    claim: str
    source: str
    of: str = ""
    against: str = ""
    table: str | Sequence[str] = table_name({})
    metric: str = ""
    printed: str = ""
    cause: str | Mapping[str, str] = ""
    open: str = ""
    short: str = ""
    says: str = HIGHER
    scale: str = ""
    margin: float = math.nan

    @property
    def sides(self) -> list[tuple[str, str]]:
        """The table and the row of both compared results; empty for an open claim."""
        names = [self.table] * 2 if isinstance(self.table, str) else self.table
        return [] if self.open else list(zip(names, (self.of, self.against), strict=True))

    @property
    def sign(self) -> int:
        """The factor by which a difference as claimed is above 0."""
        return 1 if self.says == HIGHER else -1

    @property
    def width(self) -> float:
        """The margin on the scale of the differences."""
        return math.log(self.margin) if self.scale == LOG else self.margin

    def pairs(self, values: pd.DataFrame, protocol: str) -> pd.DataFrame:
        """Return the values of both rows, one line per seed in which both have all tasks."""
        here = values[(values["protocol"] == protocol) & (values["recipe"] == self.recipe)]
        here = here[here["metric"] == self.metric]
        of, against = (
            here[(here["table"] == table) & (here["row"] == row)] for table, row in self.sides
        )
        both = of.merge(against, on=["seed", "tasks"]).sort_values("seed")
        return both[["value_x", "value_y"]].set_axis(["of", "against"], axis=1).astype(float)

    def differences(self, pairs: pd.DataFrame) -> list[float]:
        """Return the first row's values minus the second row's; nan if a value is not finite."""
        with np.errstate(divide="ignore"):
            scaled = np.log(pairs) if self.scale == LOG else pairs
        return scaled.where(np.isfinite(scaled)).eval("of - against").tolist()


def read_claims(
    folder: Path, paths: Mapping[str, Path]
) -> tuple[list[Claim], list[Claim], dict[str, Recipe]]:
    """Return the primary claims, the exploratory claims, and the recipes of both by name.

    Raises a SettingsError if a claim names a row, a table or a metric that its recipe lacks.
    """
    primary, exploratory = folder / "primary.yaml", folder / "claims.yaml"
    primaries, others, recipes = [], [], {}

    def of(entry: Mapping[str, Any], name: str, place: str) -> Claim:
        if name not in paths:
            raise SettingsError(f"{place}: {unknown('recipe', name, list(paths))}")
        if name not in recipes:
            first = next(iter(protocols_of(paths[name])), "")
            recipes[name] = read_recipe(paths[name], protocol=first)
        return checked({**entry, "recipe": name}, recipes[name], place)

    for paper, entries in read_yaml(primary)[0].items():
        for entry in entries:
            name, place = f"primary/{entry.get('recipe')}", f"{primary}: {paper}"
            claim = of({**entry, "paper": paper}, name, place)
            if not claim.width > 0:
                problem = "a margin is above 0, a factor above 1"
                raise SettingsError(f"{place}, '{claim.claim}': {problem}")
            primaries.append(claim)
    for name, entries in read_yaml(exploratory)[0].items():
        for entry in entries:
            paper, _, source = entry.get("source", "").partition(", ")
            about = {"paper": paper, "source": source or paper}
            full = name if "/" in name else f"claims/{name}"
            others.append(of(entry | about, full, f"{exploratory}: {name}"))
    return primaries, others, recipes


def checked(entry: Mapping[str, Any], recipe: Recipe, place: str) -> Claim:
    """Return a claim, checked against its recipe."""
    try:
        claim = Claim(**entry)
        sides = claim.sides
    except (TypeError, ValueError) as error:  # A key is unknown or missing, or a table too many.
        raise SettingsError(f"{place}: {error}") from error
    named = [("says", claim.says, (HIGHER, "lower")), ("scale", claim.scale, ("", LOG))]
    named += [("metric", claim.metric, recipe.metrics)] if sides else []
    for table, row in sides:
        named += [("table", table, tables_of(recipe)), ("row", row, rows_of(recipe))]
    for what, value, allowed in named:
        if value not in allowed:
            found = unknown(what, value, list(allowed))
            raise SettingsError(f"{place}, '{claim.claim}': {found}")
    return claim


def rows_of(recipe: Recipe) -> list[str]:
    """Return the possible names of the rows of a recipe."""
    of_rows = [(row.label, one.chosen) for row in recipe.rows for one in row.trials()]
    return [f"{row}:{value}" if value and recipe.select == ALL else row for row, value in of_rows]


def tables_of(recipe: Recipe) -> list[str]:
    """Return the names of the tables of a recipe."""
    compared = [{key: one[key] for key in recipe.compared} for one in recipe.combinations()]
    return [table_name(one) for one in compared]


def protocols_of(path: Path) -> dict[str, str]:
    """Return the protocols of a recipe, each with its reason."""
    given = read_yaml(path)[0].get("protocols", {})
    return {name: one["because"] for name, one in given.items()}


# ---- the page of claims --------------------------------------------------------------------------


def judged(
    claims: Sequence[Claim], values: pd.DataFrame, recipes: Mapping[str, Recipe]
) -> dict[Claim, Verdict]:
    """Return the verdicts on the primary claims. The claims of a paper are judged together."""
    found = {}
    for paper in dict.fromkeys(one.paper for one in claims):
        own = [one for one in claims if one.paper == paper]
        pairs = [primary_pairs(one, values, recipes) for one in own]
        differences = [
            [one.sign * value for value in one.differences(both)]
            for one, both in zip(own, pairs, strict=True)
        ]
        wanted = [len(recipes[one.recipe].seeds) for one in own]
        verdicts = judge(differences, [one.width for one in own], wanted)
        found |= dict(zip(own, verdicts, strict=True))
    return found


def primary_pairs(
    claim: Claim, values: pd.DataFrame, recipes: Mapping[str, Recipe]
) -> pd.DataFrame:
    """Return the values of a primary claim's rows, under its recipe's first protocol."""
    return claim.pairs(values, recipes[claim.recipe].protocol or tables.UNNAMED)


def primary_cells(claim: Claim, verdict: Verdict, pairs: pd.DataFrame) -> list[str]:
    """Return the cells of a claim in the table of primary claims."""
    word = f"**{verdict.word}**" if verdict.decided else verdict.word
    if verdict.needs:
        word += f": some {verdict.needs} seeds would find a difference of the margin"
        narrow = verdict.high - verdict.low < 2 * claim.width
        word += "; the interval is narrower than twice the margin" if narrow else ""
    limits = sorted((claim.sign * verdict.low, claim.sign * verdict.high))
    ours = difference_of(claim, claim.sign * verdict.mean, *limits)
    margin = f"factor {claim.margin:g}" if claim.scale == LOG else f"{claim.margin:g}"
    texts = [
        f"{claim.claim}\n" + f"Note: {claim.cause}" * bool(claim.cause),
        f"{printed(claim)}\n{claim.source}",
        "\n".join([unbroken(ours), *means_of(claim, pairs)]) if ours else "",
        margin,
        str(verdict.seeds or ""),
    ]
    return ["<br>".join(map(escaped, text.strip().splitlines())) for text in texts] + [word]


def difference_of(claim: Claim, mean: float, low: float, high: float) -> str:
    """Return a difference with its interval and unit; on the logarithmic scale, a factor."""
    heading = column(claim.metric)
    if math.isnan(mean):
        return ""
    if claim.scale == LOG:
        values, spec, unit = [math.exp(one) for one in (mean, low, high)], ".2f", ""
    else:
        values, spec = [mean, low, high], f"+,.{heading.decimals}f"
        unit = " points" if heading.tested and heading.title.endswith("%") else ""
    texts = [format(one, spec) for one in values]
    between = "" if math.isnan(low) else f" [{texts[1]}, {texts[2]}]"
    return "factor " * (claim.scale == LOG) + texts[0] + between + unit


def explored_cells(
    claims: Sequence[Claim], values: pd.DataFrame, protocols: Sequence[str]
) -> list[list[str]]:
    """Return the table of a recipe's exploratory claims, with a line for each protocol."""
    found = []
    for claim in claims:
        known = [] if claim.open else [(name, claim.pairs(values, name)) for name in protocols]
        lines = [(name, pairs) for name, pairs in known if len(pairs)] or [("", None)]
        compared = {table for table, _ in claim.sides} - {table_name({})}
        setting = compared.pop() if len(compared) == 1 else ""
        for at, (protocol, pairs) in enumerate(lines):
            cause = claim.cause if isinstance(claim.cause, str) else claim.cause.get(protocol, "")
            ours = "not measured" if pairs is None else explored(claim, pairs)
            needs = f"Would need: {claim.open}." if claim.open else ""
            cells = [
                "" if at else claim.claim,
                "" if at else f"{claim.source}\n{printed(claim)}",
                f"{protocol}\n{setting}",
                ours,
                f"{cause}\n{needs}",
            ]
            found.append(["<br>".join(map(escaped, one.strip().splitlines())) for one in cells])
    return found


def explored(claim: Claim, pairs: pd.DataFrame) -> str:
    """Return the difference with its interval, and the means of both rows over seeds."""
    differences = claim.differences(pairs)
    found = summarise(differences)
    every = found.n == len(differences)  # A start that never reached its loss has no difference.
    difference = difference_of(claim, found.mean, *interval(found)) if every else ""
    seeds = f"{len(pairs)} seed{'s' * (len(pairs) != 1)}"
    means = ", ".join(means_of(claim, pairs))
    return f"{column(claim.metric).title}: {difference}\n{means}; {seeds}"


def means_of(claim: Claim, pairs: pd.DataFrame) -> list[str]:
    """Return the name of each row with its mean over seeds."""
    (first, _), (second, _) = claim.sides
    names = [row if first == second else f"{row} ({table})" for table, row in claim.sides]
    means = [shown(pairs[side].mean(), spec=column(claim.metric).decimals) for side in pairs]
    return [f"{name} {mean}" for name, mean in zip(names, means, strict=True)]


def unbroken(difference: str) -> str:
    """Return a difference whose interval is not broken over lines in a narrow column."""
    return difference.replace(" [", "\u00a0[").replace(", ", ",\u00a0")


def printed(claim: Claim) -> str:
    """Return the figures that the paper printed; large numbers are counts without decimals."""
    numbers = [float(one) for one in claim.printed.split()]
    return " against ".join(f"{one:,.0f}" if one >= 1000 else f"{one:.2f}" for one in numbers)


def note_of(path: Path) -> str:
    """Return the comment at the beginning of a recipe's file, without the line for editors."""
    text = re.sub(r"\A# yaml-language-server:.*\n", "", read_text(path))
    lines = re.match(r"(?:#.*\n)*", text)[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines)


def page_of(
    claims: Sequence[Claim],
    verdicts: Mapping[Claim, Verdict],
    values: pd.DataFrame,
    recipes: Mapping[str, Recipe],
    paths: Mapping[str, Path],
    picture: str,
) -> str:
    """Return the page of claims: the primary claims, and all other claims by recipe."""
    sections = []
    for name in dict.fromkeys(one.recipe for one in claims):
        path, of_recipe = paths[name], values[values["recipe"] == name]
        reasons = protocols_of(path)
        names = list(dict.fromkeys([*reasons, *of_recipe["protocol"]])) or [tables.UNNAMED]
        own = [one for one in claims if one.recipe == name]
        options = [f" --protocol {one}" * (one != tables.UNNAMED) for one in names]
        sections.append({
            "title": f"{own[0].paper}: {read_yaml(path)[0]['title']}", "note": note_of(path),
            "protocols": reasons, "rows": explored_cells(own, values, names),
            "commands": [f"coprefl run {path}{option}" for option in options],
        })  # fmt: skip
        sections[-1]["measured"] = sum(row[3] != "not measured" for row in sections[-1]["rows"])
    sections.sort(key=lambda one: not one["measured"])  # Those without a result come last.
    papers = {one.paper: [] for one in verdicts}
    for claim, verdict in verdicts.items():
        pairs = primary_pairs(claim, values, recipes)
        papers[claim.paper].append(primary_cells(claim, verdict, pairs))
    return rendered(
        "page.md.jinja", papers=papers, sections=sections, picture=picture,
        explored=sum(len(one["rows"]) for one in sections),
        measured=sum(one["measured"] for one in sections),
        tested={name: len(rows) for name, rows in papers.items()},
    )  # fmt: skip


def rendered(template: str, **given: Any) -> str:
    """Return the page that a template gives."""
    pages = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    pages.filters["escaped"] = escaped
    return pages.get_template(template).render(given)


# ---- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, what in (("examples", "claims and recipes"), ("outputs", "runs"), ("docs", "pages")):
        parser.add_argument(f"--{name}", type=Path, default=Path(name), help=f"folder of {what}")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    given = parser.parse_args(arguments)
    try:
        return make(given.examples, given.outputs, given.docs, given.check)
    except SettingsError as error:
        say(f"claims: {error}", file=sys.stderr)
        return 1


def make(examples: Path, outputs: Path, docs: Path, check: bool) -> int:
    """Store the results, and write both pages and their figures; or only check the pages."""
    paths = tables.recipes_of(examples)
    primary, others, recipes = read_claims(examples / "claims", paths)
    stored = tables.read(docs / "tables")
    if not check:
        stored |= tables.collected(outputs, paths)
    usable = tables.of_today(stored, paths)
    values = tables.means(usable, docs / "claims.csv")
    verdicts = judged(primary, values, recipes)
    settings, missing = starts.measured(usable, paths)
    known = [(claim, one) for claim, one in verdicts.items() if one.low < one.high]
    drawn = {
        "claims_forest.png": bool(known) and figures.forest(known),
        "which_start.png": bool(settings) and figures.worth_over_cost(settings),
    }
    forest, worth = (name if figure else "" for name, figure in drawn.items())
    about = starts.page(settings, missing, usable)
    pages = {
        docs / "claims.md": page_of(others, verdicts, values, recipes, paths, forest),
        docs / "which-start.md": rendered("starts.md.jinja", picture=worth, **about),
    }
    if check:
        wrong = [path for path, text in pages.items() if not same(path, text)]
        for path in wrong:
            say(f"{path} differs from the page that is computed from {docs / 'tables'}")
        return int(bool(wrong))
    tables.write(docs / "tables", stored)
    for name, figure in drawn.items():
        if figure:
            save(figure, docs / name)
    for path, text in pages.items():
        write_atomically(path, text.encode())
    decided = sum(one.decided for one in verdicts.values())
    say(f"{decided} of {len(primary)} primary claims decided, {len(settings)} settings of starts")
    return 0


def same(path: Path, text: str) -> bool:
    """Return whether a page exists and has this text."""
    return path.is_file() and read_text(path) == text


if __name__ == "__main__":
    sys.exit(main())
