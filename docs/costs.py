"""Writes what every recipe takes at the paper's size into the tables of examples/recipes/README.md.

`python -m docs.costs` (or `make costs`) counts, and measures for some minutes how long one core of
this machine takes; a test tells when the counted columns are no longer true.
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
"""The columns of a plan that are the last ones of the page's tables."""
ROW = re.compile(r"^\| \[(?P<recipe>[\w-]+)\]\(.*\|$", re.M)
MEASURED = re.compile(r"(?<=\nCore hours are those of )[^;]+(?=;)")


def plan(recipe: str) -> Plan | None:
    """Return what a recipe takes at the paper's size, where nothing has been run yet.

    None for one with networks from folders, which must be at hand.
    """
    with TemporaryDirectory() as empty:
        try:
            return plan_of(read_recipe(FOLDER / f"{recipe}.yaml"), Store(Path(empty)))
        except SettingsError as error:
            if "no saved model in" not in str(error):
                raise
            return None


def cells(found: Plan | None, known: Paces) -> list[str]:
    """Return the cells of a recipe's row; without paces the core hours are 0."""
    if not found:
        return [NONE] * len(COLUMNS)
    told = figures(found.together, {name: known.get(name, (0.0, 0.0)) for name in found.computing})
    return [told[title] for title in COLUMNS]


def page(text: str, cells_of: Callable[[str], list[str]]) -> str:
    """Return the page with the last cells of each recipe's row made anew."""

    def made(found: re.Match[str]) -> str:
        kept = found[0].split(" | ")[: -len(COLUMNS)]
        return f"{' | '.join([*kept, *cells_of(found['recipe'])])} |"

    return ROW.sub(made, text)


def main() -> None:
    """Measure, and write the page."""
    known: dict[str, tuple[float, float]] = {}

    def cells_of(recipe: str) -> list[str]:
        found = plan(recipe)
        for name, computing in found.computing.items() if found else ():
            known[name] = known.get(name) or pace(computing)
        told = cells(found, known)
        print(recipe, *told, sep=" | ", flush=True)
        return told

    text = page(PAGE.read_text(encoding="utf-8"), cells_of)
    where = f"{machine()}, measured on {date.today()}"
    PAGE.write_text(MEASURED.sub(lambda _: where, text), encoding="utf-8")


if __name__ == "__main__":
    main()
