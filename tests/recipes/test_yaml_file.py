"""YAML: error messages with the line of a mistake, and only plain values."""

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.yaml_file import parse_yaml

TEXT = """\
# A comment.
title: 2026-01-31
settings:
  rate: 1e-3
  quoted: "1e-3"
  list:
    - 1
    - [true, null]
"""


def refusal(text):
    with pytest.raises(SettingsError) as caught:
        parse_yaml(text, "file.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_parsed_yaml_has_values_and_the_line_of_each():
    tree, lines = parse_yaml(TEXT, "file.yaml")
    assert tree == {
        "title": "2026-01-31",
        "settings": {"rate": 0.001, "quoted": "1e-3", "list": [1, [True, None]]},
    }
    # The value of a key may begin on the next line.
    assert lines["settings",] == "file.yaml, line 3"
    assert lines["settings", "list"] == "file.yaml, line 6"
    assert lines["settings", "list", 0] == "file.yaml, line 7"
    assert lines["settings", "list", 1, 0] == "file.yaml, line 8"
    assert parse_yaml("a: &x [1]\nb: *x\n", "f")[0] == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\n", "file.yaml, line 3: not YAML: "),
        ("a: 1\n---\nb: 2\n", "file.yaml, line 2: not YAML: "),
        ("a:\n  b: 1\n  b: 1\n", "file.yaml, line 3: not YAML: the key 'b' occurs twice"),
        ("a: 1\n[b]: 2\n", "file.yaml, line 2: not YAML: expected a scalar node"),
        ("a: 1\nb: !own 2\n", "file.yaml, line 2: not YAML: could not determine a constructor"),
    ],
)
def test_text_that_is_not_plain_yaml_is_refused_with_its_line(text, message):
    assert refusal(text).startswith(message)


def test_yaml_tags_run_no_code(tmp_path):
    mark = tmp_path / "mark"
    tag = "!!python/object/apply:pathlib.Path.touch"
    assert "file.yaml, line 2: not YAML: could not" in refusal(f"a: 1\nb: {tag} [{mark}]\n")
    assert not mark.exists()
