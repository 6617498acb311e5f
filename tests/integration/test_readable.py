"""A strategy's file reads like the algorithm in its paper, and is short enough to see at once."""

import ast
from pathlib import Path

import pytest

import coprefl_flwr.strategies

FOLDER = Path(coprefl_flwr.strategies.__file__).parent
VARIANTS = {
    "coprefl_std.py",
    "fedbabu.py",
    "fedcgs.py",
    "fedcof.py",
    "fedyogi.py",
    "ncm.py",
    "ridge.py",
}
"""Files of methods that change one line in the round of another method."""
INFRASTRUCTURE = {"__init__"}
ALGORITHMS = sorted(path.name for path in FOLDER.glob("*.py") if path.stem not in INFRASTRUCTURE)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_strategy_file_has_at_most_90_lines_and_its_round_30(name):
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= 90
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    programs = [n for n in functions if n.name == "round"]
    assert len(programs) == (name not in VARIANTS)
    assert all(program.end_lineno - program.lineno < 30 for program in programs)
