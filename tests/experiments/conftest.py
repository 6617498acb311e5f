"""Fixtures of the studies' tests."""

import pytest

from tests.tiny_study import tiny_study, write_images


@pytest.fixture(scope="session")
def tiny_images(tmp_path_factory):
    """The path of the tiny study's images."""
    path = tmp_path_factory.mktemp("images") / "tiny.npz"
    write_images(path)
    return path


@pytest.fixture
def tiny_settings(tiny_images, tmp_path):
    """The settings of a tiny study in a folder of its own."""
    return tiny_study(tiny_images, tmp_path)
