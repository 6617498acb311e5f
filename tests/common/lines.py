"""Count lines of code: without docstrings, comments and blank lines.

python -m tests.common.lines [FOLDER ...]             counts by folder; default: the package
python -m tests.common.lines --guards [FOLDER ...]    only the lines of guards
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "coprefl_flwr"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
NO_CODE |= {tokenize.ENDMARKER}


def numbers_of(text):
    """Return the numbers of a Python file's lines of code."""
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            found.difference_update(range(node.lineno, node.end_lineno + 1))
    return found


def lines_of(text):
    """Return how many lines of code a Python file has."""
    return len(numbers_of(text))


def guards_of(text):
    """Return how many lines of a Python file only refuse something.

    These are: an `if` whose body only raises, with its condition and message, and whole functions
    whose name begins with `check`.
    """
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Raise):
            found.update(range(node.lineno, node.body[0].end_lineno + 1))
        if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("check"):
            found.update(range(node.lineno, node.end_lineno + 1))
    return len(found & numbers_of(text))


def by_folder(root, count=lines_of):
    """Return {name of a folder or file directly in `root`: its lines, as `count` counts them}."""
    found = Counter()
    for path in sorted(root.rglob("*.py")):
        found[path.relative_to(root).parts[0]] += count(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    arguments = sys.argv[1:]
    guards = arguments[:1] == ["--guards"]
    for root in map(Path, arguments[guards:] or [PACKAGE]):
        counts = by_folder(root, guards_of if guards else lines_of)
        for name, number in counts.items():
            print(f"{number:7,} {name}")
        print(f"{counts.total():7,} in all, {root}")
