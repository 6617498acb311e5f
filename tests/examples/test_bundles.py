"""The app bundles of the repository and of the example apps, in Flower's bundle format 1."""

import io
import shutil
import tomllib
import zipfile

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.utils import is_valid_name

from tests.common.simulation import ROOT

APPS = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def bundle(folder):
    """Return {file of the app's bundle: its bytes}, as `flwr build` writes it."""
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as files:
        return {name: files.read(name) for name in files.namelist()}


@pytest.fixture
def root(tmp_path):
    """Return the repository's app without the other files of the repository."""
    shutil.copytree(ROOT / "coprefl_flwr", tmp_path / "coprefl_flwr")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("app", [None, *APPS], ids=lambda path: path.name if path else "root")
def test_bundle_has_format_1_the_code_and_the_licence(app, root):
    """Flower itself checks the format's rules when it builds a bundle."""
    assert app is None or is_valid_name(app.name) == (True, "")  # `flwr build` asks for it.
    files = bundle(app or root)
    config = tomllib.loads(files["pyproject.toml"].decode())
    named = config["tool"]["flwr"]["app"]
    assert named["fab-format-version"] == 1
    assert named["flwr-version-target"] == PROJECT["tool"]["flwr"]["app"]["flwr-version-target"]
    assert files["LICENSE"] == (ROOT / "LICENSE").read_bytes()
    for reference in named["components"].values():
        assert reference.partition(":")[0].replace(".", "/") + ".py" in files
