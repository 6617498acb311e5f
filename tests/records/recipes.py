"""What the runs of every recipe in examples/ are, as hashes: `python -m tests.records.recipes`.

Recorded when the defaults of rates were changed: a recipe must not mean another experiment because
a default has another value now. It says every run's methods with all that they heed, and its tasks.
"""

import hashlib
import json
import sys
from pathlib import Path

import yaml

from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.sweep import contests
from coprefl_flwr.studies.identity import values_of
from tests.common.simulation import ROOT

FILE = Path(__file__).with_suffix(".json")
FOLDER = ROOT / "examples"
RECIPES = sorted(
    str(path.relative_to(FOLDER))
    for path in FOLDER.glob("*/*.yaml")
    # The rates of startbench's are what their search chose, and change with it.
    if path.stem not in ("claims", "primary") and path.parent.name != "startbench"
)


def of_recipe(name):
    """Return {PROTOCOL: hash of all runs} of a recipe."""
    path = FOLDER / name
    protocols = yaml.safe_load(path.read_text()).get("protocols") or [""]
    return {one: _hash(read_recipe(path, protocol=one)) for one in protocols}


def _hash(recipe):
    runs = [
        run
        for contest in contests(recipe)
        for candidate in contest.entrant.candidates()
        for seed in recipe.seeds[:1]
        for run in [Run.of(contest.combination, candidate.start, seed)]
    ]
    text = json.dumps([_described(run.study) for run in runs], sort_keys=True, default=str)
    text = text.replace(f"{FOLDER}/", "")  # Wherever the checkout lies.
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _described(study):
    if not hasattr(study, "starts"):
        return [[one.about() for one in study.phases.values()], values_of(study.personal)]
    phases = [phase.about() for start in study.starts.values() for phase in start.phases]
    if not study.tasks.tasks:
        return [phases, values_of(study.data)]
    of_tasks = [one.about() for one in (study.task_phase, study.head_phase) if one]
    training = values_of(study.task_phase.training)
    return [phases, values_of(study.data), values_of(study.tasks), of_tasks, training]


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for one in RECIPES:
        if one not in known:
            known[one] = of_recipe(one)
            print(one, file=sys.stderr)
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
