"""The Python interface gives the same numbers as a study, for any dataset and any network."""

import copy
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import coprefl_flwr as cp
from coprefl_flwr import client_app, strategies
from coprefl_flwr.federation import Exchange, Mean
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.device import default_device
from coprefl_flwr.models import build_model, load_saved_model, model_arrays
from coprefl_flwr.options import option
from coprefl_flwr.report.frames import read_rows
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from tests.common.data import CLASSES, images, on_disk, sequences, table
from tests.common.networks import Perceptron, Recurrent, network

SMALL = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1}
TASKS = {"number": 2, "classes": 3, "clients": 2, "scheme": "iid"}


def small_tasks(dataset, **more):
    return cp.tasks(dataset, **{**TASKS, **more})


def same_weights(one, other):
    ours, theirs = model_arrays(one), model_arrays(other)
    return ours.keys() == theirs.keys() and all((ours[n] == theirs[n]).all() for n in ours)


# ---- the same numbers ---------------------------------------------------------------------------


def test_models_and_rows_equal_those_of_a_study_with_the_same_settings(tiny_settings, tiny_images):
    folder = run_study(
        LocalGrid(client_app.app, 1, tiny_settings.to_config()), build(tiny_settings)
    )
    study = build(tiny_settings)
    seen, unseen = (study.stages[0].clients.source.classes, study.stages[-1].tasks.source.classes)
    data = cp.load_dataset(str(tiny_images))
    clients = cp.partition(data, clients=6, scheme="iid", min_samples=4, only=seen)
    first = build_model("tests.common.networks:network", 5, (1, 6, 6), seed_key=(0, "model"))
    small = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.05, "quiet": True}
    method = cp.CoPreFL(gamma=0.25, participants=3)
    start = cp.pretrain(method, first, clients, rounds=3, **small)
    by_name = cp.pretrain("fedavg:participants=3", first, clients, rounds=3, **small)

    kept, _ = load_saved_model(folder / "starts" / "coprefl-gamma-0.25")
    assert all((array == kept[name]).all() for name, array in model_arrays(start).items())
    kept, _ = load_saved_model(folder / "starts" / "fedavg")
    assert all((array == kept[name]).all() for name, array in model_arrays(by_name).items())

    tasks = cp.tasks(data, number=2, classes=2, clients=3, scheme="iid", min_samples=4, only=unseen)
    starts = {"random": first, "fedavg": by_name, "coprefl:gamma=0.25": start}
    found = cp.evaluate_starts(starts, tasks, rounds=2, network=network, **small)
    rows = read_rows(folder / "rows.jsonl").sort_values(["start", "task", "client"])
    ours = found.rows.drop(columns="accuracy").sort_values(["start", "task", "client"])
    pd.testing.assert_frame_equal(
        ours.reset_index(drop=True), rows.reset_index(drop=True), check_like=True
    )


def test_schedule_object_and_its_text_give_the_same_model():
    clients = cp.partition(images(), clients=4, scheme="iid")
    parts = cp.Schedule([(cp.Cyclic(participants=3), 1), (cp.MOON(participants=3), 2)])
    one = cp.pretrain(parts, Perceptron(), clients, quiet=True, **SMALL)
    text = "cyclic:rounds=1,participants=3+moon:participants=3"
    other = cp.pretrain(text, Perceptron(), clients, rounds=2, quiet=True, **SMALL)
    assert same_weights(one, other)
    assert not same_weights(one, Perceptron())


@dataclass(kw_only=True, eq=False)
class Damped(cp.RoundStrategy):
    """A user's method that takes a part of FedAvg's step, by default half of the step."""

    share: float = option(0.5, "part of the step that is taken", minimum=0, maximum=1)

    def round(self, ctx, arrays):
        """Return w + share (mean of w_k - w)."""
        replies = yield Exchange("train", arrays, ctx.sample(), Mean("num-examples"))
        new = {n: a + self.share * (replies.arrays[n] - a) for n, a in arrays.items()}
        return new, replies.mean_metrics()


def test_users_method_takes_a_part_of_fedavgs_step_and_changes_no_argument():
    clients, first = cp.partition(images(), clients=4, scheme="iid"), Perceptron()
    method, before = Damped(share=0.5), copy.deepcopy(first)
    whole = cp.pretrain(cp.FedAvg(), first, clients, rounds=1, quiet=True, **SMALL)
    half = cp.pretrain(method, first, clients, rounds=1, quiet=True, **SMALL)
    for name, array in model_arrays(half).items():
        expected = (model_arrays(first)[name] + model_arrays(whole)[name]) / 2
        np.testing.assert_allclose(array, expected, atol=1e-6)
    assert same_weights(first, before)
    assert same_weights(half, cp.pretrain(method, first, clients, 1, quiet=True, **SMALL))
    assert method.population == "train"


