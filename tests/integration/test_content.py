"""Files and arguments with wrong content: a one-line error for each, before any work."""

import pytest
import torch
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.models.backbones import load_backbone
from coprefl_flwr.recipes.load import read_recipe
from tests.common.data import images
from tests.common.recipes import tiny_recipe, write_recipe

# ---- recipes ------------------------------------------------------------------------------------


def test_recipe_with_an_infinite_number_is_refused(tiny_images, tmp_path):
    keys = {"settings": {"learning-rate": float("inf")}}
    recipe = write_recipe(tmp_path / "a.yaml", tiny_recipe(tiny_images, **keys))
    with pytest.raises(SettingsError, match=r"a\.yaml, line \d+: .* must be a finite number"):
        read_recipe(recipe)


# ---- weights ------------------------------------------------------------------------------------

KINDS = {
    "sparse": lambda one: one.to_sparse(),
    "on the meta device": lambda one: one.to("meta"),
    "complex64": lambda one: one.to(torch.complex64),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_weights_that_are_not_dense_real_arrays_are_refused(tmp_path, kind):
    model, path = nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), tmp_path / "a.pt"
    weights = model.state_dict()
    weights["1.weight"] = KINDS[kind](weights["1.weight"])
    torch.save(weights, path)
    line = rf"'1\.weight' is {kind}"
    tasks = cp.tasks(images(), number=1, classes=2, clients=2)
    with pytest.raises(SettingsError, match=line):
        cp.evaluate_starts({"a": model, "b": path}, tasks, 1)
    model[1].weight = nn.Parameter(weights["1.weight"])
    with pytest.raises(SettingsError, match=line):
        cp.evaluate_starts({"a": model}, tasks, 1)
    with pytest.raises(SettingsError, match=line):
        cp.pretrain("fedavg", model, cp.partition(images(), clients=2), 1)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (lambda of: {"model": of}, "the value of 'model' is of the type OrderedDict"),
        (lambda of: {"1.wieght": of["1.weight"], "1.bias": of["1.bias"], "0.x": of["1.bias"]},
         "unknown: '1.wieght'"),
        (lambda of: list(of.values()), "but a list"),
    ],
    ids=["checkpoint", "misspelt", "list"],
)  # fmt: skip
def test_weights_file_with_other_keys_is_refused(tmp_path, content, line):
    model, path = nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), tmp_path / "a.pt"
    model.append(nn.Linear(8, 8))
    torch.save(content(model.state_dict()), path)
    tasks = cp.tasks(images(), number=1, classes=2, clients=2)
    with pytest.raises(SettingsError) as caught:
        cp.evaluate_starts({"a": model, "b": path}, tasks, 1)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"num-classes": 4}, "the weights do not fit the model: "),
        ({"model": "resnet18"}, "the weights do not fit the model: "),
    ],
)
def test_model_json_that_does_not_fit_its_weights_is_refused(tmp_path, change, line):
    about = {"model": "femnist-cnn", "num-classes": 3, "input-shape": [1, 12, 12], "norm": "batch"}
    about |= {"pixel-mean": [0.5], "pixel-std": [0.25]}
    network = build_model("femnist-cnn", 3, (1, 12, 12))
    save_model(tmp_path, model_arrays(network), about | change)
    with pytest.raises(SettingsError, match=line):
        load_backbone(str(tmp_path))


# ---- a user's task method -----------------------------------------------------------------------


def test_task_method_whose_evaluation_reports_no_hits_fails_in_one_line():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8))
    tasks = cp.tasks(images(), number=1, classes=2, clients=2)
    with pytest.raises(RunFailedError, match="of a client has no metric 'correct'; `evaluate` "):
        cp.evaluate_starts(
            {"a": model}, tasks, 1, method="tests.common.own_parts:WithoutHits", quiet=True
        )
