"""The plain loops, with which all runners are compared, give the package's results without it."""

import itertools

import numpy as np
import pytest

from benchmarks.bare import one_process, several_processes
from benchmarks.bare_heads import fedpcl
from benchmarks.federation import client, network, run_config, run_rounds
from benchmarks.workloads import WORKLOADS
from coprefl_flwr.grids import LocalGrid

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
def test_plain_loop_has_the_weights_of_the_package(packaged, method):
    start = network(TINY, method).state_dict().values()
    assert_alike(plain_arrays(TINY, method), packaged(TINY, method), start)


@pytest.mark.slow
def test_plain_loop_in_two_processes_has_the_weights_of_the_package(packaged):
    found = plain_arrays(TINY, "coprefl", several_processes)
    assert_alike(found, packaged(TINY, "coprefl"))


@pytest.mark.parametrize("method", HEADS.methods)
def test_plain_heads_have_the_weights_of_the_package(packaged, method):
    loop = plain_fedpcl if method == "fedpcl" else one_process
    assert_nearly_alike(plain_arrays(HEADS, method, loop), packaged(HEADS, method))
