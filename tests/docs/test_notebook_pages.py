"""The pages of the notebooks have the cells of their scripts."""

import re

import pytest

from tests.common.simulation import ROOT

SCRIPTS = sorted((ROOT / "examples" / "notebooks").glob("*.py"))


def cells(script):
    """Yield the text of every cell of a script as the page has it."""
    for part in script.read_text().split("# %%")[1:]:
        head, _, body = part.partition("\n")
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


def test_all_five_notebooks_are_tested():
    assert len(SCRIPTS) == 5
