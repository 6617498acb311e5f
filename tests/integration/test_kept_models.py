"""The best round of a pre-training is its start: validation samples, files, rows and reports."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import coprefl_flwr as cp
from coprefl_flwr import seeds
from coprefl_flwr.cli import main
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data import ClientData
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.models import load_saved_model, model_arrays
from coprefl_flwr.models.weights import read_tensors
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.report import text_tables
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.measurements import StartLoss
from coprefl_flwr.studies.populations import PRETRAIN, Population
from coprefl_flwr.studies.store import Store
from tests.common.checks import Killed, files, refusal
from tests.common.data import images
from tests.common.networks import network
from tests.common.recipes import tiny_recipe, write_recipe

SHARE, SEED = 0.3, 4
KEEP = {"metric": "loss", "share": SHARE}
TRAINING = {"local_steps": 4, "batch_size": 8, "learning_rate": 1.0, "quiet": True}
"""With this rate, the losses go up and down."""


def clients(dataset=None):
    return cp.partition(dataset or images(), clients=5, scheme="iid", min_samples=4, seed=SEED)


def method():
    return cp.CoPreFL(gamma=0.5, participants=3, meta_learning_rate=0.2, seed=7)


def net():
    torch.manual_seed(0)
    return network(len(clients().classes))


def pretrained(folder=None, rounds=8, keep=KEEP, of=None, **more):
    options = {"checkpoint": folder, "history": True, **TRAINING, **more}
    return cp.pretrain(method(), net(), of or clients(), rounds, keep=keep, **options)


def parts_by_hand():
    """Return {client: (training rows, validation rows)}: a permutation by (seed, client)."""
    parts = {}
    for client, samples in enumerate(clients().samples):
        rng = seeds.generator(SEED, PRETRAIN, client, "validation")
        order, kept = rng.permutation(len(samples)), int(SHARE * len(samples))
        rows = samples.indices
        parts[client] = (sorted(rows[order[kept:]]), sorted(rows[order[:kept]]))
    return parts


def test_validation_samples_are_never_trained_on(monkeypatch):
    trained, evaluated, init = {}, {}, TorchClient.__init__

    def noting(self, model, train, *, test=None, **more):
        init(self, model, train, test=test, **more)
        one = frozenset(map(int, train.indices)), frozenset(map(int, test.indices))
        trained[one[0]], evaluated[one[1]] = one[1], one[0]

    monkeypatch.setattr(TorchClient, "__init__", noting)
    pretrained(rounds=2)
    by_hand = {frozenset(t): frozenset(v) for t, v in parts_by_hand().values()}
    assert trained == by_hand
    assert all(not (t & v) for t, v in trained.items())
    # Every client evaluates; the losses are those of the validation samples alone.
    assert set(evaluated) == set(by_hand.values())


def test_start_is_the_model_of_the_best_round_and_the_last_stays(tmp_path):
    """A run without a choice, on the training parts alone, has the same model after each round."""
    models, parts = [], parts_by_hand()
    whole = clients()
    alone = clients()
    population = alone.population
    alone.population = Population(
        population.classes,
        tuple(
            ClientData(own.take(np.flatnonzero(np.isin(own.indices, parts[client][0]))))
            for client, own in enumerate(whole.samples)
        ),
    )
    pretrained(keep=None, of=alone, hooks=[lambda report: models.append(report.arrays)])
    losses = []
    data = whole.samples[0].dataset
    held = np.concatenate([parts[client][1] for client in parts])
    validation = cp.data.Samples(data, held, data.labels[held])
    for arrays in models:
        losses.append(ServerData(net(), validation).evaluate(arrays)["loss"])
    best = int(np.argmin(losses)) + 1
    assert best not in (1, 8), "the losses go down and up"
    start, history = pretrained(tmp_path)
    np.testing.assert_allclose(history["evaluate-loss"], losses, rtol=1e-5)
    assert history["kept-round"].unique().tolist() == [best]
    assert history["kept-by"].unique().tolist() == ["loss"]
    stored, about = load_saved_model(tmp_path)
    last = read_tensors(tmp_path / "last.safetensors")
    for name, array in model_arrays(start).items():
        assert array.tobytes() == models[best - 1][name].tobytes() == stored[name].tobytes()
        assert last[name].numpy().tobytes() == models[-1][name].tobytes()
    assert (about["kept-round"], about["kept-by"]) == (best, "loss")
    assert about["kept-value"] == pytest.approx(min(losses), rel=1e-5)
    assert json.loads((tmp_path / "result.json").read_text())["rows"] == []


@pytest.mark.parametrize("killed", range(1, 8))
def test_interrupted_pretraining_has_the_same_files(tmp_path, killed):
    def kill(report):
        if report.round == killed:
            raise Killed

    keep = KEEP | {"patience": 4}
    pretrained(tmp_path / "whole" / "a", keep=keep)
    with pytest.raises(Killed):
        pretrained(tmp_path / "part" / "a", keep=keep, hooks=[kill])
    pretrained(tmp_path / "part" / "a", keep=keep)
    assert files(tmp_path / "part") == files(tmp_path / "whole")
    pretrained(tmp_path / "part" / "a", keep=keep)
    assert files(tmp_path / "part") == files(tmp_path / "whole")


def test_finished_pretraining_with_more_rounds_has_the_same_files(tmp_path):
    pretrained(tmp_path / "whole" / "a")
    for rounds in (3, 8):
        pretrained(tmp_path / "part" / "a", rounds=rounds)
    assert files(tmp_path / "part") == files(tmp_path / "whole")


def test_last_model_can_be_the_start_of_a_run_that_ends_early(tmp_path):
    keep = KEEP | {"patience": 2, "model": "last"}
    start, history = pretrained(tmp_path, keep=keep)
    last = len(history)
    assert last < 8
    assert "kept-round" not in history
    assert not (tmp_path / "last.safetensors").exists()
    other, _ = pretrained(rounds=last, keep=KEEP | {"model": "last"})
    for name, array in model_arrays(start).items():
        assert array.tobytes() == model_arrays(other)[name].tobytes()


def test_schedule_in_a_study_keeps_the_best_of_all_its_rounds():
    text = "cyclic:rounds=3,participants=2+fedavg:participants=3"
    _, history = cp.pretrain(
        text, net(), clients(), 4, keep="accuracy", history=True, **TRAINING, seed=1
    )
    values = history["evaluate-accuracy"]
    assert len(values) == 7
    assert history["kept-round"][0] == int(values.argmax()) + 1


def test_kept_row_says_so_in_its_label(tiny_images, tmp_path):
    settings = {"keep": {"metric": "accuracy", "share": 0.25}, "learning-rate": 0.5}
    content = tiny_recipe(
        tiny_images,
        settings,
        methods=["random", "fedavg"],
        reference="fedavg",
        figures=["accuracies"],
    )
    path, out = write_recipe(tmp_path / "tiny.yaml", content), tmp_path / "out"
    assert main(["run", str(path), "--out", str(out)]) == 0
    store = Store(out.parent / "models")
    report = collect(read_recipe(out / "recipe.yaml"), store, {})
    comparison, page = report.comparisons[0], (out / "report" / "report.html").read_text()
    assert [row.name for row in comparison.rows] == ["random", "fedavg"]
    text = text_tables(comparison)
    assert "FedAvg (best round by accuracy)" in text
    assert "FedAvg (best round by accuracy)" in page
    assert "random (best" not in text
    (folder,) = store.root.glob("fedavg-*")
    about = json.loads((folder / "model.json").read_text())
    assert comparison.rows[1].values["kept-round"].iloc[0] == about["kept-round"]
    assert np.isnan(comparison.rows[0].values["kept-round"].iloc[0])


def test_start_losses_of_a_study_are_of_the_same_samples(tiny_settings, monkeypatch):
    """Also if only one of two starts has validation samples, which it does not train on."""
    stages = build(replace(tiny_settings, method="random fedavg", keep="loss:share=0.3")).stages
    monkeypatch.setattr(StartLoss, "model", lambda self, _: stages[0].initial())
    assert len(stages[1].samples_of("clients")) < len(stages[0].samples_of("clients"))
    one, other = (StartLoss(stage).measure(None) for stage in stages[:2])
    assert one == other


REFUSED = {
    "acuracy": "keep: unknown metric 'acuracy': did you mean 'accuracy'?",
    "server-accuracy": "keep: unknown metric 'server-accuracy': did you mean 'accuracy'?",
    "loss:share=0.01": "keep: share = 0.01: none of the 48 samples",
    "loss:share=0.6": "keep: share = 0.6: must be above 0 and at most 0.5",
    "loss:model=first": "keep: model: unknown value 'first': known are best, last",
}


@pytest.mark.parametrize(("keep", "line"), REFUSED.items(), ids=list(REFUSED))
def test_wrong_choice_is_refused_before_any_work(keep, line):
    found = refusal(pretrained, keep=keep, hooks=[lambda _: pytest.fail("a round was run")])
    assert found == line


def test_method_without_clients_can_only_use_the_start_loss():
    def run(keep):
        return cp.pretrain("centralised", net(), clients(), 2, keep=keep, **TRAINING)

    assert refusal(run, "loss") == "keep: unknown metric 'loss': known are start-loss"
    run("start-loss")
