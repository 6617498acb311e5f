"""Studies in bfloat16 and with 16-bit networks: every method gives results near float32's."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from coprefl_flwr.arrays import is_buffer
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING
from coprefl_flwr.studies.known_methods import with_role
from coprefl_flwr.studies.store import read_result
from tests.common.networks import network

HERE = "tests.integration.test_precision_of_studies"


def bfloat16(num_classes):
    """Return the tiny study's network with weights of bfloat16."""
    return network(num_classes).bfloat16()


def float16(num_classes):
    """Return the tiny study's network with weights of float16."""
    return network(num_classes).half()


def weights(study, store):
    """Return {start: the weights of its model, without buffers, as a vector of their dtype}."""
    found = {}
    for stage in study.stages[: len(study.config["method"].split())]:
        arrays = load_file(store.folder(stage) / "model.safetensors")
        own = [array for key, array in sorted(arrays.items()) if not is_buffer(key, array)]
        found[stage.start] = np.concatenate([array.ravel() for array in own])
    return found


@pytest.fixture
def every_method(tiny_settings):
    """Settings for two rounds of all pre-training methods, with only one refined method."""
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
def test_pretraining_in_16_bits_ends_near_float32(
    changed, carried, every_method, run_stages, tmp_path
):
    """The models are near the float32 models, but not equal to them.

    The difference is less than half of the distance between the start and the float32 model.
    """
    if not _float32:
        _float32.update(weights(*run_stages(every_method, tmp_path / "float32")))
    found = weights(*run_stages(replace(every_method, **changed), tmp_path / "short"))
    assert {one.dtype.name for one in found.values()} == {carried}
    assert found.keys() == _float32.keys()
    first = _float32["random"]
    assert np.array_equal(found["random"], first) == ("precision" in changed)
    for name, end in _float32.items():
        apart = np.linalg.norm(found[name].astype(np.float32) - end)
        assert name == "random" or 0 < apart < 0.5 * np.linalg.norm(end - first), (name, apart)


def losses(study, store):
    """Return each stage's losses, from all rounds and from the tests of the clients."""
    results = [read_result(store.folder(one)) for one in study.stages if one.has_client_rows]
    return [
        [row["loss"] for row in (*result["rounds"], *result["rows"]) if "loss" in row]
        for result in results
    ]


SHORT = {"precision": "bf16"}
OF_16_BITS = {"model": f"{HERE}:bfloat16"}
OF_A_TASK = {"method": "random", "tasks": 1, "task_method": "scaffold"}
NETWORKS = " ".join(name for name in with_role(PERSONALISED) if name != "fedpcl")
OWN_NETWORK = {"method": NETWORKS, "backbones": "scratch", "model": "tests.common.networks:network"}
# The inverse of the covariance of a few features of 16 bits needs some shrinkage.
STUDIES = [
    ("tiny_settings", {**OF_A_TASK, "head": head, "diagnostics": head == "fresh"}, changed)
    for head in (
        "fresh",
        "fedcgs:shrinkage=1",
        *(one for one in with_role(HEAD) if one != "fedcgs"),
    )
    for changed in (SHORT, OF_16_BITS)
]
STUDIES += [("personalised", {}, SHORT), ("personalised", OWN_NETWORK, OF_16_BITS)]


@pytest.mark.parametrize(("study", "own", "changed"), STUDIES)
def test_losses_in_16_bits_are_near_float32(study, own, changed, request, run_stages, tmp_path):
    settings = replace(request.getfixturevalue(study), **own)
    plain = losses(*run_stages(settings, tmp_path / "float32"))
    short = losses(*run_stages(replace(settings, **changed), tmp_path / "short"))
    for found, expected in zip(short, plain, strict=True):
        assert found != expected
        assert found == pytest.approx(expected, rel=0.1)
