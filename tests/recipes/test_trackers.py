"""Metrics for TensorBoard, while a run is under way."""

import sys

import pytest

from coprefl_flwr.recipes import sweep
from coprefl_flwr.recipes.command_line import main
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.trackers import tensorboard
from coprefl_flwr.studies.stage import read_result
from tests.tiny_recipe import Killed, Witness, tiny_recipe, write_recipe


def test_without_tensorboard_nothing_is_started(tiny_images, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    path = write_recipe(tmp_path / "recipe.yaml", tiny_recipe(tiny_images))
    out = tmp_path / "out"
    assert main(["run", str(path), "--out", str(out), "--tensorboard", str(tmp_path / "tb")]) == 1
    assert capsys.readouterr().err == (
        "coprefl: --tensorboard needs the package: pip install 'coprefl-flwr[tensorboard]'\n"
    )
    assert {file.name for file in tmp_path.iterdir()} == {"recipe.yaml"}


def written(folder):
    """Return {metric: [(round, value)]} of the event files of a part."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        events = EventAccumulator(str(file)).Reload()
        for name in events.Tags()["scalars"]:
            found.setdefault(name, []).extend((e.step, e.value) for e in events.Scalars(name))
    return found


def test_every_metric_of_every_round_is_written(tiny_images, tmp_path, monkeypatch):
    """Killed on the way too: what was measured is there."""
    pytest.importorskip("tensorboard")
    content = tiny_recipe(tiny_images, methods=["fedavg"], reference=None)
    path = write_recipe(tmp_path / "recipe.yaml", content)
    arguments = ["run", str(path), "--out", str(tmp_path / "out")]
    arguments += ["--tensorboard", str(tmp_path / "tb")]
    monkeypatch.setattr(sweep, "LocalGrid", Witness(("train", "fedavg", "task-1", 2)))
    with pytest.raises(Killed):
        main(arguments)
    (run,) = (tmp_path / "tb").iterdir()
    (model,) = (tmp_path / "models").glob("fedavg-*")
    assert run.name == model.name
    (killed,) = run.glob("tasks/1-*")
    assert [number for number, _ in written(killed)["loss"]] == [1]
    monkeypatch.setattr(sweep, "LocalGrid", Witness())
    assert main(arguments) == 0
    # A folder for each stage, as in the store.
    stages = {file.parent.relative_to(model) for file in model.rglob("result.json")}
    assert len(stages) == 3
    assert {file.parent.relative_to(run) for file in run.rglob("events.*")} == stages
    rounds = read_result(model)["rounds"]
    found = written(run)
    assert [number for number, _ in found["loss"]] == [1, 2, 3]
    assert [value for _, value in found["loss"]] == pytest.approx([row["loss"] for row in rounds])
    metrics = {key for key, value in rounds[0].items() if isinstance(value, float | int)}
    assert set(found) == metrics - {"round"}
    assert [number for number, _ in written(killed)["evaluate-loss"]] == [1, 2]


def test_nothing_is_written_before_the_first_round(tmp_path):
    pytest.importorskip("tensorboard")
    assert len(tensorboard(tmp_path)(Run.of({}, "fedavg", 0).main)) == 1
    assert list(tmp_path.iterdir()) == []
