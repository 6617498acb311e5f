"""The package has a budget of lines of code."""

from tests.lines import PACKAGE, by_folder, lines_of

BUDGET = 19_110
"""Lines of code at most; a change that takes mechanisms out lowers it."""


def test_docstrings_comments_and_blank_lines_are_no_code():
    text = '"""Say."""\n\n# Why.\ndef f(\n    a,\n):\n    """Do."""\n    return "text"  # End.\n'
    assert lines_of(text) == 4


def test_the_package_keeps_to_its_budget():
    assert by_folder(PACKAGE).total() <= BUDGET
