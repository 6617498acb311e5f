"""Every pre-training method pre-trains, and every task method runs tasks, by the same call."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context
from safetensors.numpy import load_file

from coprefl_flwr.client_app import app, client_fn
from coprefl_flwr.clients import MOONClient, SCAFFOLDClient, TorchClient
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import PRETRAINING, TASK, with_role
from coprefl_flwr.report.frames import read_rows
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.phases import TrainingOptions
from coprefl_flwr.studies.running import run_study


def run(settings, nodes=1):
    return run_study(LocalGrid(app, nodes, settings.to_config()), build(settings))


@pytest.mark.parametrize("name", with_role(PRETRAINING))
def test_it_pre_trains(name, tiny_settings):
    settings = replace(tiny_settings, method=name, tasks=0, participants=4, server_reserve=0.2)
    folder = run(settings)
    model = load_file(folder / "starts" / name / "model.safetensors")
    study = build(settings)
    first = study.stages[0].initial(None)
    changed = {key: not np.array_equal(model[key], first[key]) for key in first}
    assert changed["1.weight"], changed
    assert changed["4.weight"], changed
    left = {path.name for path in (folder / "starts" / name).iterdir()}
    of_model = {"model.safetensors", "model.json"}
    assert left == of_model | {"result.json", "SHA256SUMS", "made-of.json"}


@pytest.mark.parametrize("name", with_role(TASK))
def test_it_runs_tasks(name, tiny_settings):
    settings = replace(tiny_settings, method="random", tasks=1, task_method=name, task_rounds=3)
    folder = run(settings)
    assert len(read_rows(folder / "rows.jsonl")) == settings.task_clients
    left = {str(path.relative_to(folder / "tasks")) for path in (folder / "tasks").rglob("*.json")}
    assert left == {"0/random/result.json", "0/random/made-of.json"}
    assert not list((folder / "tasks").rglob("client-state"))


def test_tasks_are_run_by_the_clients_of_their_method(tiny_settings):
    starts = "fedavg cyclic:rounds=1+scaffold"
    settings = replace(
        tiny_settings, method=starts, task_method="moon:mu=3", task_learning_rate=0.3
    )
    context = Context(1, 1, {}, None, settings.to_config())
    config = {"population": "task-1", "server-round": 2, "folder": "tiny/tasks/1/fedavg"}
    client = client_fn(context, 1, config | {"stage": "tasks/1/fedavg"})
    assert type(client) is MOONClient
    assert client.training == TrainingOptions(
        rounds=2, participants=3, local_steps=2, batch_size=8, learning_rate=0.3
    )
    pretraining = {"population": "pretrain", "server-round": 2}
    pretraining["stage"] = "starts/cyclic-rounds-1-scaffold"
    pretraining["folder"] = "tiny/starts/scaffold"
    assert type(client_fn(context, 1, pretraining)) is SCAFFOLDClient
    assert type(client_fn(context, 1, pretraining | {"server-round": 1})) is TorchClient


def test_a_tasks_method_and_its_setting_change_what_is_learnt(tiny_settings):
    losses = {}
    for name in ("fedavg", "fedprox:mu=0", "fedprox:mu=1", "scaffold", "feddyn", "qffl:q=2"):
        settings = replace(
            tiny_settings, method="random", tasks=1, task_method=name, task_rounds=3,
            task_partition="dirichlet", run_name=name.replace(":", "-").replace("=", "-"),
        )  # fmt: skip
        rows = read_rows(run(settings) / "rows.jsonl")
        losses[name] = tuple(rows["loss"])
    assert losses["fedprox:mu=0"] == losses["fedavg"]
    assert len(set(losses.values())) == len(losses) - 1


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "moon", "cyclic:rounds=2+scaffold"])
def test_stopped_and_resumed_it_ends_with_the_same_bytes(name, tiny_settings, tmp_path):
    """The run is killed in round 4, after a client stored its state; the checkpoint has round 2."""
    settings = replace(
        tiny_settings, method=name, rounds=5, tasks=0, participants=4, checkpoint_every=2
    )
    whole = run(replace(settings, output_dir=str(tmp_path / "whole")))

    class Dying(LocalGrid):
        def _handle(self, message):
            if message.content["config"].get("server-round") == 4:
                reply = super()._handle(message)
                assert reply.content.metric_records
                raise KeyboardInterrupt
            return super()._handle(message)

    with pytest.raises(KeyboardInterrupt):
        run_study(Dying(app, 1, settings.to_config()), build(settings))
    again = run(settings)
    (model,) = (Path(again) / "starts").glob("*/model.safetensors")
    assert model.read_bytes() == (whole / model.relative_to(again)).read_bytes()
