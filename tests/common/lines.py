"""Count lines of code: without docstrings, comments and blank lines.

python -m tests.common.lines [FOLDER ...]     counts by folder; default: the package
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


def lines_of(text):
    """Return how many lines of code a Python file has."""
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            found.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(found)


def by_folder(root):
    """Return {name of a folder or file directly in `root`: its lines of code}."""
    found = Counter()
    for path in sorted(root.rglob("*.py")):
        found[path.relative_to(root).parts[0]] += lines_of(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    for root in map(Path, sys.argv[1:] or [PACKAGE]):
        counts = by_folder(root)
        for name, number in counts.items():
            print(f"{number:7,} {name}")
        print(f"{counts.total():7,} in all, {root}")
