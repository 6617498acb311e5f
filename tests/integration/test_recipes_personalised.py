"""Recipes of personalised studies: no repeated work, the same results after a stop, refusals."""

import csv
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from coprefl_flwr.cli import main
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import VERSIONS
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.recipes import execute
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.runs import Run
from tests.common.checks import Killed, files
from tests.common.data import write_domain
from tests.common.recipes import Witness, write_recipe

RECIPE = {
    "title": "Three clients",
    "source": "Nobody, 2026, Table 2",
    "settings": {
        "study": "personalised",
        "rounds": 3,
        "train-per-class": 4,
        "test-per-class": 8,
        "batch-size": 8,
    },
    "methods": ["fedavg", {"ours": {"method": "fedpcl", "learning-rate": [0.0001, 0.05]}}, "solo"],
    "select": "test",
    "reference": "ours",
    "seeds": [0, 1],
    "metrics": ["accuracy@noisy", "accuracy", "std-clients", "weights-sent", "numbers-sent"],
    "paper": {
        "columns": ["accuracy@noisy", "weights-sent"],
        "tables": [{"table": 2, "rows": {"ours": "82.75±0.40 2560", "solo": "60.40 -"}}],
    },
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    for noise, name in ((6, "plain"), (12, "noisy"), (18, "noisier")):
        write_domain(folder / f"{name}.npz", noise)
    names = " ".join(str(folder / f"{name}.npz") for name in ("plain", "noisy", "noisier"))
    return RECIPE["settings"] | {"personal-datasets": names}


@pytest.fixture(scope="module")
def path(settings, tmp_path_factory):
    file = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    return write_recipe(file, RECIPE | {"settings": settings})


def run(path, out, witness, patch):
    patch.setattr(execute, "LocalGrid", witness)
    return main(["run", str(path), "--out", str(out)])


@pytest.fixture(scope="module")
def whole(path, tmp_path_factory):
    """Return the folder of a recipe that ran without a stop, and the witness of its messages."""
    folder, witness = tmp_path_factory.mktemp("whole"), Witness()
    with pytest.MonkeyPatch.context() as patch:
        assert run(path, folder / "out", witness, patch) == 0
    return folder, witness


def results(folder):
    """Return {(method in the first row, number of the file): content} of all results."""
    stored = [json.loads(path.read_text()) for path in folder.glob("models/*/result.json")]
    return {(result["rows"][0]["start"], index): result for index, result in enumerate(stored)}


def test_table_has_the_means_of_the_clients_rows(whole):
    folder, _ = whole
    with (folder / "out" / "report" / "results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["label"] == "fedavg"]
    shown = {row["metric"]: float(row["mean"]) for row in rows}
    parts = [result for (name, _), result in results(folder).items() if name == "fedavg"]
    assert len(parts) == 2
    by_seed = [[100 * row["correct"] / row["n"] for row in result["rows"]] for result in parts]
    assert [row["domain"] for row in parts[0]["rows"]] == ["plain", "noisy", "noisier"]
    assert shown["accuracy"] == pytest.approx(np.mean(by_seed))
    assert shown["accuracy@noisy"] == pytest.approx(np.mean([values[1] for values in by_seed]))
    assert shown["std-clients"] == pytest.approx(np.mean([np.std(values) for values in by_seed]))
    # 36 pixels, 256 hidden units, 4 classes. All numbers: also biases, BatchNorm and its counter.
    assert shown["weights-sent"] == 36 * 256 + 256 * 4
    assert shown["numbers-sent"] == 36 * 256 + 256 * 4 + 256 + 4 * 256 + 1 + 4


def test_searched_value_is_chosen_by_the_accuracy_of_clients(whole):
    folder, _ = whole
    scores: dict[str, list[float]] = {}
    for (name, _), result in results(folder).items():
        values = [row["correct"] / row["n"] for row in result["rows"]]
        scores.setdefault(name, []).append(float(np.mean(values)))
    scores_by_name = {
        name: np.mean(values) for name, values in scores.items() if name.startswith("fedpcl")
    }
    best = max(scores_by_name, key=lambda name: scores_by_name[name])
    assert len(set(scores_by_name.values())) == 2
    page = (folder / "out" / "report" / "tables" / "table.md").read_text()
    assert best.partition(":")[2] in page
    assert "82.75" in page


@pytest.mark.parametrize(
    "at", [("train", "fedpcl", "personal", 2), ("evaluate", "solo", "personal", 3)]
)
def test_killed_recipe_ends_with_the_bytes_of_an_uninterrupted_run(
    at, whole, path, tmp_path, monkeypatch
):
    with pytest.raises(Killed):
        run(path, tmp_path / "out", Witness(at), monkeypatch)
    grid = Witness()
    assert run(path, tmp_path / "out", grid, monkeypatch) == 0
    assert files(tmp_path / "out") == files(whole[0] / "out")
    assert files(tmp_path / "models") == files(whole[0] / "models")
    # The run continues with the lost round: work that was done before is not repeated.
    assert grid.seen[0][1].startswith(at[1])
    assert grid.seen[0][3] == at[3]


def test_finished_runs_are_not_repeated(whole, path, settings, tmp_path, monkeypatch):
    folder, _ = whole
    before, again = files(folder), Witness()
    assert run(path, folder / "out", again, monkeypatch) == 0
    assert not again.seen
    other = {"title": "Solo alone", "settings": settings, "methods": ["solo"], "seeds": [1]}
    assert run(write_recipe(tmp_path / "x.yaml", other), folder / "other", again, monkeypatch) == 0
    assert not again.seen
    assert files(folder).items() >= before.items()


def test_runs_are_listed_and_shown(whole, capsys):
    folder, _ = whole
    assert main(["list", str(folder)]) == 0
    assert capsys.readouterr().out.count("personalised") == 8
    (key, _) = sorted(path.parent.name for path in folder.glob("models/solo-*/result.json"))
    assert main(["show", key, "--models", str(folder / "models")]) == 0
    shown = capsys.readouterr().out
    assert "backbones pixels, seed" in shown
    assert " % over " in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["select=validation"], "'ours' has searched values, but there are no validation tasks"),
        (["metrics=[accuracy, std]"], "metrics: unknown value 'std'"),
    ],
)
def test_setting_that_does_not_fit_a_personalised_recipe_is_refused(changes, message, path):
    with pytest.raises(SettingsError, match=r"^[^\n]*$") as error:
        read_recipe(path, changes)
    assert message in str(error.value)


