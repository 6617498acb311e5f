"""The picture of the README's badges."""

from docs import badges


def test_badges_match_pyproject():
    assert badges.PICTURE.read_text(encoding="utf-8") == badges.picture()
    texts = {"Python": "3.11 or newer", "flwr": "1.38 or newer", "licence": "Apache-2.0"}
    assert badges.badges() == texts
