"""Writes the costs of every recipe at the paper's size into examples/recipes/README.md.

`python -m docs.costs` (or `make costs`) counts the costs, and measures the speed of one core of
this machine for some minutes. A test fails if the counted columns are out of date.
"""

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.plan import Paces, Plan, figures, pace, plan_of
from coprefl_flwr.report.tables import NONE
from coprefl_flwr.studies.provenance import machine
from coprefl_flwr.studies.store import Store

FOLDER = Path(__file__).parent.parent / "examples" / "recipes"
PAGE = FOLDER / "README.md"
COLUMNS = ("Gradients", "Outputs", "Sent", "Core h")
"""The columns of a plan that are the last columns of the page's tables."""
ROW = re.compile(r"^\| \[(?P<recipe>[\w-]+)\]\(.*\|$", re.M)
MEASURED = re.compile(r"(?<=\nCore hours are those of )[^;]+(?=;)")


def plan(recipe: str) -> Plan | None:
    """Return the plan of a recipe at the paper's size, without stored results.

    None for a recipe with networks from folders, which this machine may lack.
    """
    with TemporaryDirectory() as empty:
        try:
            return plan_of(read_recipe(FOLDER / f"{recipe}.yaml"), Store(Path(empty)))
        except SettingsError as error:
            if "no saved model in" not in str(error):
                raise
            return None


def cells(plan: Plan | None, known: Paces) -> list[str]:
    """Return the cells of a recipe's row; without paces the core hours are 0."""
    if not plan:
        return [NONE] * len(COLUMNS)
    texts = figures(plan.together, {name: known.get(name, (0.0, 0.0)) for name in plan.computing})
    return [texts[title] for title in COLUMNS]


def page(text: str, cells_of: Callable[[str], list[str]]) -> str:
    """Return the page with new last cells in each recipe's row."""

    def renewed(row: re.Match[str]) -> str:
        unchanged = row[0].split(" | ")[: -len(COLUMNS)]
        return f"{' | '.join([*unchanged, *cells_of(row['recipe'])])} |"

    return ROW.sub(renewed, text)


def main() -> None:
    """Measure, and write the page."""
    known: dict[str, tuple[float, float]] = {}

    def cells_of(recipe: str) -> list[str]:
        of_recipe = plan(recipe)
        for name, computing in of_recipe.computing.items() if of_recipe else ():
            known[name] = known.get(name) or pace(computing)
        texts = cells(of_recipe, known)
        print(recipe, *texts, sep=" | ", flush=True)
        return texts

    text = page(PAGE.read_text(encoding="utf-8"), cells_of)
    where = f"{machine()}, measured on {date.today()}"
    PAGE.write_text(MEASURED.sub(lambda _: where, text), encoding="utf-8")


if __name__ == "__main__":
    main()
