"""Differences that pages quote are those of the page of claims, with the same interval."""

import re

import pytest

from tests.common.simulation import ROOT

NUMBER = r"[+-]?\d+\.\d+"
QUOTED = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/faq.md"])
def test_a_quoted_interval_is_on_the_page_of_claims(name):
    claims = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8").replace("\\", "")
    page = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    quoted = [found[0] for found in QUOTED.finditer(page)]
    assert quoted
    assert [one for one in quoted if one not in claims] == []
