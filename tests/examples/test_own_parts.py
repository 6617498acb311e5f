"""Everything of a user's own by name: in this process, on Ray workers and under `flwr run`."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coprefl_flwr import client_app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.recipes.command_line import main
from coprefl_flwr.studies.build import run_study
from coprefl_flwr.studies.settings import Settings
from tests.simulation import ROOT, simulate
from tests.tiny_recipe import assert_same_results

FEW = ["--set", "seeds=0", "--set", "tasks=1", "--set", "rounds=2", "--set", "clients=6"]


@pytest.fixture
def parts(tmp_path):
    """A folder outside of the package with a method, a model, data, a partition and a metric."""
    return Path(shutil.copytree(ROOT / "examples" / "own_parts", tmp_path / "parts"))


def run(parts, out, *more):
    return main(["run", str(parts / "recipe.yaml"), "--out", str(out), *FEW, *more])


def results(out):
    """Return {name: bytes} of all results, and when each was written."""
    found = [*(out.parent / "models").rglob("result.json")]
    return {str(path.relative_to(out.parent)): path.stat().st_mtime_ns for path in found}


def test_one_recipe_names_all_five_beside_built_in_methods(parts, tmp_path):
    out = tmp_path / "here" / "out"
    assert run(parts, out) == 0
    with (out / "report" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    measured = {(row["label"], row["metric"]): float(row["mean"]) for row in rows}
    for label in ("random", "fedavg", "coprefl", "mine"):
        assert 0 <= measured[label, "metric:worst_class"] <= measured[label, "accuracy"]
    page = (out / "report" / "index.html").read_text()
    assert "Worst class %" in page


def test_nothing_changed_makes_nothing_and_a_changed_number_makes_new_results(parts, tmp_path):
    out = tmp_path / "here" / "out"
    assert run(parts, out) == 0
    first = results(out)
    assert run(parts, out) == 0
    assert results(out) == first
    moved = shutil.move(parts, tmp_path / "elsewhere")
    assert run(Path(moved), out) == 0
    assert results(out) == first
    method = Path(moved) / "method.py"
    method.write_text(
        method.read_text().replace("self.shrink * length", "2 * self.shrink * length")
    )
    assert run(Path(moved), out) == 0
    after = results(out)
    new = {name for name in after if name not in first}
    assert {name: after[name] for name in first} == first
    # Two values of `step`, each a pre-training and a task.
    assert len(new) == 4
    assert all(Path(name).parts[1].startswith("PartWay-") for name in new)


def test_an_option_out_of_its_limits_is_told_before_any_work(parts, tmp_path, capsys):
    recipe = parts / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("step: [0.5, 0.8]", "step: [0.5, 1.8]"))
    assert run(parts, tmp_path / "here" / "out") == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"coprefl: {recipe}, line ")
    assert line.endswith("step = 1.8: must be above 0 and at most 1")
    assert not (tmp_path / "here").exists()


@pytest.mark.ray
def test_two_workers_make_the_same_results(parts, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert run(parts, tmp_path / "one" / "out") == 0
    assert run(parts, tmp_path / "two" / "out", "--workers", "2") == 0
    assert_same_results(tmp_path / "two" / "models", tmp_path / "one" / "models")


@pytest.mark.ray
def test_method_and_model_run_under_flower_as_in_this_process(parts, tmp_path):
    config = {
        "method": f"{parts / 'method.py'}:PartWay:step=0.8",
        "model": f"{parts / 'model.py'}:perceptron:width=8",
        "dataset": f"{parts / 'data.py'}:stripes",
        "downstream-classes": "3",
        "clients": 6,
        "participants": 3,
        "min-samples": 4,
        "rounds": 2,
        "local-steps": 2,
        "learning-rate": 0.05,
        "tasks": 0,
        "run-name": "own",
    }
    done = simulate(ROOT, tmp_path, {**config, "output-dir": str(tmp_path / "flower")})
    assert done.returncode == 0, done.stdout
    chosen = Settings.from_config(config | {"output-dir": str(tmp_path / "local")})
    run_study(LocalGrid(client_app.app, 2, chosen.to_config()), chosen)
    (flower,) = (tmp_path / "flower").rglob("model.safetensors")
    (local,) = (tmp_path / "local").rglob("model.safetensors")
    assert flower.parent.name == "method.py-PartWay-step-0.8"
    found, expected = load_file(flower), load_file(local)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.allclose(found[name], array, rtol=1e-4, atol=1e-6), name
