"""Studies in bfloat16, and of networks of 16 bits: every method, near what float32 gives."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from coprefl_flwr.arrays import is_buffer
from coprefl_flwr.client_app import app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, with_role
from coprefl_flwr.rounds.progress import Progress, quiet_flower
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.kept import read_result
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import run_stage
from coprefl_flwr.studies.study import StudyFolder
from tests.common.data import write_domain
from tests.common.networks import network

HERE = "tests.studies.test_precision"


def bfloat16(num_classes):
    """Return the tiny study's network with weights of bfloat16."""
    return network(num_classes).bfloat16()


def float16(num_classes):
    """Return it with weights of float16."""
    return network(num_classes).half()


def made(settings, folder):
    """Run a study's stages; return the study and its folder."""
    settings = replace(settings, output_dir=str(folder))
    study = build(settings)
    study.check()
    store, grid = StudyFolder(folder / "tiny"), LocalGrid(app, 1, settings.to_config())
    with quiet_flower():
        for stage in study.stages:
            progress = Progress()
            progress.add([(stage.kind, stage.rounds)])
            run_stage(stage, grid, store, progress)
    return study, store


def weights(study, store):
    """Return {start: its weights in one vector}, and their type."""
    found = {}
    for name, stage in study.starts.items():
        arrays = load_file(store.folder(stage) / "model.safetensors")
        own = [array for key, array in sorted(arrays.items()) if not is_buffer(key, array)]
        found[name] = np.concatenate([array.ravel() for array in own])
    return found


@pytest.fixture
def every_method(tiny_settings):
    """All methods of starting models, the refined forms once, for two rounds."""
    names = [name for name in with_role(PRETRAINING) if not name.endswith("-refined")]
    return replace(
        tiny_settings, method=" ".join(["random", *names, "fedavg-refined"]), rounds=2,
        local_steps=2, clients=3, participants=2, server_reserve=0.2, tasks=0, checkpoint_every=9,
    )  # fmt: skip


_float32 = {}


@pytest.mark.parametrize(
    ("changed", "carried"),
    [
        ({"precision": "bf16"}, "float32"),
        ({"model": f"{HERE}:bfloat16"}, "float32"),
        ({"model": f"{HERE}:float16"}, "float16"),
    ],
)
def test_every_method_pre_trains_near_float32(changed, carried, every_method, tmp_path):
    """Apart by less than half of the way that the model went, and not the same."""
    if not _float32:
        _float32.update(weights(*made(every_method, tmp_path / "float32")))
    found = weights(*made(replace(every_method, **changed), tmp_path / "short"))
    assert {one.dtype.name for one in found.values()} == {carried}
    assert found.keys() == _float32.keys()
    first = _float32["random"]
    assert np.array_equal(found["random"], first) == ("precision" in changed)
    for name, end in _float32.items():
        apart = np.linalg.norm(found[name].astype(np.float32) - end)
        assert name == "random" or 0 < apart < 0.5 * np.linalg.norm(end - first), (name, apart)


def losses(study, store):
    """Return each stage's losses: of every round, and of its clients' tests."""
    results = [read_result(store.folder(one)) for one in study.stages if one.measures]
    return [
        [row["loss"] for row in (*result["rounds"], *result["rows"]) if "loss" in row]
        for result in results
    ]


def assert_losses_are_near(changed, settings, folder):
    plain = losses(*made(settings, folder / "float32"))
    short = losses(*made(replace(settings, **changed), folder / "short"))
    for found, expected in zip(short, plain, strict=True):
        assert found != expected
        assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("changed", [{"precision": "bf16"}, {"model": f"{HERE}:bfloat16"}])
@pytest.mark.parametrize("head", ["fresh", *with_role(HEAD)])
def test_tasks_with_every_head(head, changed, tiny_settings, tmp_path):
    settings = replace(
        tiny_settings, method="random", head=head, tasks=1, task_method="scaffold",
        diagnostics=head == "fresh",
    )  # fmt: skip
    assert_losses_are_near(changed, settings, tmp_path)


