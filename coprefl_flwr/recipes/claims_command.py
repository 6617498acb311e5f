"""`coprefl claims`: from the results of a folder of recipes to a page of verdicts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from coprefl_flwr.errors import SettingsError, say
from coprefl_flwr.files import read_text, write_atomically
from coprefl_flwr.recipes.claims import Asked, Claim, Side
from coprefl_flwr.recipes.gathering import (
    AS_SET,
    by_title,
    gathered,
    read_values,
    renewed,
    where_of,
    write_values,
)
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.yaml_file import part_of, read_yaml
from coprefl_flwr.report.claims_page import Page, Row, Section
from coprefl_flwr.report.columns import is_column
from coprefl_flwr.report.figures import budgets
from coprefl_flwr.report.figures.style import save
from coprefl_flwr.report.verdicts import FAILS, HOLDS, OPEN, Question

PICTURED = "coprefl-pretraining"
"""The recipe whose rows are drawn over their budgets."""
PAGE = Path("docs/claims.md")
"""Where the page goes, if nothing else is said."""
Recipes = Mapping[Path, Recipe]


def write_claims(folder: Path, outputs: Path, page: Path) -> int:
    """Write the page of a folder of recipes, with its table of values and its figures beside it.

    What `outputs` has no results of keeps the values that the table had: the page can be made again
    where the results are not.
    """
    recipes = _recipes(folder)
    table = page.with_suffix(".csv")
    values = read_values(table)
    made = by_title(outputs)
    for path, recipe in recipes.items():
        metrics = _needed(path, recipe)
        if metrics and recipe.title in made:
            values = renewed(values, gathered(path, metrics, made[recipe.title]))
    write_values(table, values)
    written = Page(
        sections=[_section(path, recipe, values) for path, recipe in recipes.items()],
        command=f"coprefl claims {folder}" + (f" --page {page}" if page != PAGE else ""),
        figures=_draw(values[values["recipe"] == PICTURED], page),
    )
    write_atomically(page, written.text().encode())
    words = [one.word for one in written.verdicts().values()]
    counts = ", ".join(f"{words.count(word)} {word}" for word in (HOLDS, FAILS, OPEN))
    say(f"{page}: {len(words)} measured rows: {counts}")
    return 0


def _recipes(folder: Path) -> Recipes:
    """Return the recipes of a folder that have claims."""
    if not folder.is_dir():
        raise SettingsError(f"there is no folder {folder}")
    read = {path: read_recipe(path) for path in sorted(folder.glob("*.yaml"))}
    found = {path: recipe for path, recipe in read.items() if recipe.claims}
    if not found:
        raise SettingsError(f"{folder} has no recipe with claims")
    titles = [recipe.title for recipe in found.values()]
    for path, recipe in found.items():
        if titles.count(recipe.title) > 1:
            raise SettingsError(f"{path}: another recipe of {folder} has the title too")
    return found


def _needed(path: Path, recipe: Recipe) -> list[str]:
    """Return the metrics that a recipe's claims, and the figures, are about."""
    claimed = [claim.asked.metric for claim in recipe.claims if claim.asked]
    drawn = budgets.METRICS if path.stem == PICTURED else ()
    return list(dict.fromkeys([*claimed, *filter(is_column, drawn)]))


def _section(path: Path, recipe: Recipe, values: pd.DataFrame) -> Section:
    of_recipe = values[values["recipe"] == path.stem]
    reasons = _protocols(path)
    measured = list(dict.fromkeys(of_recipe["protocol"]))
    protocols = list(dict.fromkeys([*reasons, *measured])) or [AS_SET]
    rows = [row for claim in recipe.claims for row in _rows(claim, of_recipe, protocols)]
    commands = [
        f"coprefl run {path}" + (f" --protocol {name}" if name != AS_SET else "")
        for name in protocols
    ]
    return Section(recipe.title, _note(path), reasons, commands, rows)


def _protocols(path: Path) -> dict[str, str]:
    """Return the protocols of a recipe's file, in its order, each with its reason."""
    given = part_of(read_yaml(path).mapping("a recipe"), "protocols")
    return {name: str(one.mapping(name)["because"].value) for name, one in given.items()}


def _note(path: Path) -> str:
    """Return what a recipe's file begins with as a comment."""
    lines = []
    for line in read_text(path).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def _rows(claim: Claim, values: pd.DataFrame, protocols: Sequence[str]) -> list[Row]:
    """Return a row for each protocol that has values of a claim, or one where none has."""
    if claim.asked is None:
        return [_row(claim, "", None, claim.needs)]
    asked = {name: _question(claim.asked, values[values["protocol"] == name]) for name in protocols}
    found = [_row(claim, name, question) for name, question in asked.items() if question.of]
    return found or [_row(claim, "", None, "to be run, as it was not yet")]


def _row(claim: Claim, protocol: str, question: Question | None, needs: str = "") -> Row:
    sides = (claim.asked.of, claim.asked.against) if claim.asked else ()
    settings = [where_of(side.where.items()) for side in sides]
    alike = len(set(settings)) == 1
    called = [
        side.row if alike else f"{side.row} ({setting})"
        for side, setting in zip(sides, settings, strict=True)
    ]
    return Row(
        claim=claim.claim,
        source=claim.source,
        printed=claim.printed,
        protocol=protocol,
        setting=settings[0] if alike else "",
        sides=called,
        question=question,
        cause=claim.causes.get(protocol, claim.causes.get("", "")),
        needs=needs,
    )


def _question(asked: Asked, values: pd.DataFrame) -> Question:
    """Return a claim with the values of the seeds in which both rows have the same tasks."""
    of, against = (_by_seed(side, asked.metric, values) for side in (asked.of, asked.against))
    both = [seed for seed, (_, tasks) in of.items() if tasks == against.get(seed, (0, 0))[1]]
    one, other = ([found[seed][0] for seed in both] for found in (of, against))
    return Question(asked.metric, asked.says, asked.margin, one, other)


def _by_seed(side: Side, metric: str, values: pd.DataFrame) -> dict[int, tuple[float, int]]:
    """Return a row's {seed: (value, tasks)}, in the order of the seeds."""
    where = where_of(side.where.items())
    here = values[(values["where"] == where) & (values["metric"] == metric)]
    names = list(dict.fromkeys(here["row"]))
    # Where each value is a row, a label alone is the first of them.
    first = next((name for name in names if name.startswith(f"{side.row}:")), "")
    row = side.row if side.row in names else first
    found = here[here["row"] == row].sort_values("seed")[["seed", "value", "tasks"]]
    return {seed: (value, tasks) for seed, value, tasks in found.itertuples(index=False)}


def _draw(values: pd.DataFrame, page: Path) -> dict[str, str]:
    """Draw what there are values for; return file -> what it shows."""
    found = {}
    for name, (metric, what) in budgets.FIGURES.items():
        points = budgets.points(values, metric)
        if len(points):
            file = page.with_name(f"{page.stem}_{name}.png")
            save(budgets.budget_figure(points, metric), file)
            found[file.name] = what
    return found
