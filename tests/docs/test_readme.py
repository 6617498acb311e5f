"""The README: short, with the code as it is, and no number that a linked page does not derive."""

import inspect
import re
import textwrap

import coprefl_flwr as cp
from tests.common.simulation import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.-])[+-]?\d+(?:[.,]\d+)*")
LINK = re.compile(r"\]\(([^)#\s:]+\.md)(?:#[^)]*)?\)")


def blocks(language):
    """Return the README's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.M | re.S)


def page(name):
    """Return a page of docs/ without its line breaks."""
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def test_readme_has_at_most_130_lines():
    """Earlier, it had 806 lines, and then 200."""
    assert README.count("\n") <= 130


def test_first_40_lines_say_what_it_is_for_whom_and_what_the_commands_print():
    first = "\n".join(README.splitlines()[:40])
    for part in ("Clients pre-train one model together", "It is for people who"):
        assert part in " ".join(first.split())
    assert blocks("sh")[0] in first
    table = blocks("text")[0]
    assert table in first
    assert table in (ROOT / "docs" / "start" / "python.md").read_text(encoding="utf-8")


def test_round_of_cyclic_is_shown_as_it_is():
    assert textwrap.dedent(inspect.getsource(cp.Cyclic.round)) in blocks("python")


def test_answer_of_the_choice_is_that_of_the_gallery():
    assert " ".join(blocks("text")[1].split()) in page("notebooks/gallery.md")


def test_every_number_is_on_a_linked_page():
    prose = re.sub(r"^```(?!text).*?^```$", "", README, flags=re.M | re.S)
    prose = re.sub(r"\]\([^)]*\)|<[^>]*>|`[^`\n]+`|^Version \d\S*", "", prose, flags=re.M)
    linked = [(ROOT / path).read_text(encoding="utf-8") for path in LINK.findall(README)]
    found = set(NUMBER.findall("\n".join(linked)))
    numbers = set(NUMBER.findall(prose))
    assert {"+3.00", "94.29", "24"} <= numbers
    assert numbers - found == set()