@pytest.fixture
def personalised(tmp_path):
    """Every personalised method, over the pixels of two datasets."""
    for number in range(2):
        write_domain(tmp_path / f"{number}.npz", number)
    return Settings(
        study=PERSONALISED,
        run_name="tiny",
        personal_datasets=f"{tmp_path / '0.npz'} {tmp_path / '1.npz'}",
        method=" ".join(with_role(PERSONALISED)),
        rounds=2,
        local_steps=1,
        train_per_class=3,
        test_per_class=5,
        batch_size=8,
    )


def test_every_personalised_method(personalised, tmp_path):
    assert_losses_are_near({"precision": "bf16"}, personalised, tmp_path)


def test_personalised_networks_of_16_bits(personalised, tmp_path):
    names = [name for name in with_role(PERSONALISED) if name != "fedpcl"]  # Of heads alone.
    settings = replace(
        personalised,
        method=" ".join(names),
        backbones="scratch",
        model="tests.common.networks:network",
    )
    assert_losses_are_near({"model": f"{HERE}:bfloat16"}, settings, tmp_path)


# ---- keys, and what is told ----------------------------------------------------------------------


def keys(settings):
    """Return {path: key} of a study's stages."""
    return {stage.path: stage.key for stage in build(settings).stages}


def test_what_does_not_use_it_is_found_under_its_old_key(every_method, personalised):
    """The start that is not trained is the same, and each of two phases says it for itself."""
    settings = replace(every_method, start_loss=True)
    plain, short = keys(settings), keys(replace(settings, precision="bf16"))
    assert {path for path in plain if plain[path] == short[path]} == {
        "starts/random",
        "start-losses/random",
    }
    assert keys(replace(settings, precision="float32")) == plain
    personal, other = keys(personalised), keys(replace(personalised, precision="bf16"))
    assert not set(personal.values()) & set(other.values())
    of_one = keys(replace(settings, method="fedavg fedavg:precision=bf16", tasks=1))
    assert of_one["starts/fedavg"] == plain["starts/fedavg"]
    assert of_one["starts/fedavg-precision-bf16"] == short["starts/fedavg"]


def test_features_say_it_too(personalised):
    plain = build(personalised).stages[0].features()
    assert build(replace(personalised, precision="float32")).stages[0].features() == plain
    assert build(replace(personalised, precision="bf16")).stages[0].features() != plain
    of_methods = replace(personalised, method="fedpcl:precision=bf16")
    assert build(of_methods).stages[0].features() == plain


def test_a_models_file_tells_it(tiny_settings, tmp_path):
    settings = replace(tiny_settings, method="fedavg fedavg:precision=bf16", rounds=1, tasks=0)
    study, store = made(settings, tmp_path)
    told = {
        name: json.loads((store.folder(stage) / "model.json").read_text())["phases"][0]
        for name, stage in study.starts.items()
    }
    assert told["fedavg"]["precision"] == "float32"
    assert told["fedavg:precision=bf16"]["precision"] == "bf16"


@pytest.mark.parametrize("where", [{"precision": "tf32"}, {"method": "fedavg:precision=tf32"}])
def test_what_cannot_be_is_refused_before_any_work(where, tiny_settings, personalised):
    needs = "precision = tf32: needs an NVIDIA GPU"
    with pytest.raises(SettingsError, match=needs) as refused:
        build(replace(tiny_settings, dataset="nowhere.npz", **where)).check()
    assert refused.value.keys == ("precision",)
    assert "\n" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"did you mean 'bf16'|allowed are float32, bf16, tf32"):
        replace(tiny_settings, precision="bf15")
    if "method" not in where:
        with pytest.raises(SettingsError, match=needs):
            build(replace(personalised, **where)).check()