def test_missing_personal_dataset_is_refused_with_its_line(path, tmp_path, capsys):
    file = tmp_path / "wrong.yaml"
    file.write_text(path.read_text().replace("noisier.npz", "nosier.npz"))
    assert main(["run", str(file), "--out", str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file}, line " in line
    assert "nosier.npz" in line
    assert not (tmp_path / "out").exists()


def key(method="fedpcl", seed=0, **changes):
    config = {"study": "personalised", "personal_datasets": "a.npz b.npz", **changes}
    config = {name.replace("_", "-"): value for name, value in config.items()}
    return Run.of(config, method, seed).key


def test_keys_change_with_settings_that_change_results_alone(monkeypatch, tmp_path):
    plain = key()
    assert plain.startswith("fedpcl-")
    assert key(seed=1) != plain
    assert key(data_dir="x", run_name="x", timeout=7.0) == plain
    for changes in (
        {"min_replies": 2}, {"backbones": "scratchy"}, {"rounds": 7},
        {"train_per_class": 3}, {"noise_on": "images"}, {"head_norm": "batch"}, {"alpha": 2.0},
        {"test_every": 1}, {"learning_rate": 0.3},
    ):  # fmt: skip
        assert key(**changes) != plain
    assert key(shift="feature", alpha=2.0) == key(shift="feature")
    assert key("fedavg") != key("fedavg", study="starts", personal_datasets="")
    weights = tmp_path / "model.safetensors"
    for backbone in (str(tmp_path), f"resnet18={weights}"):
        weights.write_bytes(b"a")
        before = key(backbones=backbone)
        weights.write_bytes(b"A")
        assert key(backbones=backbone) != before
    monkeypatch.setitem(VERSIONS, "fedpcl", 77)
    assert key() != plain


def test_similarity_figure_compares_backbones_that_were_run_alone(settings, tmp_path, monkeypatch):
    names = []
    for number in (0, 1):
        network = build_model("femnist-cnn", 4, (1, 28, 28), "batch", seed_key=(number, "model"))
        names.append(str(tmp_path / f"backbone{number}"))
        about = {
            "model": "femnist-cnn", "num-classes": 4, "input-shape": [1, 28, 28],
            "norm": "batch", "pixel-mean": [0.5], "pixel-std": [0.2],
        }  # fmt: skip
        save_model(tmp_path / f"backbone{number}", model_arrays(network), about)
    content = {
        "title": "Backbones",
        "settings": settings | {"rounds": 2, "backbones": [*names, " ".join(names)]},
        "methods": ["fedpcl"],
        "metrics": ["accuracy"],
        "figures": ["similarity", "curves"],
    }
    path = write_recipe(tmp_path / "heat.yaml", content)
    assert run(path, tmp_path / "out", Witness(), monkeypatch) == 0
    (figure,) = (tmp_path / "out" / "report" / "figures").glob("*similarity.png")
    assert list(figure.parent.glob("*curves.png"))
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "models" / "features").iterdir())) == 3


def test_noise_figure_has_the_images_of_training(settings, tmp_path, monkeypatch):
    noise = {"noise-on": "images", "noise-kind": "gaussian", "noise-scale": 0.1, "noise-share": 0.2}
    content = {
        "title": "Noise",
        "settings": settings | noise | {"rounds": 2},
        "methods": ["solo"],
        "metrics": ["accuracy"],
        "figures": ["noise"],
    }
    path = write_recipe(tmp_path / "noise.yaml", content)
    assert run(path, tmp_path / "out", Witness(), monkeypatch) == 0
    (figure,) = (tmp_path / "out" / "report" / "figures").glob("*noise.png")
    assert figure.read_bytes().startswith(b"\x89PNG")
    (file,) = (tmp_path / "models").glob("*/noised.safetensors")
    images = load_file(file)
    before, after = images["before"], images["after"]
    assert 0 <= before.min() < before.max() <= 1
    rest = after - 0.8 * before
    assert 0.05 < rest.std() < 0.15
    # The features of "pixels" are the noised pixels after normalisation, a linear function.
    (features,) = (tmp_path / "models" / "features").glob("*/0-train.npy")
    slope, level = np.polyfit(after.ravel(), np.load(features)[0], 1)
    np.testing.assert_allclose(np.load(features)[0], slope * after.ravel() + level, atol=1e-4)
