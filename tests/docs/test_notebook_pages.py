"""The pages of the notebooks have the cells of their scripts, and the gallery's programs run."""

import inspect
import re
import sys
import types

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

import coprefl_flwr as cp
from tests.common.simulation import ROOT

SCRIPTS = sorted((ROOT / "examples" / "notebooks").glob("*.py"))


def cells(script):
    """Yield the text of every cell of a script as the page has it."""
    for part in script.read_text().split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if "finding" in head:  # The page has only what it draws and prints.
            continue
        prefix = "# " if "markdown" in head else "# (?=%)"
        yield re.sub(f"^{prefix}|^#$", "", body, flags=re.M).strip()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_notebook_page_has_every_cell_of_its_script(script):
    page = (ROOT / "docs" / "notebooks" / f"{script.stem}.md").read_text()
    at = 0
    for cell in cells(script):
        # On the page, the name of the script is below the title.
        first, _, rest = cell.partition("\n")
        for text in (first, rest.strip()):
            at = page.find(text, at)
            assert at >= 0, f"run `make notebooks`: {script.name} has other cells than its page"
    pictures = re.findall(r"\]\((.*\.png)\)", page)
    kept = (ROOT / "docs" / "notebooks" / script.stem).glob("*.png")
    assert sorted(pictures) == sorted(f"{script.stem}/{one.name}" for one in kept)


def test_all_six_notebooks_are_tested():
    assert len(SCRIPTS) == 6


def shortened(function, **few):
    """Return a function that has at most these numbers of rounds and draws."""
    signature = inspect.signature(function)

    def run(*arguments, **options):
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        bound.arguments |= {name: min(bound.arguments[name], most) for name, most in few.items()}
        return function(*bound.args, **bound.kwargs)

    return run


def test_every_section_of_the_gallery_runs_and_prints_its_finding(monkeypatch, capsys):
    pytest.importorskip("peft")
    script = ROOT / "examples" / "notebooks" / "gallery.py"
    page = (ROOT / "docs" / "notebooks" / "gallery.md").read_text()
    monkeypatch.chdir(script.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(cp, "tasks", shortened(cp.tasks, number=1, clients=4))
    monkeypatch.setattr(cp, "pretrain", shortened(cp.pretrain, rounds=1))
    monkeypatch.setattr(cp, "evaluate_starts", shortened(cp.evaluate_starts, rounds=1))
    monkeypatch.setattr(cp, "choose_start", shortened(cp.choose_start, rounds=3, draws=5))
    monkeypatch.setattr(cp.RoundStrategy, "start", shortened(cp.RoundStrategy.start, num_rounds=4))
    gallery = types.ModuleType("gallery")
    monkeypatch.setitem(sys.modules, "gallery", gallery)
    first, *sections = re.split(r"^# %% \[markdown\]\n(?=# ## )", script.read_text(), flags=re.M)
    titles = [section.partition("](")[0].removeprefix("# ## [") for section in sections]
    assert re.findall(r"^## \[(.*?)\]", page, flags=re.M) == titles
    assert len(titles) == page.count(".png)") == 12
    with mpl.rc_context():
        plt.switch_backend("agg")
        exec(compile(first, str(script), "exec"), vars(gallery))
        for title, section in zip(titles, sections, strict=True):
            exec(compile(section, str(script), "exec"), vars(gallery))
            assert capsys.readouterr().out.strip().endswith("."), title
            plt.close("all")
