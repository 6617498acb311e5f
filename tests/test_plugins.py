"""A user's code is found by module and name, identified by its text, or refused in one line."""

import re
import sys
import types

import pytest

from coprefl_flwr import plugins
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.named import display_names, parse
from coprefl_flwr.studies.known_methods import METHODS
from tests.common.checks import refusal
from tests.common.processes import new_process

CALLED = "def width(times=1, more=0):\n    return WIDTH * times + more\n"


@pytest.fixture(autouse=True)
def _own_process(monkeypatch, tmp_path):
    """After each test, undo imports from its folder, registrations and COPREFL_ALLOW."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugins, "REGISTERED", {})
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    """Write a file with a function, and a file in the same folder that it imports."""
    (tmp_path / "imported_by_mine.py").write_text("WIDTH = 3\n")
    path = tmp_path / "mine.py"
    path.write_text(f"from imported_by_mine import WIDTH\n\n{CALLED}")
    return path


@pytest.fixture
def allow(monkeypatch):
    """Set COPREFL_ALLOW."""
    return lambda text: monkeypatch.setenv(plugins.VARIABLE, text)


# ---- finding ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "options"),
    [
        ("coprefl", "coprefl", {}),
        ("a.b:f:rate=1e-3,on=true,kind=x", "a.b:f", {"rate": 1e-3, "on": True, "kind": "x"}),
        ("C:/nets/net.py:Net:wide-part=2", "C:/nets/net.py:Net", {"wide-part": 2}),
    ],
)
def test_options_begin_after_the_last_colon_before_a_key(text, place, options):
    assert parse(text) == (place, options)


def test_code_is_found_by_file_and_module(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    for place in (f"{file}:width", "mine:width"):
        text = f"{place}:times=2,more=1"
        assert plugins.is_place("model", text)
        assert plugins.call(text, plugins.find("model", text), ()) == 7
    assert plugins.hash_at("model", "mine:width") == plugins.hash_at("model", f"{file}:width") != ""
    assert not plugins.is_place("model", "narrow")


def test_relative_file_is_found_in_the_folder(file, tmp_path):
    assert plugins.resolved("mine.py:width:times=2", tmp_path) == f"{file}:width:times=2"
    assert plugins.resolved("coprefl:gamma=0.5", tmp_path) == "coprefl:gamma=0.5"
    assert plugins.without_folders(f"{file}:width:times=2") == "mine.py:width:times=2"
    for name in ("two words", "one+two"):
        with pytest.raises(SettingsError, match=r"in settings must not contain .* rename it"):
            plugins.resolved("mine.py:width", tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [("mine.py", "def width():\n    return 4\n"), ("imported_by_mine.py", "WIDTH = 4\n")],
)
def test_changed_file_keeps_its_code_and_hash_until_the_process_ends(file, name, text):
    """The hash is that of the code that runs."""
    place = f"{file}:width"
    width, digest = plugins.find("model", place), plugins.hash_at("model", place)
    (file.parent / name).write_text(text)
    assert plugins.find("model", place) is width
    assert (width(), plugins.hash_at("model", place)) == (3, digest)
    new_process()
    assert plugins.find("model", place)() == 4
    assert plugins.hash_at("model", place) != digest


def test_file_that_does_not_import_is_read_again_when_it_is_mended(file):
    """In a notebook, the user mends the file and runs the cell again."""
    text, helper = file.read_text(), file.parent / "imported_by_mine.py"
    for broken, remedy in {file: text, helper: "WIDTH = 3\n"}.items():
        broken.write_text("def (")
        with pytest.raises(SettingsError, match="does not import"):
            plugins.find("model", f"{file}:width")
        broken.write_text(remedy)
    assert plugins.find("model", f"{file}:width")() == 3


# ---- refusing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "f", r"unknown file 'own.py': did you mean 'own_one.py'"),
        ("def f(:\n", "f", "does not import: .*invalid syntax"),
        ("raise SystemExit(3)\n", "f", "does not import: SystemExit: 3"),
        ("def first():\n    pass\n", "frist", "unknown name 'frist': did you mean 'first'"),
    ],
)
def test_code_that_is_not_found_is_refused_in_one_line(tmp_path, content, name, message):
    (tmp_path / "own_one.py").write_text("")
    if content is not None:
        (tmp_path / "own.py").write_text(content)
    for _ in range(2):
        assert re.search(message, refusal(plugins.find, "model", f"{tmp_path / 'own.py'}:{name}"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("tmies=2", "failed: TypeError: .* unexpected keyword argument 'tmies'"),
        ("times=2,more", "'more' has no value; write more=VALUE"),
        ("times=no", "failed: TypeError: .*"),
    ],
)
def test_wrong_option_of_a_function_is_refused(file, options, message):
    text = f"{file}:width:{options}"
    with pytest.raises(SettingsError, match=message):
        plugins.call(text, lambda times=1, more=0: 1 + times, ())


# ---- hashes -------------------------------------------------------------------------------------


def test_hash_changes_with_the_text(file):
    place = f"{file}:width"
    first = plugins.hash_at("model", place)
    assert plugins.hash_at("model", f"{place}:times=2") == first
    (file.parent / "not_imported.py").write_text("WIDTH = 4\n")
    assert plugins.hash_at("model", place) == first
    file.write_text(file.read_text() + "# a remark\n")
    new_process()
    second = plugins.hash_at("model", place)
    (file.parent / "imported_by_mine.py").write_text("WIDTH = 4\n")
    new_process()
    assert len({first, second, plugins.hash_at("model", place)}) == 3
    assert plugins.hash_at("model", f"{file.parent / 'gone.py'}:f") == ""


@pytest.mark.parametrize(
    "changed", ["part/__init__.py", "part/inner.py", "other.py", "bare/net.py", "both.py"]
)
def test_hash_includes_imported_files(tmp_path, changed):
    """Folders without an `__init__.py`, and the package of an imported module, count too."""
    texts = {
        "part/__init__.py": "",
        "part/inner.py": "import numpy\nfrom ..other import X\nfrom . import Y\n",
        "other.py": "from .................. import above\nimport bare.net\n",
        "bare/net.py": "import top, both\n",
        "both.py": "def (",
        "top.py": "def f():\n    import part.inner\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = plugins.hash_at("model", f"{tmp_path / 'top.py'}:f")
    (tmp_path / changed).write_text(texts[changed] + "# changed\n")
    new_process()
    assert plugins.hash_at("model", f"{tmp_path / 'top.py'}:f") != before


def test_hash_of_an_installed_package_is_that_of_one_file():
    assert plugins.hash_at("model", "json.decoder:JSONDecoder") != ""
    assert plugins.hash_at("model", "json:loads") != plugins.hash_at("model", "json.decoder:x")
    assert plugins.hash_at("model", "no_such_package.nets:Net") == ""


# ---- registering --------------------------------------------------------------------------------


def test_registered_name_is_found():
    def net():
        return 1

    assert not plugins.is_place("model", "net")
    plugins.register("model", "net", net)
    assert plugins.find("model", "net") is net
    assert plugins.brought("model")[0] == "net"
    assert not plugins.is_place("method", "net")
    assert plugins.hash_at("model", "net")
    for wrong, message in {
        ("modle", "net", net): "unknown kind 'modle': did you mean 'model'",
        ("model", "a net", net): "name 'a net': must be letters",
    }.items():
        with pytest.raises(SettingsError, match=message):
            plugins.register(*wrong)


def test_hash_of_a_notebooks_class_changes_with_its_cell(monkeypatch):
    """Its module has no file. The notebook registers the class of the changed cell again."""

    def cell(text):
        module = types.ModuleType("cells")
        monkeypatch.setitem(sys.modules, "cells", module)
        exec(text, vars(module))
        plugins.register("method", "mine", module.Mine)
        return plugins.hash_at("method", "mine")

    text = "from dataclasses import dataclass\n\n@dataclass\nclass Mine:\n    step: float = {}\n\n"
    text += "    def round(self):\n        return self.step{}\n"
    first = cell(text.format(1, ""))
    assert cell(text.format(1, "  # A comment.")) == first
    assert len({first, cell(text.format(2, "")), cell(text.format(1, " + 1"))}) == 3


# ---- COPREFL_ALLOW ------------------------------------------------------------------------------


def is_allowed(place):
    try:
        plugins.check_allowed(place)
    except SettingsError:
        return False
    return True


def test_all_code_is_allowed_without_the_variable(allow):
    allow("")
    assert is_allowed("os:system")
    assert not plugins.is_listed("os:system")  # Code that a model.json names must be listed.
    with plugins.without_code("coprefl report"):
        assert not is_allowed("os:system")


@pytest.mark.parametrize(
    ("text", "place", "allowed"),
    [
        ("none", "os:system", False),
        ("all", "os:system", True),
        ("my_lab", "my_lab:Net", True),
        ("my_lab", "my_lab.nets.small:Net", True),
        ("my_lab", "my_laboratory:Net", False),
        ("my_lab:Net", "my_lab:Net", True),
        ("my_lab:Net", "my_lab:Other", False),
        ("my_lab,none", "os:system", False),
        ("my_lab", "my_lab.py:Net", False),
        ("nets/", "nets/own.py:Net", True),
        ("nets/", "nets/../own.py:Net", False),
        ("nets/own.py", "nets/own.py:Net", True),
        ("nets/own.py:Net", "nets/own.py:Other", False),
    ],
)
def test_allowed_code_is_that_of_the_listed_prefixes(allow, text, place, allowed):
    allow(text)
    assert is_allowed(place) is plugins.is_listed(place) is allowed
    with plugins.without_code("coprefl report"):
        assert is_allowed(place) is allowed


def test_code_that_is_not_allowed_is_not_run(allow, tmp_path, monkeypatch):
    """To find a module of a package, Python would run the package, which writes a file here."""
    package, mark = tmp_path / "leaves_a_mark", tmp_path / "mark"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (package / "inner.py").write_text("def net(num_classes):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    of_file, of_module = f"{package / '__init__.py'}:open", "leaves_a_mark.inner:net"
    for text in ("none", f"my_lab,{tmp_path}/other/"):
        allow(text)
        for place in (of_file, of_module):
            with pytest.raises(SettingsError, match=r"COPREFL_ALLOW = .* does not list this code"):
                plugins.find("model", place)
    # The text of the code is read, but not run.
    hashes = {plugins.hash_at("model", place) for place in (of_file, of_module)}
    assert len(hashes - {""}) == 2
    with plugins.without_code("coprefl report"), pytest.raises(SettingsError, match="report` runs"):
        plugins.find("model", of_module)
    assert "leaves_a_mark" not in sys.modules
    assert not mark.exists()
    allow(f"my_lab,{package}/")
    assert plugins.find("model", f"{package / 'inner.py'}:net")(2) == 1


def test_registered_code_and_built_in_parts_are_allowed(allow):
    allow("none")
    plugins.register("model", "mine", is_allowed)
    assert plugins.find("model", "mine") is is_allowed
    assert plugins.find("partition", "IidPartitioner").__name__ == "IidPartitioner"
    for method in METHODS.values():  # Earlier, each method was refused because of its client.
        assert issubclass(method.client_class, TorchClient)
    with pytest.raises(SettingsError, match="does not list this code; add it"):
        plugins.find("model", "coprefl_flwr.files:write_atomically")


def test_display_names_of_methods_are_those_of_papers():
    """A built-in method's display name has the same letters; options distinguish equal names."""
    names = display_names(METHODS)
    for method, name in names.items():
        assert re.sub("-", "", name.lower()) == re.sub("-", "", method)
        assert name != method or method == "ridge"
    texts = ["coprefl:gamma=0,mu=1", "coprefl:gamma=1,mu=1", "cyclic:rounds=5+qffl"]
    expected = ["CoPreFL:gamma=0", "CoPreFL:gamma=1", "Cyclic+q-FFL"]
    assert list(display_names(texts).values()) == expected
