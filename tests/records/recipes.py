"""Hashes of the runs of every recipe in examples/: `python -m tests.records.recipes`.

They were recorded when the defaults of the learning rates were changed: a recipe must not mean
another experiment because a default has another value now. A hash contains the methods of every
run, with all settings that they use, and the run's tasks.
"""

import hashlib
import json
import sys
from pathlib import Path

import yaml

from coprefl_flwr.data import DataSettings
from coprefl_flwr.methods import PERSONALISED
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.studies.hashes import values_of
from coprefl_flwr.studies.personal_data import PersonalOptions
from coprefl_flwr.studies.settings import TaskDataSettings, TaskSettings
from coprefl_flwr.studies.tasks import Task
from coprefl_flwr.studies.training_options import as_stored
from tests.common.simulation import ROOT

FILE = Path(__file__).with_suffix(".json")
FOLDER = ROOT / "examples"
RECIPES = sorted(
    str(path.relative_to(FOLDER))
    for path in FOLDER.glob("*/*.yaml")
    # The rates in startbench's recipes were chosen by their search, and change with it.
    if path.stem not in ("claims", "primary", "compose") and path.parent.name != "startbench"
)


def of_recipe(name):
    """Return {PROTOCOL: hash of all runs} of a recipe."""
    path = FOLDER / name
    protocols = yaml.safe_load(path.read_text()).get("protocols") or [""]
    return {one: _hash(read_recipe(path, protocol=one)) for one in protocols}


def _hash(recipe):
    runs = [
        run
        for table_row in table_rows(recipe)
        for trial in table_row.trials()
        for seeds in recipe.pairs[:1]
        for run in [Run.of({**table_row.combination, **seeds}, trial.method, seeds["seed"])]
    ]
    text = json.dumps([_described(run) for run in runs], sort_keys=True, default=str)
    text = text.replace(f"{FOLDER}/", "")  # The hash must not depend on the checkout's folder.
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _described(run):
    stages, settings = run.study.stages, run.settings
    phases = [as_stored(phase.about()) for stage in stages[:1] for phase in stage.phases]
    if settings.study == PERSONALISED:
        return [phases, values_of(settings.part(PersonalOptions), later=False)]
    data = values_of(settings.part(DataSettings), "data-seed", later=False)
    tasks = [stage for stage in stages if isinstance(stage, Task)]
    if not tasks:
        return [phases, data]
    how = tasks[0].how
    of_tasks = [as_stored(one.about()) for one in (how.trained, how.head) if one]
    training = as_stored(values_of(how.trained.training, later=False))
    # Recipes here do not set measurements.
    chosen = values_of(settings.part(TaskSettings), "measurements", later=False)
    chosen |= values_of(settings.part(TaskDataSettings))
    chosen |= {"head-layer": "", "task-train-fraction": 0.8}  # Settings of earlier versions.
    return [phases, data, chosen, of_tasks, training]


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for one in RECIPES:
        if one not in known:
            known[one] = of_recipe(one)
            print(one, file=sys.stderr)
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
