"""The drawings of the messages between server and nodes."""

from xml.etree import ElementTree

import pytest

from docs.drawing import exchanges


def test_drawing_has_columns_arrows_and_notes():
    drawn = ElementTree.fromstring(exchanges("server -> node A: w < 3\nnode A: trains\n"))
    kinds = [one.get("class") for one in drawn.iter() if one is not drawn]
    assert [kinds.count(kind) for kind in ("who", "arrow", "note")] == [2, 1, 1]
    assert [one.text for one in drawn if one.get("class") == "what"] == ["w < 3"]
    (arrow,) = (one for one in drawn if one.get("class") == "arrow")
    assert float(arrow.get("x1")) < float(arrow.get("x2"))


def test_unreadable_line_of_a_drawing_is_refused():
    with pytest.raises(ValueError, match="'server sends w' is neither 'A -> B: what' nor"):
        exchanges("server sends w")
