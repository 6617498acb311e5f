"""A personalised study of a few seconds: all methods, stopping, resuming, and the files."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coprefl_flwr.cli import main
from coprefl_flwr.client_app import app
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.methods import PERSONALISED, with_role
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.named import display_names
from coprefl_flwr.report.frames import read_rounds, read_rows
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.personalised import PersonalStage
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import read_result
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


def test_all_methods_learn_something_of_their_own(settings):
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
    names = display_names(PERSONAL_METHODS).values()
    assert all(tables.count(f"| {name} | ") == 2 for name in names)
    assert "| Std over clients % | plain % | noisy % | noisier % |" in tables
    assert "| Method | Weights sent | Numbers sent |" in tables


def test_what_a_client_sends_is_counted_as_the_paper_does(settings):
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


@pytest.mark.parametrize("name", PERSONAL_METHODS)
def test_stopped_and_resumed_it_ends_with_the_same_bytes(name, settings, tmp_path):
    settings = replace(settings, method=name)
    whole = files(run(replace(settings, output_dir=str(tmp_path / "whole"))))
    with pytest.raises(KeyboardInterrupt):
        run_study(Dying(app, 2, settings.to_config()), build(settings))
    again = files(run(settings))
    assert again == whole


def test_a_result_is_written_before_the_last_checkpoint(settings, tmp_path):
    """If the process is killed between the two, the method is not run again.

    The evaluation could not be resumed from an earlier checkpoint.
    """
    whole = files(run(replace(settings, output_dir=str(tmp_path / "whole"))))
    folder = run(settings)
    result = folder / "methods" / "fedpcl" / "result.json"
    for other in ("rows.jsonl", "rounds.jsonl", "report/report.html"):
        (folder / other).unlink()
    stamp = result.stat().st_mtime_ns
    (result.parent / "checkpoint.safetensors").write_bytes(b"the last but one")
    assert files(run(settings)) == whole
    assert result.stat().st_mtime_ns == stamp


def test_hosting_does_not_matter(settings, tmp_path):
    prototypes = []
    for nodes in (1, 3):
        folder = run(replace(settings, output_dir=str(tmp_path / str(nodes))), nodes)
        prototypes.append(
            load_file(folder / "methods" / "fedpcl" / "global.safetensors")["prototypes"]
        )
    assert prototypes[0] == pytest.approx(prototypes[1], abs=1e-6)


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
    start = first_arrays(settings, "fedavg")
    assert start["projection.weight"].shape == (256, sum(sizes.values()))
    rows = read_rows(run(settings) / "rows.jsonl")
    assert list(rows["start"].unique()) == ["fedpcl", "fedavg"]


def test_a_pre_trained_start_becomes_a_backbone(settings, tiny_settings, monkeypatch):
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


def test_training_from_scratch(settings):
    """`scratch` trains the network itself on images."""
    scratch = replace(settings, backbones="scratch", model="femnist-cnn", rounds=2)
    others = [name for name in PERSONAL_METHODS if name != "fedpcl"]
    rows = read_rows(run(replace(scratch, method=" ".join(others))) / "rows.jsonl")
    assert len(rows) == 3 * len(others)


@pytest.mark.parametrize("noise_on", ["prototypes", "images"])
def test_noise_enters_the_numbers(settings, tmp_path, noise_on):
    plain = files(run(replace(settings, output_dir=str(tmp_path / "plain"))))
    noisy = files(run(replace(settings, noise_on=noise_on, noise_scale=0.3)))
    assert plain["methods/fedpcl/global.safetensors"] != noisy["methods/fedpcl/global.safetensors"]


def test_the_papers_training_is_the_default(settings, tmp_path):
    def training(**changes):
        about = {
            "population": "personal",
            "stage": "methods/fedpcl",
            "folder": "run/methods/fedpcl",
        }
        config = about | {"server-round": 1, "features": "run/features"}
        chosen = Settings(
            study="personalised", method="fedpcl", train_per_class=2, output_dir=str(tmp_path),
            **changes,
        )  # fmt: skip
        return build(chosen).client(None, 0, config).training

    paper = LocalTraining(algorithm="adam", local_epochs=1)
    assert training() == paper
    assert (paper.samples_per_step, paper.rate(1)) == (32, 1e-3)
    (group,) = paper.optimiser(build_model("lenet5", 2, (1, 28, 28)), 1).param_groups
    assert group["weight_decay"] == 1e-4
    own = {"weight_decay": 0.0, "local_steps": 3, "batch_size": 4, "learning_rate": 0.1}
    assert training(**own, clip_norm=2) == LocalTraining(algorithm="adam", **own, clip_norm=2)


def test_the_kind_of_a_study_is_said(settings):
    """The setting `study` decides; the kind is not guessed from other settings."""

    def kind(settings):
        return type(build(settings).stages[0])

    assert kind(Settings()) is Pretraining
    assert kind(Settings(study="personalised", method="fedavg per-fedavg")) is PersonalStage
    assert kind(Settings(method="fedavg per-fedavg")) is Pretraining
    assert kind(settings) is PersonalStage


def test_rounds_of_every_method(settings):
    folder = run(replace(settings, method="fedpcl solo", test_every=2, rounds=3))
    rounds = read_rounds(folder / "rounds.jsonl")
    columns = ["phase", "start", "round"]
    assert rounds[columns].values.tolist() == [
        ["personalised", name, number] for name in ("fedpcl", "solo") for number in (1, 2, 3)
    ]
    assert rounds["accuracy"].notna().tolist() == [False, True, True] * 2
    rows = read_rows(folder / "rows.jsonl")
    means = (100 * rows["correct"] / rows["n"]).groupby(rows["start"]).mean()
    last = rounds[rounds["round"] == 3].set_index("start")["accuracy"]
    assert last.to_dict() == pytest.approx(means.to_dict())


def test_a_client_that_was_not_evaluated_ends_the_study(settings):
    class Losing(LocalGrid):
        def _handle(self, message):
            if message.metadata.message_type == "evaluate":
                message.content["config"]["clients"] = [0, 1]
            return super()._handle(message)

    with pytest.raises(RunFailedError, match="did not evaluate the model"):
        run_study(Losing(app, 1, settings.to_config()), build(settings))


def test_tables_over_runs(settings, capsys):
    """The tables show the mean and the sample standard deviation over the runs.

    The value of a run is its mean over the clients.
    """
    folders = [run(replace(settings, run_name=f"r{seed}", seed=seed)) for seed in (0, 1)]
    assert main(["report", *map(str, folders)]) == 0
    means = [
        np.mean(100 * rows["correct"] / rows["n"])
        for rows in [read_rows(folder / "rows.jsonl") for folder in folders]
    ]
    of_both = rf"FedPCL +{np.mean(means):.2f} ± +{np.std(means, ddof=1):.2f} "
    assert re.search(of_both, capsys.readouterr().out)
    assert main(["report", str(folders[0]), "nowhere"]) == 1
    assert "'nowhere'" in capsys.readouterr().err
