"""The plain loops, with which all runners are compared, give the package's results without it."""

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import benchmarks
from benchmarks.bare import one_process, several_processes
from benchmarks.bare_heads import fedpcl
from benchmarks.federation import client, network, run_config, run_rounds
from benchmarks.workloads import WORKLOADS
from coprefl_flwr.grids import LocalGrid
from tests.common.accelerator import DEVICE, accelerator

ROUNDS = 2
TINY, HEADS = WORKLOADS["tiny"], WORKLOADS["tiny-heads"]


class EnoughError(Exception):
    """Ends an endless loop."""


def plain_arrays(workload, method, loop=one_process, **given):
    """Return the weights of a plain loop after some rounds from the package's initial weights."""
    found, rounds = [], itertools.count(1)

    def after_round(weights):
        found[:] = [tensor.detach().cpu().clone().numpy() for tensor in weights.values()]
        if next(rounds) == ROUNDS:
            raise EnoughError

    start = list(network(workload, method).state_dict().values())
    with pytest.raises(EnoughError):
        loop(workload, method, after_round, start=start, **given)
    return found


def plain_fedpcl(workload, _method, after_round, **given):
    fedpcl(workload, after_round, **given)


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    """Return a function that returns the arrays of the package's method; each method runs once."""
    kept = {}

    def run(workload, method):
        if (workload.name, method) not in kept:
            states = tmp_path_factory.mktemp("states")
            grid = LocalGrid(client, run_config=run_config(workload, method, "cpu", str(states)))
            found = []
            run_rounds(grid, workload, method, ROUNDS, 1, lambda r: found.append(r.arrays))
            kept[workload.name, method] = list(found[-1].values())
        return kept[workload.name, method]

    return run


def assert_alike(found, expected, start=()):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    for one, old in zip(found, start, strict=False):
        if old.is_floating_point() and old.ndim > 1:
            assert np.abs(one - old.numpy()).max() > 1e-5


def assert_nearly_alike(found, expected):
    """Adam enlarges gradients that are only rounding errors: such numbers may differ by more."""
    for one, other in zip(found, expected, strict=True):
        difference = np.abs(one - other)
        assert np.quantile(difference, 0.98) < 1e-6
        assert difference.max() < 1e-4


@pytest.mark.parametrize("method", TINY.methods)
def test_one_process_gives_the_packages_weights(packaged, method):
    start = network(TINY, method).state_dict().values()
    assert_alike(plain_arrays(TINY, method), packaged(TINY, method), start)


def test_coprefls_meta_step_is_in_it(packaged):
    """FedAvg, which has no meta step, ends with weights that differ from CoPreFL's."""
    assert np.abs(plain_arrays(TINY, "fedavg")[0] - packaged(TINY, "coprefl")[0]).max() > 1e-4


def test_two_processes_give_the_packages_weights(packaged):
    found = plain_arrays(TINY, "coprefl", several_processes)
    assert_alike(found, packaged(TINY, "coprefl"))


@pytest.mark.parametrize("method", HEADS.methods)
def test_heads_end_as_in_the_package(packaged, method):
    loop = plain_fedpcl if method == "fedpcl" else one_process
    assert_nearly_alike(plain_arrays(HEADS, method, loop), packaged(HEADS, method))


def test_resnet18_has_the_packages_arrays():
    from benchmarks.bare import network as plain_network

    found = plain_network(WORKLOADS["resnet18"]).state_dict()
    expected = network(WORKLOADS["resnet18"], "fedavg").state_dict()
    assert [t.shape for t in found.values()] == [t.shape for t in expected.values()]
    assert list(found) == list(expected)


@pytest.mark.parametrize("method", ["coprefl", "fedpcl"])
def test_a_device_that_is_not_the_cpu_gives_the_same(packaged, method):
    """The device is simulated; nobody has run the benchmark on a GPU yet."""
    workload = HEADS if method == "fedpcl" else TINY
    loop = plain_fedpcl if method == "fedpcl" else one_process
    with accelerator() as operations:
        found = plain_arrays(workload, method, loop, device=DEVICE)
    assert operations.on_device > 100
    assert_nearly_alike(found, packaged(workload, method))


@pytest.mark.parametrize("name", ["workloads", "processes", "bare", "bare_heads", "residents"])
def test_the_plain_loops_use_nothing_of_the_package(name):
    """Neither do they import Flower; only functions that run the grids import both."""
    tree = ast.parse((Path(benchmarks.__file__).parent / f"{name}.py").read_text())
    found = {one.module for one in tree.body if isinstance(one, ast.ImportFrom)}
    found |= {a.name for one in tree.body if isinstance(one, ast.Import) for a in one.names}
    allowed = {f"benchmarks.{one}" for one in ("workloads", "processes", "bare")}
    wrong = [m for m in found if m.startswith(("coprefl", "flwr", "benchmarks"))]
    assert set(wrong) <= allowed


def test_every_batch_of_a_workload_is_full():
    for workload in WORKLOADS.values():
        part = 0.8 if "coprefl" in workload.methods else 1
        assert workload.local_steps * workload.batch_size <= part * workload.samples_per_client
        assert torch.Size(workload.shape).numel() > 0