# ---- any data -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "model", "rate"),
    [
        (lambda _: images(), Perceptron, 0.3),
        (lambda _: table(), lambda: Perceptron(10), 0.3),
        (lambda _: sequences(), Recurrent, 2),
        (lambda folder: on_disk(folder / "hugging"), Perceptron, 0.3),
    ],
    ids=["images", "table", "sequences", "hugging face"],
)
def test_ten_lines_learn_from_any_dataset(dataset, model, rate, tmp_path):
    data = dataset(tmp_path)
    clients = cp.partition(data, clients=6, alpha=0.5)
    method = cp.CoPreFL(gamma=0.5, participants=3, meta_learning_rate=0.1)
    small = {"local_steps": 5, "batch_size": 8, "learning_rate": rate, "quiet": True}
    start = cp.pretrain(method, model(), clients, rounds=25, **small)
    tasks = small_tasks(data)
    given = {"random": model(), "coprefl": start}
    result = cp.evaluate_starts(
        given, tasks, rounds=1, learning_rate=0.1, local_steps=3, quiet=True
    )
    found = result.summary()
    assert list(found.index) == ["random", "coprefl"]
    assert found.loc["coprefl", "accuracy"] > found.loc["random", "accuracy"]
    losses = result.rows.groupby("start")["loss"].mean()
    assert losses["coprefl"] < losses["random"] - 0.1
    assert len(result.rows) == 2 * 2 * 2
    assert "CoPreFL" in str(result)
    for name, draw in (("starts.png", result.plot), ("curves.png", result.curves)):
        draw(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_clients_can_be_subsets_loaders_or_one_dataset_each():
    data = images()
    own = [Subset(data, range(client, 240, 3)) for client in range(3)]
    clients = cp.partition(Subset(data, range(160)), clients=4, scheme="iid")
    assert sum(map(len, clients)) == 160
    for given in (own, [DataLoader(one) for one in own], list(cp.Clients.of_datasets(own))):
        found = cp.Clients.of_datasets(given)
        assert [len(one) for one in found] == [80, 80, 80]
        inputs, _ = found[1].batch(slice(0, 1), torch.device("cpu"))
        assert torch.equal(inputs[0], data[1][0])
    start = cp.pretrain(cp.FedAvg(), Perceptron(), own, rounds=1, quiet=True, **SMALL)
    assert not same_weights(start, Perceptron())


# ---- stopping, silence, an app ------------------------------------------------------------------


class _StoppedError(Exception):
    pass


def test_stopped_pretraining_continues_to_the_same_model(tmp_path, monkeypatch):
    clients = cp.partition(images(), clients=4, scheme="iid")
    arguments = (cp.SCAFFOLD(participants=2), Perceptron(), clients)
    whole = cp.pretrain(*arguments, rounds=8, quiet=True, **SMALL)
    rounds, train = [], strategies.SCAFFOLD.round

    def stopping(self, ctx, arrays):
        rounds.append(ctx.round)
        if len(rounds) == 7:
            raise _StoppedError
        return (yield from train(self, ctx, arrays))

    kept = {"checkpoint": tmp_path / "run", "quiet": True, **SMALL}
    monkeypatch.setattr(strategies.SCAFFOLD, "round", stopping)
    with pytest.raises(_StoppedError):
        cp.pretrain(*arguments, rounds=8, **kept)
    again = cp.pretrain(*arguments, rounds=8, **kept)
    assert same_weights(again, whole)
    assert rounds == [1, 2, 3, 4, 5, 6, 7, 6, 7, 8]  # A checkpoint is due every five rounds.
    cp.pretrain(*arguments, rounds=8, **kept)
    assert len(rounds) == 10
    cp.pretrain(*arguments, rounds=8, **{**kept, "learning_rate": 0.2})
    assert len(rounds) == 18
    assert (tmp_path / "run" / "earlier-1" / "model.safetensors").exists()


class Growing(cp.FedAvg):
    """FedAvg whose loss grows by a factor of 20 in each round."""

    def round(self, ctx, arrays):
        trained, metrics = yield from super().round(ctx, arrays)
        return trained, {**metrics, "loss": 20.0**ctx.round}


def test_quiet_silences_progress_but_not_warnings(caplog, capsys):
    clients = cp.partition(images(), clients=4, scheme="iid")
    caplog.set_level("INFO", "flwr.coprefl")
    default_device.cache_clear()  # The device is logged when it is first used.
    learning = {"local_steps": 20, "batch_size": 8, "learning_rate": 0.3}
    cp.pretrain(cp.FedAvg(), Perceptron(), clients, rounds=1, quiet=True, **learning)
    assert caplog.text == ""
    assert capsys.readouterr().err == ""
    cp.pretrain(cp.FedAvg(), Perceptron(), clients, rounds=1, **learning)
    assert "pre-training fedavg  round 1/1" in caplog.text
    cp.pretrain(Growing(), Perceptron(), clients, rounds=2, quiet=True, **learning)
    assert "diverged: loss 400.000 (first round: 20.000)" in caplog.text


# ---- starts and heads ---------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["fresh", "ncm", "ridge", "keep"])
def test_start_can_be_a_file_with_every_head(head, tmp_path):
    model = Perceptron()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    starts = {"module": model, "file": tmp_path / "model.pt"}
    tasks = small_tasks(images(), classes=CLASSES)
    rows = cp.evaluate_starts(starts, tasks, rounds=1, head=head, quiet=True, **SMALL).rows
    assert rows["accuracy"].between(0, 100).all()
    one, other = (rows[rows["start"] == name].drop(columns="start") for name in starts)
    assert one.reset_index(drop=True).equals(other.reset_index(drop=True))


def test_public_names_exist_and_are_imported_on_first_use():
    for name in dir(cp):
        getattr(cp, name)
    for name, one in vars(strategies).items():
        is_method = isinstance(one, type) and issubclass(one, strategies.RoundStrategy)
        if is_method and one.name and strategies.RoundStrategy in one.__mro__:
            assert "head" in one.roles or getattr(cp, name) is one, name
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        _ = cp.pretrian
    program = "import sys, coprefl_flwr; sys.exit(bool({'torch', 'flwr'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# ---- clients of users ----------------------------------------------------------------------------
