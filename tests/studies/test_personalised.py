"""A personalised study of a few seconds: every method, stopped and resumed, and what it writes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coprefl_flwr.studies.personal_methods import (
    PERSONAL_METHODS,
    initial_arrays,
    is_personalised,
    personal_phase,
    training,
)
from safetensors.numpy import load_file

from coprefl_flwr.client_app import app
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning import AdamTraining
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.report import tables
from coprefl_flwr.studies.personalised import main, prepare, run_personalised
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.study import run_study

CLASSES = 4


def write_domain(path, seed):
    """Write 60 noisy 6x6 images a class, each class with a pattern of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(CLASSES), 60))
    patterns = np.random.default_rng(1).integers(0, 150, (CLASSES, 6, 6))
    images = patterns[labels] + rng.integers(0, 60 + 20 * seed, (len(labels), 6, 6))
    np.savez(path, images=images.clip(0, 255).astype(np.uint8), labels=labels)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    for number, name in enumerate(("plain", "noisy", "noisier")):
        write_domain(folder / f"{name}.npz", number)
    return " ".join(str(folder / f"{name}.npz") for name in ("plain", "noisy", "noisier"))


@pytest.fixture
def settings(datasets, tmp_path):
    return Settings(
        run_name="tiny",
        output_dir=str(tmp_path / "outputs"),
        personal_datasets=datasets,
        method="fedpcl",
        rounds=4,
        train_per_class=6,
        test_per_class=20,
        batch_size=8,
        checkpoint_every=2,
    )


def run(settings, nodes=2):
    return run_personalised(LocalGrid(app, nodes, settings.to_config()), settings)


