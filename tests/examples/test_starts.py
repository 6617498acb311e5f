"""The starts of `examples/starts`: their files, their cards, and the numbers of two cards."""

import hashlib
import re
import subprocess
import sys

import pytest

import coprefl_flwr as cp
from coprefl_flwr.models import build_model, load_saved_model
from tests.common.simulation import ROOT

STARTS = ROOT / "examples" / "starts"
FOLDERS = sorted(path.parent for path in STARTS.glob("*/README.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_files_are_those_of_the_card(folder):
    card = (folder / "README.md").read_text()
    weights = folder / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert f"| SHA-256 of `model.safetensors` | `{digest}` |" in card
    subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    assert weights.stat().st_size <= 300_000
    _, about = load_saved_model(folder)
    assert not {"machine", "commit"} & about.keys()
    assert "not stated" not in card.lower()
    assert f"\n| {folder.name} | " in card


def test_zoo_is_small_and_listed():
    page = (STARTS / "README.md").read_text()
    assert re.findall(r"^\| \[.*\]\((.*)/README.md\)", page, re.MULTILINE) != []
    assert {*re.findall(r"\((\S+)/README.md\) \|", page)} == {folder.name for folder in FOLDERS}
    assert 6 <= len(FOLDERS) <= 10
    files = [path for folder in FOLDERS for path in folder.iterdir()]
    assert sum(path.stat().st_size for path in files) <= 2_000_000


@pytest.mark.parametrize("name", ["glyphs-coprefl", "shakespeare"])
def test_start_is_loaded_without_this_package(name):
    """The block of the card for PyTorch alone is run where this package cannot be imported."""
    code = BLOCK.findall((STARTS / name / "README.md").read_text())[1]
    code = f"import sys\nsys.modules['coprefl_flwr'] = None\n{code}"
    subprocess.run([sys.executable, "-c", code], cwd=STARTS / name, check=True)


def rows(table):
    """Return the numbers of each row of a table in Markdown."""
    lines = re.findall(r"^\| ([\w-]+) \| (.*±.*) \|$", table, re.MULTILINE)
    return {name: [float(n) for n in re.findall(r"-?\d+\.\d\d", text)] for name, text in lines}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glyphs-fedavg", "fractals"])
def test_numbers_of_a_card_are_computed_again(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(STARTS))
    from make import measured

    card = (STARTS / name / "README.md").read_text()
    classes = int(re.search(r"^\| Outputs \| (\d+) \|$", card, re.MULTILINE)[1])
    result = measured(name, STARTS / name, build_model("lenet5", classes, (1, 28, 28)))
    again = cp.save_start(STARTS / name, tmp_path / "again", name=name, result=result)
    found = rows((again / "README.md").read_text())
    assert found.keys() == {"random", name}
    for row, numbers in found.items():
        # Another processor can round differently, which can change the class of a few samples.
        assert rows(card)[row] == pytest.approx(numbers, abs=1.0)
        assert len(numbers) == (4 if row == "random" else 8)
