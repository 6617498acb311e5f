"""Metrics for TensorBoard, MLflow and Weights & Biases, written during a run."""

import json
import pickle
import struct
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from coprefl_flwr.cli import main
from coprefl_flwr.recipes import execute
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.trackers import tracker_of
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.store import read_result
from tests.common.checks import Killed
from tests.common.recipes import Witness, tiny_recipe, write_recipe


@pytest.fixture
def refused(tiny_images, tmp_path, capsys):
    """Return a function that gives the error message for options; no file is written."""

    def run(*options):
        path = write_recipe(tmp_path / "recipe.yaml", tiny_recipe(tiny_images))
        assert main(["run", str(path), "--out", str(tmp_path / "out"), *options]) == 1
        assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml"}
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("extra", ["tensorboard", "mlflow", "wandb"])
def test_without_the_package_nothing_is_started(extra, refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, extra, None)
    assert refused(f"--{extra}", str(tmp_path / "there")) == (
        f"coprefl: --{extra} needs the package {extra}: pip install 'coprefl-flwr[{extra}]'\n"
    )


def test_a_wandb_without_a_key_is_refused(refused, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "no-wandb"))
    expected = "coprefl: --wandb: no API key: run `wandb login`, or set WANDB_MODE=offline\n"
    assert refused("--wandb", "tiny") == expected


def written(folder):
    """Return {metric: [(round, value)]} of the event files of a stage."""
    by_stage = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        events = EventAccumulator(str(file)).Reload()
        for name in events.Tags()["scalars"]:
            by_stage.setdefault(name, []).extend((e.step, e.value) for e in events.Scalars(name))
    return by_stage


def test_every_metric_of_every_round_is_written(tiny_images, tmp_path, monkeypatch):
    """If a run is killed, the metrics of its finished rounds are written."""
    content = tiny_recipe(tiny_images, methods=["fedavg"], reference=None)
    path = write_recipe(tmp_path / "recipe.yaml", content)
    arguments = ["run", str(path), "--out", str(tmp_path / "out")]
    arguments += ["--tensorboard", str(tmp_path / "tb")]
    monkeypatch.setattr(execute, "LocalGrid", Witness(("train", "fedavg", "task-1", 2)))
    with pytest.raises(Killed):
        main(arguments)
    (run,) = (tmp_path / "tb").iterdir()
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


def test_nothing_is_written_before_the_first_round(tmp_path):
    tracker = tracker_of({"tensorboard": str(tmp_path)}, tmp_path)
    with tracker(Run.of({}, "fedavg", 0).main) as hooks:
        assert len(hooks) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_round_is_on_the_disk_before_the_stage_ends(tmp_path):
    """A killed process loses no finished round, and trackers can be sent to other processes."""
    tracker = pickle.loads(pickle.dumps(tracker_of({"tensorboard": str(tmp_path)}, tmp_path)))
    stage = Run.of({}, "fedavg", 0).main
    with tracker(stage) as (hook,):
        hook(RoundReport(1, 2, {}, {"loss": 1.5}, None, 0.1))
        assert written(tmp_path / stage.key) == {"loss": [(1, 1.5)]}


@pytest.fixture
def killed_then_whole(tiny_images, tmp_path, monkeypatch):
    """Return a function that runs a recipe with a tracker: killed in the first task, then again."""

    def run(*options):
        content = tiny_recipe(
            tiny_images, {"tasks": 1, "rounds": 2}, methods=["fedavg"], reference=None
        )
        path = write_recipe(tmp_path / "recipe.yaml", content)
        arguments = ["run", str(path), "--out", str(tmp_path / "out"), *options]
        monkeypatch.setattr(execute, "LocalGrid", Witness(("train", "fedavg", "task-0", 2)))
        with pytest.raises(Killed):
            main(arguments)
        monkeypatch.setattr(execute, "LocalGrid", Witness())
        assert main(arguments) == 0
        (model,) = (tmp_path / "models").glob("fedavg-*")
        stages = [model, *model.glob("tasks/*")]
        return {
            str(stage.relative_to(model.parent)): [
                {k: v for k, v in row.items() if isinstance(v, float)}
                for row in read_result(stage)["rounds"]
            ]
            for stage in stages
        }

    return run


def test_mlflow_has_a_run_for_each_stage(killed_then_whole, tmp_path, monkeypatch):
    """MLflow writes into a folder; a stage that was killed continues in the same MLflow run."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    models = killed_then_whole("--mlflow", "there")
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "there").as_uri())
    experiment = client.get_experiment_by_name("coprefl").experiment_id
    runs = client.search_runs([experiment])
    assert sorted(run.info.run_name for run in runs) == sorted(models)
    for run in runs:
        rounds = models[run.info.run_name]
        assert run.info.status == "FINISHED"
        for name in rounds[0]:
            if name == "accuracy":  # During a run it is called evaluate-client-accuracy.
                continue
            history = client.get_metric_history(run.info.run_id, name)
            values = {metric.step: metric.value for metric in history}
            assert values == pytest.approx(
                {at: row[name] for at, row in enumerate(rounds, 1) if name in row}
            )


def test_mlflow_knows_a_stage_that_failed(tiny_images, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    stage = Run.of({}, "fedavg", 0).main
    report = RoundReport(1, 2, {}, {"loss": 1.0, "my:metric %": 2.0}, None, 0.1)

    def fail():
        tracker = tracker_of({"mlflow": str(tmp_path)}, tmp_path)
        with tracker(stage) as (hook,):
            hook(report)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    from mlflow import MlflowClient

    client = MlflowClient(tmp_path.as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("coprefl").experiment_id])
    assert run.info.status == "FAILED"
    assert run.data.metrics == {"loss": 1.0, "my_metric _": 2.0}


def test_wandb_offline_has_a_run_for_each_stage(killed_then_whole, tmp_path, monkeypatch):
    """A stage that was killed continues in a second file of the same run."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    models = killed_then_whole("--wandb", "tiny")
    by_stage = {}
    for file in sorted((tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb")):
        name, rounds = scanned(file)
        by_stage.setdefault(name, {}).update(rounds)
    assert by_stage.keys() == models.keys()
    for stage, rounds in models.items():
        losses = {at: row["loss"] for at, row in enumerate(rounds, 1)}
        assert {at: row["loss"] for at, row in by_stage[stage].items()} == pytest.approx(losses)


def scanned(file):
    """Return the name and {round: metrics} of a run of Weights & Biases, read from its file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, name, rounds = file.read_bytes(), 7, "", {}
    assert len(data) < 2**15  # The file is a log with one block.
    while at < len(data):
        _, size, _ = struct.unpack_from("<IHB", data, at)
        record = Record.FromString(data[at + 7 : at + 7 + size])
        at += 7 + size
        name = record.run.display_name or name
        items = {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.history.item
        }
        if items:
            rounds[items["_step"]] = items
    return name, rounds
