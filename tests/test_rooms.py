"""The layout of the package and its tests: imports, lengths of files, and places of tests."""

import ast
from pathlib import Path

import coprefl_flwr
from tests.common.lines import by_folder, guards_of, lines_of

PACKAGE = Path(coprefl_flwr.__file__).parent
TESTS = Path(__file__).parent

ABOVE = {
    "cli": {"recipes", "studies"},
    "api": {"studies", "report", "methods"},
    "choosing": {"api", "recipes", "studies", "report", "methods"},
    "recipes": {"server_app", "studies", "report", "methods", "testing"},
    "testing": {"studies", "methods", "simulation"},
    "server_app": {"studies"},
    "client_app": {"studies"},
    "simulation": {"server_app", "client_app", "studies"},
    "studies": {"methods", "report"},
    "methods": set(),
    "report": set(),
    "strategies": {"federation", "learning", "models"},
    "clients": {"federation", "learning", "data", "models"},
    "grids": {"federation"},
    "learning": {"data", "models"},
    "federation": {"data", "models"},
    "models": {"data"},
    "data": set(),
}
"""By room (a subpackage or top module): the rooms that it may import in addition to FOUNDATION."""
LOWER = {"strategies", "clients", "grids", "federation", "learning", "data", "models"}
UPPER = (
    "cli",
    "choosing",
    "api",
    "recipes",
    "testing",
    "server_app",
    "client_app",
    "simulation",
    "studies",
    "methods",
    "report",
)
FOUNDATION = {
    "arrays",
    "errors",
    "files",
    "options",
    "named",
    "object_code",
    "plugins",
    "seeds",
    "transfer",
}
"""Small files that every room may import, and that import only each other."""


PROGRAMS = {"chaos", "faults", "hosts", "kept", "mistakes", "records"}
"""Folders of tests/ with programs, from which pytest runs few tests or none."""
OF_SEVERAL = {"benchmarks", "deployment", "docs", "examples", "gpu", "integration"}
"""Folders with tests of several modules, or of files outside the package."""


BUDGET, BUDGET_OF_TESTS, GUARDS = 17_900, 27_300, 800
"""Maximum lines of code of the package, of its tests, and of the package's guards.

`python -m tests.common.lines` counts them. A budget rises only by the lines of a new capability: up
to 17,930 and 24,000 with the capabilities to come. Lower it if you remove mechanisms.
"""


def room_of(module):
    """Return the room of a module such as "coprefl_flwr.data.npz"."""
    return module.split(".")[1] if "." in module else ""


def imported(path):
    """Return the rooms that a file imports, also inside of functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "coprefl_flwr":
            names |= {f"coprefl_flwr.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return {room_of(name) for name in names if name.startswith("coprefl_flwr")} - {""}


def files():
    """Return {file of the package: its room}."""
    rooms = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            rooms[path] = parts[0]
    return rooms


def test_imports_run_one_way():
    wrong = []
    for path, room in files().items():
        allowed = FOUNDATION | {room}
        if room not in FOUNDATION:
            allowed |= ABOVE[room] | (LOWER if room in UPPER else set())
        for other in sorted(imported(path) - allowed):
            wrong.append(f"{path.relative_to(PACKAGE)} imports {other}")
    assert wrong == []


def test_no_two_rooms_import_each_other():
    of_rooms = {}
    for path, room in files().items():
        of_rooms.setdefault(room, set()).update(imported(path) - {room})
    both = [(a, b) for a, imports in of_rooms.items() for b in imports if a in of_rooms.get(b, ())]
    assert both == []


def imports_of(path):
    """Return the files of the package's modules that a file imports when it is loaded."""
    files = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coprefl_flwr"):
            base = PACKAGE.joinpath(*node.module.split(".")[1:])
            for name in [base, *(base / alias.name for alias in node.names)]:
                files |= {file for file in (name.with_suffix(".py"),) if file.exists()}
    return files


def test_no_modules_import_each_other_in_a_circle():
    """The loop removes the modules that import no remaining module, until none is left."""
    remaining = {path: imports_of(path) for path in PACKAGE.rglob("*.py")}
    while free := {path for path, imports in remaining.items() if not imports & remaining.keys()}:
        remaining = {path: imports for path, imports in remaining.items() if path not in free}
    assert sorted(remaining) == []


def test_no_file_is_longer_than_450_lines():
    lengths = {path: len(path.read_text().splitlines()) for path in files()}
    assert {str(path): length for path, length in lengths.items() if length > 450} == {}


def test_docstrings_comments_and_blank_lines_are_no_code():
    text = '"""Say."""\n\n# Why.\ndef f(\n    a,\n):\n    """Do."""\n    return "text"  # End.\n'
    assert lines_of(text) == 4


def test_lines_that_only_refuse_are_guards():
    text = "if a < 0:\n    raise ValueError(a)\nif a:\n    b = a\n    raise b\n"
    checks = "\ndef _check(a):\n    return a\n"
    assert (guards_of(text), guards_of(text + checks)) == (2, 4)


def test_package_and_tests_keep_to_their_budgets():
    assert by_folder(PACKAGE).total() <= BUDGET
    assert by_folder(PACKAGE, guards_of).total() <= GUARDS
    assert by_folder(TESTS).total() <= BUDGET_OF_TESTS


def outside(*folders):
    """Return the Python files of tests/ outside these folders, with paths relative to tests/."""
    paths = (path.relative_to(TESTS) for path in TESTS.rglob("*.py"))
    return sorted(path for path in paths if not {*folders} & {path.parts[0]})


def test_the_tests_of_a_module_have_its_name():
    """tests/ROOM/test_NAME.py tests ROOM/NAME.py; tests across modules are in integration/."""
    tests = [path for path in outside("common", *PROGRAMS, *OF_SEVERAL) if "test_" in path.name]
    modules = {path: path.with_name(path.name.removeprefix("test_")) for path in tests}
    modules.pop(Path(__file__).relative_to(TESTS))
    assert len(modules) > 100
    assert [str(path) for path, name in modules.items() if not (PACKAGE / name).exists()] == []


def test_what_tests_share_is_in_one_place():
    others = [path.name for path in outside("common", *PROGRAMS)]
    assert [name for name in others if not name.startswith("test_") and name != "conftest.py"] == []
