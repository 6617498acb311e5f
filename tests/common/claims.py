"""The modules of examples/claims, a made-up folder of examples, and made-up reports of its runs.

The modules import each other as modules in the folder of a script do.
"""

import importlib
import sys

import numpy as np
import pandas as pd
import yaml

from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.report.columns import TO_REACH
from coprefl_flwr.report.tables import NONE
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.simulation import ROOT

FOLDER = ROOT / "examples" / "claims"
sys.path.append(str(FOLDER))
NAMES = ("figures", "page", "starts", "tables", "verdicts")
figures, page, starts, tables, verdicts = map(importlib.import_module, NAMES)

SEEDS = [0, 1, 2, 3, 4]
SIDES = {"of": "fedavg", "against": "random", "metric": "accuracy"}
MORE = SIDES | {
    "claim": "FedAvg is better than | random",
    "source": "CoPreFL, AAAI text, Table 1(a)",
    "printed": "78.96 75.3",
    "cause": "It learns.",
}
OPEN = {"claim": "On ImageNet too", "source": "CyclicFL, Table II", "open": "ImageNet"}
MAIN = SIDES | {"claim": "FedAvg is more accurate", "short": "accuracy", "source": "Table 1",
                "recipe": "first", "says": "higher", "margin": 1.0,
                "printed": "78.96 75.3"}  # fmt: skip
LESS = MAIN | {"claim": "FedAvg has less variance", "metric": "variance", "says": "lower",
               "scale": "log", "margin": 1.25, "short": "variance"}  # fmt: skip
ROWS = ["random", "fedavg", "coprefl", {"centralised": {"local-steps": 9, "local-epochs": ""}}]
PROTOCOLS = {
    "fresh": {"because": "tasks are trained"},
    "ncm": {"because": "no training", "settings": {"head": "ncm", "task-rounds": 0}},
    "tune": {"because": "the search", "seeds": [900], "search-by": "halving", "select": "test",
             "methods": {"fedavg": {"learning-rate": [0.1, 0.2]}}},
}  # fmt: skip

MADE = """## How it was made

| What | Value |
|:--|--:|
| versions | torch 2.0, flwr 1.41.0 |
| commit of the package | 0123abcd |
| machine | An engine \\| made up, 2 cores |
| date (UTC) | 2026-01-01 to 2026-01-02 |

## Settings

| What | Value |
|:--|--:|
| machine | none |
"""
SEARCH = f"""## Search

| Method | Values | After a quarter % | Accuracy % | Chosen |
|:--|:--|--:|--:|--:|
| fedavg | learning-rate=0.1 | 50.00 | 61.25 | **chosen** |
| fedavg † | learning-rate=0.2 | 40.00 | {NONE} | dropped |
| longer step | learning-rate=0.1,global-learning-rate=3.0 | 51.00 | 62.00 | **chosen** |

Mean accuracy.
"""


def write_examples(folder, images):
    """Write a recipe with claims, one with primary claims, and one of startbench.

    Return the path of the first recipe.
    """
    claims, bench = folder / "examples" / "claims", folder / "examples" / "startbench"
    (claims / "primary").mkdir(parents=True)
    bench.mkdir()
    given = {"methods": ["random", "fedavg"], "reference": "random", "seeds": SEEDS}
    path = write_recipe(claims / "tiny.yaml", tiny_recipe(images, **given))
    path.write_text("# Images of 4 x 4:\n# nobody's.\n\n# Not this.\n" + path.read_text())
    given |= {"title": "First", "seeds": list(range(1000, 1012))}
    write_recipe(claims / "primary" / "first.yaml", tiny_recipe(images, **given))
    given |= {"title": "Which start: made up", "methods": ROWS, "reference": "fedavg"}
    metrics = ["accuracy", "worst-10%", "rounds-to-60%", "megabytes-to-60%", "megabytes"]
    longer = {"task-rounds": 20}
    content = tiny_recipe(images, longer, **given, metrics=metrics, protocols=PROTOCOLS)
    write_recipe(bench / "made-up.yaml", content)
    write_claims(path, [MORE, OPEN])
    return path


def write_claims(recipe, claims, primary=(MAIN, LESS)):
    """Write the exploratory claims of a recipe, and the primary claims."""
    recipe.with_name("claims.yaml").write_text(yaml.safe_dump({recipe.stem: claims}))
    recipe.with_name("primary.yaml").write_text(yaml.safe_dump({"CoPreFL": list(primary)}))


def make(tmp_path, *options):
    """Make the pages; return the exit status."""
    places = [f"--{name}={tmp_path / name}" for name in ("examples", "outputs", "docs")]
    return page.main([*places, *options])


def made(tmp_path):
    """Make the pages; return the page of claims, and the stored tables by name."""
    assert make(tmp_path) == 0
    return (tmp_path / "docs" / "claims.md").read_text(), tables.read(tmp_path / "docs" / "tables")


def made_up_run(out, path, protocol="", worth=None, seed=0, changes=()):
    """Write the report of a run of a recipe, with made-up results.

    `worth` states by how many points a row is better. Seeds (and their tasks) differ by 3 points
    for all rows together, and each row differs by 1 more point between seeds; both numbers are
    standard deviations.
    """
    recipe = read_recipe(path, changes, protocol=protocol)
    rng, found, worth = np.random.default_rng(seed), [], worth or {}
    tasks = recipe.combinations()[0].get("tasks", 0) if recipe.study == "starts" else 0
    for table in page.tables_of(recipe):
        common = 60 + 3 * rng.standard_normal((len(recipe.seeds), max(tasks, 1)))
        for row in page.rows_of(recipe):
            own = worth.get(row, 0.0) + rng.standard_normal((len(recipe.seeds), 1))
            found += [
                {"comparison": table, "row": row, "label": row}
                | {"unit": f"seed {number}" + f", task {task}" * bool(tasks)}
                | units_of(recipe.metrics, common[at, task] + own[at, 0], row, first=task == 0)
                for at, number in enumerate(recipe.seeds)
                for task in range(max(tasks, 1))
            ]
    (out / "report" / "tables").mkdir(parents=True)
    (out / "recipe.yaml").write_text(recipe.to_yaml())
    pd.DataFrame(found).to_csv(out / "report" / "units.csv", index=False)
    (out / "report" / "provenance.md").write_text(MADE)
    if protocol == "tune":
        (out / "report" / "tables" / "table-search.md").write_text(SEARCH)
    return recipe


def units_of(metrics, accuracy, row, first):
    """Return the metrics of a task; only the first task has the metrics of the start."""
    found = {}
    for metric in metrics:
        if reached := TO_REACH.fullmatch(metric):
            rounds = np.inf if accuracy < 57 else max(1.0, round(70 - accuracy))
            found[metric] = rounds * (1 if reached[1] == "rounds" else 2.5)
        elif metric in ("megabytes", "gradients", "step-size", "rounds", "models"):
            sent = {"random": np.nan, "centralised": np.nan}.get(row, 100.0)
            found[metric] = (
                sent * (1 + ("coprefl" in row or row == "scaffold")) if first else np.nan
            )
        else:
            scale = {"variance": -30, "std-clients": -0.2, "worst-10%": 1.5}.get(metric, 1.0)
            found[metric] = max(accuracy * scale + {-30: 2400, -0.2: 25}.get(scale, 0), 1.0)
    return found
