"""The modules of examples/claims, a made-up folder of examples, and made-up reports of its runs.

The modules import each other as modules in the folder of a script do.
"""

import importlib
import sys

import numpy as np
import pandas as pd
import yaml

from coprefl_flwr.recipes.load import read_recipe
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.simulation import ROOT

FOLDER = ROOT / "examples" / "claims"
sys.path.append(str(FOLDER))
NAMES = ("page", "tables", "verdicts")
page, tables, verdicts = map(importlib.import_module, NAMES)

SIDES = {"of": "fedavg", "against": "random", "metric": "accuracy", "printed": "78.96 75.3"}
MORE = SIDES | {
    "claim": "FedAvg is better than | random",
    "source": "CoPreFL, AAAI text, Table 1(a)",
    "cause": "It learns.",
}
OPEN = {"claim": "On ImageNet too", "source": "CyclicFL, Table II", "open": "ImageNet"}
MAIN = SIDES | {"claim": "FedAvg is more accurate", "short": "accuracy", "source": "Table 1",
                "recipe": "first", "says": "higher", "margin": 1.0}  # fmt: skip
LESS = MAIN | {"claim": "FedAvg has less variance", "metric": "variance", "says": "lower",
               "scale": "log", "margin": 1.25, "short": "variance"}  # fmt: skip
MADE = """## How it was made

| What | Value |
|:--|--:|
| versions | torch 2.0, flwr 1.41.0 |
| commit of the package | 0123abcd |
| machine | An engine \\| made up, 2 cores |
| date (UTC) | 2026-01-01 to 2026-01-02 |
"""


def write_examples(folder, images):
    """Write a recipe with exploratory claims and a recipe with primary claims; return their paths.

    The claims' files are in the same folder.
    """
    claims = folder / "examples" / "claims"
    (claims / "primary").mkdir(parents=True)
    given = {"methods": ["random", "fedavg"], "reference": "random"}
    explored = tiny_recipe(images, **given, seeds=[0, 1, 2, 3, 4])
    judged = tiny_recipe(images, **given, seeds=list(range(1000, 1012)), title="First")
    (claims / "claims.yaml").write_text(yaml.safe_dump({"tiny": [MORE, OPEN]}))
    (claims / "primary.yaml").write_text(yaml.safe_dump({"CoPreFL": [MAIN, LESS]}))
    return (
        write_recipe(claims / "tiny.yaml", explored),
        write_recipe(claims / "primary" / "first.yaml", judged),
    )


def made(tmp_path):
    """Make the pages; return the page of claims."""
    places = [f"--{name}={tmp_path / name}" for name in ("examples", "outputs", "docs")]
    assert page.main(places) == 0
    return (tmp_path / "docs" / "claims.md").read_text()


def made_up_run(out, path):
    """Write the report of a run of a recipe, with made-up results; return the file of its numbers.

    FedAvg is 4 points better. Seeds (and their tasks) differ by 3 points for all rows together, and
    each row differs by 1 more point between seeds; both numbers are standard deviations.
    """
    recipe, rng, found = read_recipe(path), np.random.default_rng(0), []
    (tasks,) = recipe.settings["tasks"]
    common = 60 + 3 * rng.standard_normal((len(recipe.seeds), tasks))
    for row, worth in (("random", 0.0), ("fedavg", 4.0)):
        accuracies = common + worth + rng.standard_normal((len(recipe.seeds), 1))
        found += [
            {"comparison": "table", "row": row, "label": row, "unit": f"seed {seed}, task {task}"}
            | {"accuracy": accuracies[at, task], "variance": 2400 - 30 * accuracies[at, task]}
            for at, seed in enumerate(recipe.seeds)
            for task in range(tasks)
        ]
    report = out / "report"
    report.mkdir(parents=True)
    (out / "recipe.yaml").write_text(recipe.to_yaml())
    pd.DataFrame(found).to_csv(report / "units.csv", index=False)
    (report / "provenance.md").write_text(MADE)
    return report / "units.csv"
