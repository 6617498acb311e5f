"""The files of the wheel and the sdist, name clashes with users' packages, and the version."""

import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml

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


def test_the_wheel_holds_coprefl_flwr_and_nothing_else_at_its_top(wheel):
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
    script = zipfile.ZipFile(wheel).read("coprefl_flwr/simulate.sh")
    assert script == (ROOT / "examples" / "simulate.sh").read_bytes()


def test_an_app_with_its_own_strategies_package_imports_ours(wheel, tmp_path):
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


def test_the_links_at_the_top_lead_into_the_package():
    for name in ("strategies", "clients"):
        assert (ROOT / name).resolve() == ROOT / "coprefl_flwr" / name


def test_the_readme_says_how_to_end_what_flwr_run_leaves_and_how_to_install_less():
    """Earlier, the README stated neither, and a new user lost the first hour with it."""
    text = (ROOT / "README.md").read_text()
    for page in (text, (ROOT / "docs" / "start" / "flwr-run.md").read_text()):
        begun = page.index("\nflwr run . --stream")
        ended = page.index("kill $(pgrep -f 'flower-superlink")
        assert 0 < page[begun:ended].count("\n") < 15
    about = text[: text.index("5 GB") + 300]
    assert "CPU-only wheels" in about
    assert "(https://pytorch.org/get-started/locally/)" in about


def test_the_version_is_one_wherever_it_stands():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    changes = re.search(r"^## \[(\d.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert coprefl_flwr.__version__ == project == cited[1] == changes[1]
    assert f"Version {project.rpartition('.')[0]}." in readme


def test_the_sdist_is_made_without_the_links_at_the_top():
    """Earlier, the build found strategies and clients through the links, not in the package."""
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    named = built["targets"]["sdist"]["only-include"]
    assert {"coprefl_flwr", "docs", "tests", "mkdocs.yml"} <= set(named)
    for name in named:
        assert (ROOT / name).exists()
        assert not (ROOT / name).is_symlink()


def test_no_torch_is_allowed_that_runs_code_from_weights_alone():
    """CVE-2025-32434: before torch 2.6, `torch.load(weights_only=True)` could run code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = "\n".join(project["dependencies"])
    lowest = dict(re.findall(r"^(torch|torchvision)>=([\d.]+)$", needed, re.MULTILINE))
    versions = {name: tuple(map(int, version.split("."))) for name, version in lowest.items()}
    assert versions["torch"] >= (2, 6)
    assert versions["torchvision"] >= (0, 21)


@pytest.mark.parametrize(
    ("kilobytes", "jobs"),
    [(30_000_000, 4), (13_000_000, 3), (5_000_000, 1), (500_000, 1), (None, 4)],
)
def test_fewer_jobs_of_tests_run_at_once_where_memory_is_short(kilobytes, jobs, tmp_path):
    """Earlier, four jobs always ran; if memory was short, Ray killed the workers of two tests."""
    file = tmp_path / "meminfo"
    if kilobytes is not None:
        file.write_text(f"MemTotal: 32000000 kB\nMemAvailable: {kilobytes} kB\n")
    shown = subprocess.run(
        ["make", "--dry-run", "tests", f"MEMINFO={file}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"--jobs={jobs} " in shown.stdout


def test_the_page_on_citing_has_the_entries_of_the_citation_file():
    page = " ".join((ROOT / "docs" / "cite.md").read_text().split())
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f"version = {{{cited['version']}}}" in page
    assert len(cited["references"]) == 3
    for paper in cited["references"]:
        people = [f"{one['family-names']}, {one['given-names']}" for one in paper["authors"]]
        assert f"author = {{{' and '.join(people)}}}" in page
        assert f"title = {{{paper['title']}}}" in page
