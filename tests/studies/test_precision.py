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
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, TASK, with_role
from coprefl_flwr.rounds.progress import Progress
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.kept import read_result
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import run_stage
from coprefl_flwr.studies.study import StudyFolder
from tests.tiny_study import network, write_domain

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
    for stage in study.stages:
        run_stage(stage, grid, store, Progress.of([(stage.kind, stage.rounds)]))
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
    """All methods of starting models, for two rounds."""
    return replace(
        tiny_settings, method=" ".join(["random", *with_role(PRETRAINING)]), rounds=2,
        local_steps=2, clients=3, server_reserve=0.2, tasks=0,
    )  # fmt: skip


def assert_near(found, plain, most):
    """Check that each start moved as in float32, but for a part of that below `most`, not 0."""
    first = plain.pop("random")
    assert plain.keys() | {"random"} == found.keys()
    for name, end in plain.items():
        moved = np.linalg.norm(end - first)
        apart = np.linalg.norm(found[name].astype(np.float32) - end) / moved
        assert 0 < apart < most, (name, apart)


def test_every_method_pre_trains_near_float32(every_method, tmp_path):
    plain = weights(*made(every_method, tmp_path / "float32"))
    short = weights(*made(replace(every_method, precision="bf16"), tmp_path / "bf16"))
    assert all(one.dtype == np.float32 for one in short.values())
    assert np.array_equal(short["random"], plain["random"])
    assert_near(short, plain, 0.5)


@pytest.mark.parametrize(("dtype", "carried"), [("bfloat16", "float32"), ("float16", "float16")])
def test_every_method_pre_trains_a_network_of_16_bits(dtype, carried, every_method, tmp_path):
    plain = weights(*made(every_method, tmp_path / "float32"))
    own = replace(every_method, model=f"{HERE}:{dtype}")
    short = weights(*made(own, tmp_path / dtype))
    assert {one.dtype.name for one in short.values()} == {carried}
    assert_near(short, plain, 0.5)


def losses(study, store):
    """Return {stage: the clients' losses, and how many samples each gets right} of tasks."""
    results = {s.path: read_result(store.folder(s))["rows"] for s in study.stages if s.measures}
    return {
        path: ([r["loss"] for r in rows], [r["correct"] for r in rows])
        for path, rows in results.items()
    }


@pytest.mark.parametrize(
    "model", ["tests.tiny_study:network", f"{HERE}:bfloat16", f"{HERE}:float16"]
)
@pytest.mark.parametrize("head", ["fresh", *with_role(HEAD)])
def test_tasks_with_every_head(head, model, tiny_settings, tmp_path):
    settings = replace(
        tiny_settings, method="random", head=head, tasks=1, task_method="scaffold",
        diagnostics=head == "fresh",
    )  # fmt: skip
    changed = {"model": model} if model.startswith(HERE) else {"precision": "bf16"}
    plain = losses(*made(settings, tmp_path / "float32"))
    short = losses(*made(replace(settings, **changed), tmp_path / "short"))
    [(expected, _)], [(found, _)] = plain.values(), short.values()
    assert found != expected
    assert found == pytest.approx(expected, rel=0.1)


def test_every_method_of_tasks(tiny_settings, tmp_path):
    for method in with_role(TASK):
        settings = replace(tiny_settings, method="random", tasks=1, task_method=method)
        plain = losses(*made(settings, tmp_path / method / "float32"))
        short = losses(*made(replace(settings, precision="bf16"), tmp_path / method / "bf16"))
        [(expected, _)], [(found, _)] = plain.values(), short.values()
        assert found != expected, method
        assert found == pytest.approx(expected, rel=0.1), method


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
    plain = losses(*made(personalised, tmp_path / "float32"))
    short = losses(*made(replace(personalised, precision="bf16"), tmp_path / "bf16"))
    assert plain.keys() == short.keys()
    for path, (expected, _) in plain.items():
        assert short[path][0] != expected, path
        assert short[path][0] == pytest.approx(expected, rel=0.1), path


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
    assert "precision" not in told["fedavg"]
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
