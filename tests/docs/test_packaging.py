"""The files of the wheel and the sdist, name clashes with users' packages, and the version."""

import re
import subprocess
import sys
import tomllib
import zipfile

import pytest

import coprefl_flwr
from tests.common.simulation import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from the current sources."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT],
        check=True,
        timeout=300,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_contains_only_coprefl_flwr(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"coprefl_flwr"}
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "coprefl_flwr").rglob("*.*")
        if path.suffix in (".py", ".html")
    }
    assert sources <= set(names)
    assert "coprefl_flwr/py.typed" in names
    (licence,) = (name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
    assert zipfile.ZipFile(wheel).read(licence) == (ROOT / "LICENSE").read_bytes()
    script = zipfile.ZipFile(wheel).read("coprefl_flwr/simulate.sh")
    assert script == (ROOT / "examples" / "simulate.sh").read_bytes()


def test_wheel_works_next_to_a_package_named_strategies(wheel, tmp_path):
    """The wheel works next to an app whose top-level package is called `strategies`."""
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "__init__.py").write_text("MINE = 'mine'\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import strategies\n"
        "from coprefl_flwr.strategies import CoPreFL\n"
        "import coprefl_flwr\n"
        "print(strategies.MINE, CoPreFL.__name__, coprefl_flwr.__file__)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(wheel)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    mine, ours, where = run.stdout.split()
    assert (mine, ours) == ("mine", "CoPreFL")
    assert str(wheel) in where


def test_version_is_the_same_in_all_files():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    changes = re.search(r"^## \[(\d.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert coprefl_flwr.__version__ == project == cited[1] == changes[1]
    assert f"Version {project.rpartition('.')[0]}." in readme


def test_sdist_omits_the_links_at_the_top():
    """Earlier, the build found strategies and clients through the links, not in the package."""
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    named = built["targets"]["sdist"]["only-include"]
    assert {"coprefl_flwr", "docs", "tests", "mkdocs.yml"} <= set(named)
    for name in named:
        assert (ROOT / name).exists()
        assert not (ROOT / name).is_symlink()


def test_required_torch_does_not_run_code_from_weights():
    """CVE-2025-32434: before torch 2.6, `torch.load(weights_only=True)` could run code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = "\n".join(project["dependencies"])
    lowest = dict(re.findall(r"^(torch|torchvision)>=([\d.]+)$", needed, re.MULTILINE))
    versions = {name: tuple(map(int, version.split("."))) for name, version in lowest.items()}
    assert versions["torch"] >= (2, 6)
    assert versions["torchvision"] >= (0, 21)
