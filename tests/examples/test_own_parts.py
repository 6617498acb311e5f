"""Every kind of part that a user can write, named in a recipe, in this process.

Tests on workers are in tests/recipes/test_execute.py, and tests under `flwr run` are in
tests/federation/test_flower.py.
"""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

import coprefl_flwr as cp
from coprefl_flwr import plugins
from coprefl_flwr.cli import main
from tests.common.processes import new_process
from tests.common.simulation import ROOT

FEW = ["--set", "seeds=[0]", "--set", "tasks=1", "--set", "rounds=2", "--set", "clients=6"]


@pytest.fixture
def parts(tmp_path):
    """Copy the folder with a method, a model, data, a partition and a metric out of the package."""
    return Path(shutil.copytree(ROOT / "examples" / "own_parts", tmp_path / "parts"))


def run(parts, out, *more):
    return main(["run", str(parts / "recipe.yaml"), "--out", str(out), *FEW, *more])


def results(out):
    """Return {name: time of the last change} of all results."""
    found = [*(out.parent / "models").rglob("result.json")]
    return {str(path.relative_to(out.parent)): path.stat().st_mtime_ns for path in found}


@pytest.mark.slow
def test_recipe_with_five_user_parts_remakes_only_changed_results(parts, tmp_path):
    """A second run makes nothing; after a change, a run makes only what depends on it."""
    out = tmp_path / "here" / "out"
    assert run(parts, out) == 0
    first = results(out)
    with (out / "report" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    measured = {(row["label"], row["metric"]): float(row["mean"]) for row in rows}
    for label in ("random", "fedavg", "coprefl", "mine"):
        assert 0 <= measured[label, "metric:worst_class"] <= measured[label, "accuracy"]
    page = (out / "report" / "report.html").read_text()
    assert "Worst class %" in page
    moved = shutil.move(parts, tmp_path / "elsewhere")
    assert run(Path(moved), out) == 0
    assert results(out) == first
    method = Path(moved) / "method.py"
    method.write_text(
        method.read_text().replace("self.shrink * length", "2 * self.shrink * length")
    )
    new_process()
    assert run(Path(moved), out) == 0
    after = results(out)
    new = {name for name in after if name not in first}
    assert {name: after[name] for name in first} == first
    # For each of the two values of `step`: a pre-training and a task.
    assert len(new) == 4
    assert all(Path(name).parts[1].startswith("PartWay-") for name in new)


def test_users_stage_runs_in_a_recipe_and_from_python(parts, tmp_path):
    own = ["--set", f"measurements={parts / 'measurement.py'}:OnEveryClient"]
    assert run(parts, tmp_path / "out", *own, "--set", "methods=[random]") == 0
    results = (tmp_path / "models").rglob("on-every-client-*/result.json")
    (row,) = (json.loads(path.read_text())["rounds"][0] for path in results)
    assert 0 <= row["lowest"] <= row["mean"] <= row["highest"] <= 100
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    clients = cp.partition(cp.load_dataset("glyphs"), clients=3, scheme="iid", only=range(10))
    on_every_client = plugins.find("measurement", f"{parts / 'measurement.py'}:on_every_client")
    numbers = on_every_client(network, clients)
    assert 0 <= numbers["lowest"] <= numbers["mean"] <= numbers["highest"] <= 100
