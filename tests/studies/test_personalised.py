"""A personalised study of a few seconds: all methods, stopping, resuming, and the files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coprefl_flwr.client_app import app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import PERSONALISED
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.report.frames import read_rows
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import with_role
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import read_result
from coprefl_flwr.studies.training_options import TrainingOptions
from tests.common.data import write_domain

PERSONAL_METHODS = list(with_role(PERSONALISED))
CLASSES = 4


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    for number, name in enumerate(("plain", "noisy", "noisier")):
        write_domain(folder / f"{name}.npz", number)
    return " ".join(str(folder / f"{name}.npz") for name in ("plain", "noisy", "noisier"))


@pytest.fixture
def settings(datasets, tmp_path):
    return Settings(
        study="personalised",
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
    return run_study(LocalGrid(app, nodes, settings.to_config()), build(settings))


def first_arrays(settings, name):
    """Return the global arrays that a method of the study begins with."""
    (stage,) = (stage for stage in build(settings).stages if stage.start == name)
    return stage.initial(None)


def files(folder):
    """Return {path: content} of all files of a run.

    Files with settings and times, and the output folder in model.json, are left out.
    """
    contents = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name not in ("settings.yaml", "seconds.json")
    }
    for path in [path for path in contents if path.endswith("model.json")]:
        about = json.loads(contents[path])
        del about["settings"]["output-dir"]
        contents[path] = about
    return contents


def test_every_method_learns_and_differs_from_the_others(settings):
    settings = replace(settings, method=" ".join(PERSONAL_METHODS))
    folder = run(settings)
    rows = read_rows(folder / "rows.jsonl")
    assert [(row.start, row.task, row.client, row.domain) for row in rows.itertuples()] == [
        (name, 0, client, domain)
        for name in PERSONAL_METHODS
        for client, domain in enumerate(("plain", "noisy", "noisier"))
    ]
    assert set(rows["n"]) == {20 * CLASSES}
    by_method = rows.groupby("start")
    assert len(set(by_method["loss"].agg(tuple))) == len(PERSONAL_METHODS)
    hits = by_method["correct"].sum().to_dict()
    chance = 3 * 20
    assert all(count > 1.3 * chance for name, count in hits.items() if name != "pfedme"), hits
    assert sorted(path.name for path in (folder / "methods").iterdir()) == sorted(PERSONAL_METHODS)
    assert not (folder / "features").exists()
    # The clients' own models are results of the study, so they are kept.
    stateful = {path.name for path in folder.glob("methods/*") if (path / "client-state").exists()}
    assert stateful == {"fedpcl", "fedproto", "fedrep", "pfedme", "solo"}
    tables = (folder / "report" / "tables" / "table.md").read_text()
    assert "| Std over clients % | plain % | noisy % | noisier % |" in tables


def test_numbers_sent_are_those_of_the_paper(settings):
    """The numbers are those of Table 2, with 36 pixels instead of 512 features.

    FedAvg sends 36 x 256 + 256 x 4 weights. FedRep sends 36 x 256 weights, without the head. The
    prototypes of FedPCL and FedProto are 4 x 256 numbers.
    """
    expected = {
        "fedavg": 36 * 256 + 256 * CLASSES,
        "fedrep": 36 * 256,
        "fedpcl": 256 * CLASSES,
        "fedproto": 256 * CLASSES,
        "solo": 0,
    }
    folder = run(replace(settings, method=" ".join(expected), rounds=1))
    for name, weights in expected.items():
        (only,) = read_result(folder / "methods" / name)["rounds"]
        assert only["weights-sent"] == weights
    (fedavg,) = read_result(folder / "methods" / "fedavg")["rounds"]
    # Also the biases, and BatchNorm's weights, statistics and counter.
    assert fedavg["numbers-sent"] == expected["fedavg"] + 256 + 4 * 256 + 1 + CLASSES


class Dying(LocalGrid):
    """A grid whose process is killed in round 3, after a client stored its state."""

    def _handle(self, message):
        reply = super()._handle(message)
        if message.content["config"].get("server-round") == 3:
            raise KeyboardInterrupt
        return reply


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("fedpcl", "pfedme") else pytest.mark.slow)
        for name in PERSONAL_METHODS
    ],
)
def test_resumed_run_has_the_bytes_of_an_uninterrupted_run(name, settings, tmp_path):
    settings = replace(settings, method=name)
    whole = files(run(replace(settings, output_dir=str(tmp_path / "whole"))))
    with pytest.raises(KeyboardInterrupt):
        run_study(Dying(app, 2, settings.to_config()), build(settings))
    again = files(run(settings))
    assert again == whole


def test_features_of_two_backbones_are_joined(settings, tmp_path):
    """Two frozen networks with 64 and 128 features."""
    for name, channels in (("resnet8", 3), ("femnist-cnn", 1)):
        shape = (channels, 8, 8)
        model = build_model(name, 5, shape)
        about = {"model": name, "num-classes": 5, "input-shape": shape, "norm": "batch",
                 "pixel-mean": [0.5] * channels, "pixel-std": [0.3] * channels}  # fmt: skip
        save_model(tmp_path / name, model_arrays(model), about)
    both = f"{tmp_path / 'resnet8'} {tmp_path / 'femnist-cnn'}"
    settings = replace(settings, backbones=both, method="fedpcl fedavg", rounds=2)
    assert first_arrays(settings, "fedavg")["projection.weight"].shape == (256, 64 + 128)
    rows = read_rows(run(settings) / "rows.jsonl")
    assert list(rows["start"].unique()) == ["fedpcl", "fedavg"]


def test_pretrained_start_is_a_backbone(settings, tiny_settings, monkeypatch):
    """A folder that a study wrote is the backbone.

    The features are the 8 numbers before the last layer.
    """
    monkeypatch.setenv("COPREFL_ALLOW", "tests.common.networks")  # The network is not built in.
    study = replace(tiny_settings, method="fedavg", tasks=0, run_name="first")
    folder = run_study(LocalGrid(app, 1, study.to_config()), build(study)) / "starts" / "fedavg"
    settings = replace(settings, backbones=str(folder))
    fedavg = first_arrays(replace(settings, method="fedavg"), "fedavg")
    assert fedavg["projection.weight"].shape == (256, 8)
    assert len(read_rows(run(settings) / "rows.jsonl")) == 3


def test_methods_train_networks_from_scratch(settings):
    methods = [name for name in PERSONAL_METHODS if name != "fedpcl"]
    scratch = replace(settings, backbones="scratch", model="femnist-cnn", rounds=2)
    rows = read_rows(run(replace(scratch, method=" ".join(methods))) / "rows.jsonl")
    assert len(rows) == 3 * len(methods)


@pytest.mark.parametrize("noise_on", ["prototypes", "images"])
def test_noise_changes_the_prototypes(settings, tmp_path, noise_on):
    plain = files(run(replace(settings, output_dir=str(tmp_path / "plain"))))
    noisy = files(run(replace(settings, noise_on=noise_on, noise_scale=0.3)))
    assert plain["methods/fedpcl/global.safetensors"] != noisy["methods/fedpcl/global.safetensors"]


def test_default_training_is_that_of_the_paper(tmp_path):
    def training(**changes):
        config = {"population": "personal", "stage": "methods/fedpcl", "server-round": 1}
        config |= {"folder": "run/methods/fedpcl", "features": "run/features"}
        base = Settings(study="personalised", method="fedpcl", train_per_class=2)
        chosen = replace(base, output_dir=str(tmp_path), **changes)
        return build(chosen).client(None, 0, config).training

    paper = TrainingOptions(optimiser="adam", weight_decay=1e-4, local_epochs=1)
    assert training() == paper
    assert (paper.samples_per_step, paper.rate(1)) == (32, 1e-3)
    (group,) = paper.new_optimiser(build_model("lenet5", 2, (1, 28, 28)), 1).param_groups
    assert group["weight_decay"] == 1e-4
    changes = {"weight_decay": 0.0, "local_steps": 3, "batch_size": 4, "learning_rate": 0.1}
    changes["clip_norm"] = 2
    assert training(**changes) == TrainingOptions(optimiser="adam", **changes)