def files(folder):
    """Return {path: bytes} of all that a run leaves."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name != "settings.yaml"
    }


def test_all_methods_learn_something_of_their_own(settings):
    settings = replace(settings, method=" ".join(PERSONAL_METHODS))
    folder = run(settings)
    rows = tables.read_rows(folder / "rows.jsonl")
    assert [(row["start"], row["client"]) for row in rows] == [
        (name, client) for name in PERSONAL_METHODS for client in range(3)
    ]
    assert {row["n"] for row in rows} == {20 * CLASSES}
    losses = {
        name: [row["loss"] for row in rows if row["start"] == name] for name in PERSONAL_METHODS
    }
    assert len(set(map(tuple, losses.values()))) == len(PERSONAL_METHODS)
    hits = {
        name: sum(r["correct"] for r in rows if r["start"] == name) for name in PERSONAL_METHODS
    }
    chance = 3 * 20
    assert all(count > 1.3 * chance for name, count in hits.items() if name != "pfedme"), hits
    assert sorted(path.name for path in (folder / "methods").iterdir()) == sorted(PERSONAL_METHODS)
    assert not (folder / "features").exists()
    summary = (folder / "summary.md").read_text()
    assert all(f"| {name} | " in summary for name in PERSONAL_METHODS)
    assert "| Method | plain | noisy | noisier |" in summary


def test_what_a_client_sends_is_counted_as_the_paper_does(settings):
    """Table 2 with 36 pixels for 512 features: 36 x 256 + 256 x 4, without the head, 4 x 256."""
    expected = {
        "fedavg": 36 * 256 + 256 * CLASSES,
        "fedrep": 36 * 256,
        "fedpcl": 256 * CLASSES,
        "fedproto": 256 * CLASSES,
        "solo": 0,
    }
    folder = run(replace(settings, method=" ".join(expected), rounds=1))
    for name, weights in expected.items():
        result = json.loads((folder / "methods" / name / "result.json").read_text())
        assert result["weights-sent"] == weights
    fedavg = json.loads((folder / "methods" / "fedavg" / "result.json").read_text())
    # Biases, BatchNorm's weights and statistics, and its counter besides.
    assert fedavg["numbers-sent"] == expected["fedavg"] + 256 + 4 * 256 + 1 + CLASSES


class Dying(LocalGrid):
    """A grid whose process is killed in round 3, when a client has kept its state already."""

    def _handle(self, message):
        reply = super()._handle(message)
        if message.content["config"].get("server-round") == 3:
            raise KeyboardInterrupt
        return reply


@pytest.mark.parametrize("name", PERSONAL_METHODS)
def test_stopped_and_resumed_it_ends_with_the_same_bytes(name, settings, tmp_path):
    settings = replace(settings, method=name)
    whole = files(run(replace(settings, output_dir=str(tmp_path / "whole"))))
    with pytest.raises(KeyboardInterrupt):
        run_personalised(Dying(app, 2, settings.to_config()), settings)
    again = files(run(replace(settings, resume=True)))
    assert again == whole


def test_a_result_is_written_before_the_last_checkpoint(settings, tmp_path):
    """Killed between the two, it is not run again, though no evaluation could be resumed."""
    whole = files(run(replace(settings, output_dir=str(tmp_path / "whole"))))
    folder = run(settings)
    result = folder / "methods" / "fedpcl" / "result.json"
    for other in ("rows.jsonl", "rounds.jsonl", "summary.md"):
        (folder / other).unlink()
    stamp = result.stat().st_mtime_ns
    (result.parent / "checkpoint.safetensors").write_bytes(b"the last but one")
    assert files(run(replace(settings, resume=True))) == whole
    assert result.stat().st_mtime_ns == stamp


def test_hosting_does_not_matter(settings, tmp_path):
    found = []
    for nodes in (1, 3):
        folder = run(replace(settings, output_dir=str(tmp_path / str(nodes))), nodes)
        found.append(load_file(folder / "methods" / "fedpcl" / "global.safetensors")["prototypes"])
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_features_of_this_packages_models(settings, tmp_path):
    """Two frozen networks of different sizes; their features are computed once."""
    sizes = {}
    for name, channels in (("resnet8", 3), ("femnist-cnn", 1)):
        shape = (channels, 8, 8)
        model = build_model(name, 5, shape)
        about = {"model": name, "num-classes": 5, "input-shape": shape, "norm": "batch",
                 "pixel-mean": [0.5] * channels, "pixel-std": [0.3] * channels}  # fmt: skip
        save_model(tmp_path / name, model_arrays(model), about)
        sizes[name] = {"resnet8": 64, "femnist-cnn": 128}[name]
    both = f"{tmp_path / 'resnet8'} {tmp_path / 'femnist-cnn'}"
    settings = replace(settings, backbones=both, method="fedpcl fedavg", rounds=2)
    start = initial_arrays(personal_phase(settings, "fedavg"))
    assert start["projection.weight"].shape == (256, sum(sizes.values()))
    accuracies = tables.accuracies(tables.read_rows(run(settings) / "rows.jsonl"))
    assert list(accuracies) == ["fedpcl", "fedavg"]


def test_a_pre_trained_start_becomes_a_backbone(settings, tiny_settings):
    """From the folder that a study wrote to features of the 8 numbers before its last layer."""
    study = replace(tiny_settings, method="fedavg", tasks=0, run_name="first")
    folder = run_study(LocalGrid(app, 1, study.to_config()), study) / "starts" / "fedavg"
    settings = replace(settings, backbones=str(folder))
    fedavg = initial_arrays(personal_phase(settings, "fedavg"))
    assert fedavg["projection.weight"].shape == (256, 8)
    assert len(tables.read_rows(run(settings) / "rows.jsonl")) == 3


def test_training_from_scratch(settings):
    """`scratch` trains the network itself on images; FedPCL has nothing to put its head on."""
    scratch = replace(settings, backbones="scratch", model="femnist-cnn", rounds=2)
    others = [name for name in PERSONAL_METHODS if name != "fedpcl"]
    rows = tables.read_rows(run(replace(scratch, method=" ".join(others))) / "rows.jsonl")
    assert len(rows) == 3 * len(others)
    with pytest.raises(SettingsError, match="fedpcl trains a head on features, no network"):
        prepare(replace(scratch, run_name="other"))


@pytest.mark.parametrize("noise_on", ["prototypes", "images"])
def test_noise_enters_the_numbers(settings, tmp_path, noise_on):
    plain = files(run(replace(settings, output_dir=str(tmp_path / "plain"))))
    noisy = files(run(replace(settings, noise_on=noise_on, noise_scale=0.3)))
    assert plain["methods/fedpcl/global.safetensors"] != noisy["methods/fedpcl/global.safetensors"]


def test_the_papers_training_is_the_default():
    assert training(Settings()) == AdamTraining(
        local_epochs=1, batch_size=32, learning_rate=1e-3, weight_decay=1e-4
    )
    own = Settings(weight_decay=0.0, local_steps=3, batch_size=4, learning_rate=0.1, clip_norm=2)
    assert training(own) == AdamTraining(
        local_steps=3, batch_size=4, learning_rate=0.1, weight_decay=0.0, clip_norm=2
    )


def test_which_settings_make_a_personalised_study():
    assert not is_personalised(Settings())
    assert not is_personalised(Settings(method="fedavg per-fedavg"))
    assert is_personalised(Settings(method="random fedpcl:temperature=1"))
    assert is_personalised(Settings(method="fedavg", personal_datasets="glyphs"))
    assert is_personalised(Settings(method="fedavg", backbones="resnet18"))
    assert is_personalised(Settings(method="fedavg", shift="label"))
    assert is_personalised(Settings(method="fedavg", train_per_class=5))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"method": "fedpcl coprefl"},
            "method: unknown method 'coprefl': known are fedpcl, fedavg",
        ),
        ({"method": "fedpcl fedpcl"}, "method names 'fedpcl' twice"),
        ({"method": "fedpcl:mu=1"}, "method, fedpcl:mu=1: fedpcl has no 'mu' here"),
        ({"q": 2.0}, "q = 2.0: no method here has this setting; fedpcl has variant, temperature"),
        ({"clients": 40}, "clients = 40: how many a personalised study has is personal-clients"),
        ({"participants": 3}, "participants = 3: all clients of a personalised study take part"),
        ({"momentum": 0.9}, "momentum = 0.9: a personalised study trains by Adam"),
        ({"samples_per_class": 5}, "samples-per-class = 5: a personalised study does not heed it"),
        ({"partition": "iid"}, "partition = iid: a personalised study does not heed it"),
        ({"shift": "label"}, "shift = label: takes one dataset, personal-datasets has 3"),
        (
            {"train_per_class": 61},
            "plain has 60 samples of class 0, its clients are to train on 61",
        ),
        ({"train_per_class": 60}, "train-per-class = 60: plain leaves client 0 no sample to test"),
        ({"backbones": "pixels scratch"}, "backbones = pixels scratch: pixels stands alone"),
        ({"backbones": "resnet19"}, "backbone 'resnet19': did you mean 'resnet18'"),
        ({"personal_datasets": "glyphs MNIZT"}, "dataset 'MNIZT' is not known"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_leaves_nothing(settings, changes, line):
    with pytest.raises(SettingsError) as caught:
        run(replace(settings, **changes))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert not Path(settings.output_dir).exists()


def test_a_client_that_was_not_evaluated_ends_the_study(settings):
    class Losing(LocalGrid):
        def _handle(self, message):
            if message.metadata.message_type == "evaluate":
                message.content["config"]["clients"] = [0, 1]
            return super()._handle(message)

    with pytest.raises(RunFailedError, match="no evaluation from clients"):
        run_personalised(Losing(app, 1, settings.to_config()), settings)


def test_tables_over_runs(settings, capsys):
    """The mean and the sample standard deviation of the runs' means over clients."""
    folders = [run(replace(settings, run_name=f"r{seed}", seed=seed)) for seed in (0, 1)]
    main([str(folder) for folder in folders])
    means = [
        np.mean([100 * r["correct"] / r["n"] for r in tables.read_rows(folder / "rows.jsonl")])
        for folder in folders
    ]
    line = f"| fedpcl | {np.mean(means):.1f} ± {np.std(means, ddof=1):.1f} | "
    assert line in capsys.readouterr().out
    with pytest.raises(SettingsError, match="there is no run to compare"):
        main([])
    with pytest.raises(SettingsError, match=r"nowhere holds no finished run"):
        main(["nowhere"])
