"""Metrics for TensorBoard, MLflow and Weights & Biases, written during a run."""

import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from coprefl_flwr.cli import main
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes import execute
from coprefl_flwr.recipes.trackers import tracker_of
from coprefl_flwr.studies.store import read_result
from tests.common.checks import Killed
from tests.common.recipes import Witness, tiny_recipe, write_recipe


def test_tracker_without_its_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    line = "--tracker mlflow needs: pip install 'coprefl-flwr.mlflow.'"
    with pytest.raises(SettingsError, match=line):
        tracker_of("mlflow", tmp_path)


def written(folder):
    """Return {metric: [(round, value)]} of the event files of a stage."""
    by_stage = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        events = EventAccumulator(str(file)).Reload()
        for name in events.Tags()["scalars"]:
            by_stage.setdefault(name, []).extend((e.step, e.value) for e in events.Scalars(name))
    return by_stage


def test_tensorboard_has_every_metric_of_every_round(tiny_images, tmp_path, monkeypatch):
    """If a run is killed, the metrics of its finished rounds are written."""
    content = tiny_recipe(tiny_images, methods=["fedavg"], reference=None)
    path = write_recipe(tmp_path / "recipe.yaml", content)
    arguments = ["run", str(path), "--out", str(tmp_path / "out")]
    arguments += ["--tracker", "tensorboard"]
    monkeypatch.setattr(execute, "LocalGrid", Witness(("train", "fedavg", "task-1", 2)))
    with pytest.raises(Killed):
        main(arguments)
    (run,) = (tmp_path / "out" / "tensorboard").iterdir()
    (model,) = (tmp_path / "models").glob("fedavg-*")
    assert run.name == model.name
    (killed,) = run.glob("tasks/1-*")
    assert [number for number, _ in written(killed)["loss"]] == [1]
    monkeypatch.setattr(execute, "LocalGrid", Witness())
    assert main(arguments) == 0
    # A folder for each stage, as in the store.
    stages = {file.parent.relative_to(model) for file in model.rglob("result.json")}
    assert len(stages) == 3
    assert {file.parent.relative_to(run) for file in run.rglob("events.*")} == stages
    rounds = read_result(model)["rounds"]
    by_stage = written(run)
    assert [number for number, _ in by_stage["loss"]] == [1, 2, 3]
    assert [value for _, value in by_stage["loss"]] == pytest.approx(
        [row["loss"] for row in rounds]
    )
    metrics = {key for key, value in rounds[0].items() if isinstance(value, float | int)}
    assert set(by_stage) == metrics - {"round"}
    assert [number for number, _ in written(killed)["evaluate-loss"]] == [1, 2]


@pytest.fixture
def killed_then_whole(tiny_images, tmp_path, monkeypatch):
    """Return a function that runs a recipe with a tracker: killed in the first task, then again.

    It returns {name of a stage: its rounds}.
    """

    def run(*options):
        settings = {"tasks": 1, "rounds": 2}
        content = tiny_recipe(tiny_images, settings, methods=["fedavg"], reference=None)
        path = write_recipe(tmp_path / "recipe.yaml", content)
        arguments = ["run", str(path), "--out", str(tmp_path / "out"), *options]
        monkeypatch.setattr(execute, "LocalGrid", Witness(("train", "fedavg", "task-0", 2)))
        with pytest.raises(Killed):
            main(arguments)
        monkeypatch.setattr(execute, "LocalGrid", Witness())
        assert main(arguments) == 0
        models = tmp_path / "models"
        stages = [file.parent for file in models.rglob("result.json")]
        return {str(stage.relative_to(models)): read_result(stage)["rounds"] for stage in stages}

    return run


def test_mlflow_has_a_run_for_each_stage(killed_then_whole, tmp_path, monkeypatch):
    """MLflow writes into a folder; a stage that was killed continues in the same MLflow run."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    models = killed_then_whole("--tracker", "mlflow")
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "out" / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("coprefl").experiment_id
    runs = client.search_runs([experiment])
    assert sorted(run.info.run_name for run in runs) == sorted(models)
    for run in runs:
        rounds = models[run.info.run_name]
        assert run.info.status == "FINISHED"
        # During a run, the accuracy of a task is called evaluate-client-accuracy.
        for name in {key for key, value in rounds[0].items() if isinstance(value, float)}:
            if name == "accuracy":
                continue
            history = client.get_metric_history(run.info.run_id, name)
            values = {metric.step: metric.value for metric in history}
            assert values == pytest.approx(
                {at: row[name] for at, row in enumerate(rounds, 1) if name in row}
            )


def test_wandb_has_a_run_for_each_stage(killed_then_whole, tmp_path, monkeypatch):
    """A stage that was killed continues in a second file of the same run."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    models = killed_then_whole("--tracker", "wandb")
    runs = [*(tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb")]
    assert len(runs) == len(models) + 1
    assert len({file.name for file in runs}) == len(models)
    contents = b"".join(file.read_bytes() for file in runs)
    for stage, rounds in models.items():
        assert stage.encode() in contents
        for row in rounds:
            assert str(row["loss"]).encode() in contents
