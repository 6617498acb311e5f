"""The drawings of the messages between server and nodes."""

import re
from xml.etree import ElementTree

import pytest

from docs import tables
from docs.drawing import exchanges


def test_a_column_for_each_name_an_arrow_for_each_message_and_a_box_for_each_note():
    drawn = ElementTree.fromstring(exchanges("server -> node A: w < 3\nnode A: trains\n"))
    kinds = [one.get("class") for one in drawn.iter() if one is not drawn]
    assert [kinds.count(kind) for kind in ("who", "arrow", "note")] == [2, 1, 1]
    assert [one.text for one in drawn if one.get("class") == "what"] == ["w < 3"]
    (arrow,) = (one for one in drawn if one.get("class") == "arrow")
    assert float(arrow.get("x1")) < float(arrow.get("x2"))


def test_a_line_that_is_neither_is_refused():
    with pytest.raises(ValueError, match="'server sends w' is neither 'A -> B: what' nor"):
        exchanges("server sends w")


def test_no_text_of_a_page_is_wider_than_its_place():
    """Lines are not broken, so a long text would cross the edge."""
    blocks = [
        block
        for path in tables.PAGES.rglob("*.md")
        for block in re.findall(r"^```exchanges\n(.*?)^```$", path.read_text(), re.M | re.S)
    ]
    assert len(blocks) > 20
    for block in blocks:
        drawn = ElementTree.fromstring(exchanges(block))
        for text in (one for one in drawn if one.get("class") in ("what", "does")):
            limit = 24 if text.get("class") == "does" else 56
            assert len(text.text) <= limit, text.text
