"""Fixtures of all tests."""

import os

import pytest
import torch

from coprefl_flwr import plugins
from tests.common.data import write_images
from tests.common.federation import Federation
from tests.common.studies import tiny_study

# Tests of recipes start no Ray unless they ask for workers.
os.environ.setdefault("COPREFL_WORKERS", "1")
# Ray reads it when it is imported, which tests do before `grids.ray.connect` sets it.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")


@pytest.fixture(autouse=True)
def _same_threads():
    """Reset the number of threads after every test, because rounding depends on it."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_file_read_before():
    """Forget the hashes of files of earlier tests, which may have changed these files."""
    plugins._hash_of.cache_clear()


@pytest.fixture
def federation():
    """The tiny federation, which trains with full-batch steps."""
    return Federation.full_batch()


@pytest.fixture
def exact_federation():
    """The tiny federation in float64, whose client i trains with i + 1 full-batch steps."""
    return Federation.exact()


@pytest.fixture
def stochastic_federation():
    """The tiny federation, which trains with small batches."""
    return Federation.stochastic()


@pytest.fixture(scope="session")
def tiny_images(tmp_path_factory):
    """The path of the tiny study's images."""
    path = tmp_path_factory.mktemp("images") / "tiny.npz"
    write_images(path)
    return path


@pytest.fixture
def tiny_settings(tiny_images, tmp_path):
    """The settings of a tiny study in a separate folder."""
    return tiny_study(tiny_images, tmp_path)
