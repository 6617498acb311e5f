"""A strategy's file reads like the algorithm in its paper, and is short enough to see at once."""

import ast
from pathlib import Path

import pytest

import coprefl_flwr.strategies
from coprefl_flwr.strategies import RoundStrategy

FOLDER = Path(coprefl_flwr.strategies.__file__).parent
VARIANTS = {"coprefl_std.py", "fedyogi.py", "ncm.py", "ridge.py"}
"""Files of methods that change one line in the round of another method."""
INFRASTRUCTURE = {"__init__"}
ALGORITHMS = sorted(path.name for path in FOLDER.glob("*.py") if path.stem not in INFRASTRUCTURE)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_file_has_90_lines_and_its_round_30_at_most(name):
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= 90
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    programs = [n for n in functions if n.name == "round"]
    assert len(programs) == (name not in VARIANTS)
    assert all(program.end_lineno - program.lineno < 30 for program in programs)


def test_every_strategy_has_a_file_of_its_own():
    strategies = [
        one
        for one in vars(coprefl_flwr.strategies).values()
        if isinstance(one, type) and issubclass(one, RoundStrategy) and one is not RoundStrategy
    ]
    own = [one for one in strategies if "round" in vars(one)]
    assert len(own) == len({one.__module__ for one in own}) == len(ALGORITHMS) - len(VARIANTS)
    assert len({one.__module__ for one in strategies}) == len(ALGORITHMS)
