"""Recipes of personalised studies: tables, figures, keys, and the same results after a stop."""

import csv
import json

import numpy as np
import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.recipes import execute
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


def key(method="fedpcl", **changes):
    config = {"study": "personalised", "personal-datasets": "a.npz b.npz", **changes}
    return Run.of(config, method, 0).key


def test_clients_and_features_of_a_draw_are_shared_by_its_training_seeds():
    """The key of a method has both seeds, and that of the features has the seed of the data."""
    config = {"study": "personalised", "personal-datasets": "a.npz b.npz"}
    pairs = [("", 4), (4, 4), (4, 5), (5, 4)]
    runs = [Run.of({**config, "data-seed": draw}, "fedpcl", seed) for draw, seed in pairs]
    plain, same, trained_again, redrawn = runs
    assert plain.key == same.key
    assert len({run.key for run in runs}) == 3
    features = [run.main.features() for run in (plain, trained_again, redrawn)]
    assert features[0] == features[1] != features[2]
    assert [run.main.run_options.seed for run in (trained_again, redrawn)] == [5, 4]


def test_keys_change_with_the_settings_of_a_personalised_study(tmp_path):
    plain = key()
    assert key(**{"data-dir": "x", "run-name": "x", "timeout": 7.0}) == plain
    for changes in (
        {"backbones": "scratchy"}, {"train-per-class": 3}, {"noise-on": "images"},
        {"head-norm": "batch"}, {"alpha": 2.0}, {"rounds": 7}, {"learning-rate": 0.3},
    ):  # fmt: skip
        assert key(**changes) != plain
    assert key(shift="feature", alpha=2.0) == key(shift="feature")
    weights = tmp_path / "model.safetensors"
    for backbone in (str(tmp_path), f"resnet18={weights}"):
        weights.write_bytes(b"a")
        before = key(backbones=backbone)
        weights.write_bytes(b"A")
        assert key(backbones=backbone) != before
