"""YAML: error messages with the line of a mistake, and only plain values."""

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.yaml_file import parse_yaml, read_yaml

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


def test_values_and_their_lines():
    tree, lines = parse_yaml(TEXT, "file.yaml")
    assert tree == {
        "title": "2026-01-31",
        "settings": {"rate": 0.001, "quoted": "1e-3", "list": [1, [True, None]]},
    }
    # The value of a key may begin on the next line.
    assert lines["settings",] == "file.yaml, line 3"
    assert lines["settings", "list"] == "file.yaml, line 6"
    assert [lines["settings", "list", at] for at in (0, 1)] == [
        "file.yaml, line 7",
        "file.yaml, line 8",
    ]
    assert lines["settings", "list", 1, 0] == "file.yaml, line 8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\n", "file.yaml, line 3: not YAML: "),
        ("a: 1\n\tb: 2\n", "file.yaml, line 2: not YAML: "),
        ("a: 1\n---\nb: 2\n", "file.yaml, line 2: not YAML: "),
        ("a: \x07\n", "file.yaml: not YAML: "),
        ("", "file.yaml is empty"),
        ("# nothing\n", "file.yaml is empty"),
        ("a: 1\nb: 2\na: 3\n", "file.yaml, line 3: the key 'a' occurs twice"),
        ("a:\n  b: 1\n  b: 1\n", "file.yaml, line 3: the key 'b' occurs twice"),
        ("a: 1\n[b]: 2\n", "file.yaml, line 2: a key must be a text"),
        ("a: 1\nb: &x [*x]\n", "file.yaml, line 2: an alias that contains itself"),
        ("a: 1\nb: !!int three\n", "file.yaml, line 2: 'three' is not of the type int"),
        ("a: 1\nb: !!bool maybe\n", "file.yaml, line 2: 'maybe' is not of the type bool"),
        ('a: 1\nb: !!int ""\n', "file.yaml, line 2: '' is not of the type int"),
    ],
)
def test_what_is_no_plain_yaml(text, message):
    assert refusal(text).startswith(message)


@pytest.mark.parametrize(
    ("text", "is_about_spaces"),
    [
        ("a: 1\n\tb: 2\n", True),
        ("a:\n\t- 2\n", True),
        ("a:\n  b:1\n  c: 2\n", True),
        ("a:1\nb:2\nc: 3\n", True),
        ("a:\n  b: 1\n c: 2\n", True),
        ("a:\n  b: 1\n   c: 2\n", True),
        ("a: b: c\n", True),
        ("a: [1, 2\n", False),
        ("a: 1\n---\nb: 2\n", False),
    ],
)
def test_an_error_of_spaces_and_colons_has_a_hint(text, is_about_spaces):
    hint = "; indent with spaces; a key needs a space after its colon; "
    assert (hint in refusal(text)) == is_about_spaces


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: !!python/object/apply:pathlib.Path.touch [MARK]\n",
        "a: 1\nb: !!python/object/apply:pathlib.Path [MARK]\n",
        "a: 1\n? !!python/object/apply:os.getcwd []\n: 2\n",
        "a: 1\n!!python/name:os.system b: 2\n",
        "a: 1\nb: !own 2\n",
        "a: 1\nb: !!binary aGVsbG8=\n",
        "a: 1\nb: !!set {x}\n",
        "a: &x {k: 1}\n<<: *x\n",
    ],
)
def test_tags_make_nothing(text, tmp_path):
    mark = tmp_path / "mark"
    line = refusal(text.replace("MARK", str(mark)))
    assert line.startswith("file.yaml, line 2: ")
    assert line.endswith("is not allowed, only plain values are")
    assert not mark.exists()


def test_an_alias_stands_for_what_it_names():
    assert parse_yaml("a: &x [1]\nb: *x\n", "f")[0] == {"a": [1], "b": [1]}


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: \xe9"])
def test_a_file_that_is_no_text(content, tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"file\.yaml is not a text in UTF-8"):
        read_yaml(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


def test_aliases_of_aliases_are_bounded():
    """Each line has ten times the values of the line before: ten lines would not fit in memory."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    line = refusal("\n".join(lines))
    assert line == "file.yaml, line 1: more than 100000 values, with all aliases written out"


@pytest.mark.parametrize(("depth", "line"), [(60, "within each other"), (5000, "too deep")])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_brackets_within_brackets(depth, line, brackets):
    opening = "[" if brackets == "[]" else "{a: "
    text = opening * depth + brackets[1] * depth
    assert line in refusal(f"x: {text}")


def test_a_file_larger_than_any_recipe(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(b"# " + b"x" * 2**22)
    with pytest.raises(SettingsError, match=r"file\.yaml: has more than 4194304 bytes"):
        read_yaml(path)
