"""Pages, docstrings and messages are in plain English, and blocks of code fit into the site."""

import ast
import re
import textwrap

import pytest

from docs import tables

GENERATED = ("changelog", "notebooks")
"""Pages and folders of docs/ that are written from other files, so they are not checked."""

TOP = ("README", "AGENTS", "CHANGELOG", "CONTRIBUTING", "SECURITY")
OTHERS = [tables.ROOT / f"{name}.md" for name in TOP]
OTHERS += sorted((tables.ROOT / "examples").glob("*/README.md"))
"""Pages outside docs/, which are also checked."""

COLUMNS, PRINTED = 80, 100
"""The maximum number of characters of a line of code, which the site then shows without scrolling,
and of a line of `text`, which is the output of a program and cannot be broken."""

WORDS = {
    r"in (the )?place of": "old-fashioned: write 'instead of'",
    r"told": "it is unclear who tells whom: write 'reported', 'named' or 'given'",
    r"but for|(all|any|nothing|none) but(?! not)": "read as a contrast: write 'except'",
    r"one's own|an? [\w-]+ of (its|their|your) own|of (its|their|your) own(?! \w)": "a riddle: "
    "write 'your own X', 'its X' or 'a separate X'",
    r"of (yours|ours|theirs)": "write 'your X'",
    r"(go|goes|going|went) on(?! to)": "write 'continue'",
    r"anew": "write 'again'",
    r"so (many|much)(?! (as|that))": "the number is elsewhere: write N, or its name",
    r"less (what|that|those|the|its)": "arithmetic in words: write 'minus' or 'without'",
    r"stands?|stood": "figurative: write 'is', 'is stored in' or 'means'",
    r"lies?|lay": "figurative: write 'is in'",
    r"beside": "write 'next to' for a place, 'in addition to' otherwise",
    r"whoever|whosoever": "write 'anyone who' or name the person",
    r"what is (there|left behind|said|made|found)": "names nothing: write the noun",
    r"says (of|nothing)": "write 'states', 'describes' or 'shows'",
    r"at hand": "write 'available'",
}
"""Regular expressions of phrases that new readers had to read twice, with a reason or a better
phrase."""

BLOCK = re.compile(r"^( *)(`{3,})([^\n]*)\n(.*?)^\1\2$", re.M | re.S)
CODE_OR_LINK = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\{ ?#[^}]*\}|<!--.*?-->|[\w.-]+(?:[/.][\w-]+)+", re.S
)
"""Text whose words are names: code, links, and also a path or a module without backticks."""

SENTENCE = re.compile(r"[^.:;!?|]+(?:[.:;!?](?!\s)[^.:;!?|]*)*[.:;!?|]?")


def pages():
    """Return {name: path} of all pages that are written by hand."""
    docs = (path.relative_to(tables.PAGES) for path in tables.PAGES.rglob("*.md"))
    written = sorted(path for path in docs if path.with_suffix("").parts[0] not in GENERATED)
    paths = [*(tables.PAGES / path for path in written), *OTHERS]
    return {path.relative_to(tables.ROOT).as_posix(): path for path in paths}


ALL = pages()
PROGRAMS = {
    path.relative_to(tables.ROOT).as_posix(): path
    for folder in ("coprefl_flwr", "examples", "benchmarks", "docs")
    for path in sorted((tables.ROOT / folder).rglob("*.py"))
}
"""The modules of the package, and the programs: their texts are checked, including docstrings."""


def blank(found):
    """Return the match as blanks, so that other text keeps its position on the page."""
    return re.sub(r"[^\n]", " ", found[0])


def unclear(text):
    """Return a line for each phrase of WORDS in a page's prose: line number, sentence, reason."""
    prose = CODE_OR_LINK.sub(blank, BLOCK.sub(blank, text))
    lines = []
    for phrase, reason in WORDS.items():
        spaced = phrase.replace(" ", r"\s+")
        for found in re.finditer(rf"\b(?:{spaced})\b", prose, flags=re.I):
            within = next(one for one in SENTENCE.finditer(prose) if one.end() > found.start())
            number = prose.count("\n", 0, found.start()) + 1
            sentence = " ".join(text[within.start() : within.end()].split())
            lines.append((number, f"line {number}: {found[0]!r} in {sentence!r}: {reason}"))
    return [line for _, line in sorted(lines)]


def wide(text, columns=COLUMNS):
    """Return a line for each line of code that is too long without its block's indentation."""
    lines = []
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(4)) + 1
        # The first column of a diff is a sign.
        most = PRINTED if block[3] == "text" else columns + (block[3] == "diff")
        for number, line in enumerate(textwrap.dedent(block[4]).splitlines(), first):
            if len(line) > most:
                lines.append(f"line {number}: {len(line)} characters: {line}")
    return lines


def texts(program):
    """Return (line, text) of a program's texts of several words, including docstrings."""
    constants = (node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant))
    found = ((node.lineno, node.value) for node in constants if isinstance(node.value, str))
    return [(line, text) for line, text in found if " " in text.strip()]


@pytest.mark.parametrize("name", ALL)
def test_page_is_in_plain_english(name):
    found = unclear(ALL[name].read_text(encoding="utf-8"))
    assert not found, "\n".join([f"{name}:", *found])


@pytest.mark.parametrize("name", PROGRAMS)
def test_docstrings_and_messages_are_in_plain_english(name):
    said = texts(PROGRAMS[name].read_text(encoding="utf-8"))
    found = [f"text at {line}, {one}" for line, text in said for one in unclear(text)]
    assert not found, "\n".join([f"{name}:", *found])


@pytest.mark.parametrize("name", ALL)
def test_code_on_pages_needs_no_scrolling(name):
    # The README, which the site does not have, shows code of the package as it is.
    columns = PRINTED if name == "README.md" else COLUMNS
    found = wide(ALL[name].read_text(encoding="utf-8"), columns)
    assert not found, "\n".join([f"{name}:", *found])


def test_names_of_tests_are_in_plain_english():
    """A failing test's name is the first prose that a contributor reads."""
    paths = sorted((tables.ROOT / "tests").rglob("test_*.py"))
    names = [name for path in paths for name in re.findall(r"def (test_\w+)\(", path.read_text())]
    assert len(names) > 1000
    found = [f"{name}: {line}" for name in names for line in unclear(name.replace("_", " "))]
    assert found == []
