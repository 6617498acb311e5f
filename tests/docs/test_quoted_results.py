"""Differences that pages quote are on the two pages of results, with the same interval."""

import re

import pytest

from tests.common.simulation import ROOT

NUMBER = r"[+-]?\d+\.\d+"
QUOTED = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/faq.md"])
def test_quoted_interval_is_on_a_page_of_results(name):
    pages = [(ROOT / "docs" / page).read_text("utf-8") for page in ("claims.md", "which-start.md")]
    results = " ".join("".join(pages).replace("\\", "").split())
    page = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    quoted = [found[0] for found in QUOTED.finditer(page)]
    assert quoted
    assert [one for one in quoted if one not in results] == []


def test_readme_compares_with_intervals():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(QUOTED.findall(readme)) >= 3
    assert not re.search("points ahead|level with|no better than", readme)
