"""What a user brings is found by its place, told apart by its text, and refused in one line."""

import importlib.metadata
import linecache
import sys
import types

import pytest

from coprefl_flwr import places
from coprefl_flwr.errors import SettingsError


@pytest.fixture(autouse=True)
def _own_path(monkeypatch, tmp_path):
    """What a test imports from its folder ends with it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    """A file with a function, and one beside it that it imports."""
    (tmp_path / "beside_mine.py").write_text("WIDTH = 3\n")
    path = tmp_path / "mine.py"
    path.write_text("from beside_mine import WIDTH\n\ndef width(times=1, more=0):\n"
                    "    return WIDTH * times + more\n")  # fmt: skip
    return path


@pytest.fixture
def clean(monkeypatch):
    """Nothing registered, and no entry point known."""
    monkeypatch.setattr(places, "_registered", {})
    places._entry_points.cache_clear()
    yield
    places._entry_points.cache_clear()


@pytest.mark.parametrize(
    ("text", "place", "options"),
    [
        ("coprefl", "coprefl", {}),
        ("net.py:Net", "net.py:Net", {}),
        ("net.py:Net:width=32,depth=3", "net.py:Net", {"width": 32, "depth": 3}),
        ("a.b:f:rate=1e-3,on=true,kind=x", "a.b:f", {"rate": 1e-3, "on": True, "kind": "x"}),
        ("C:/nets/net.py:Net:wide-part=2", "C:/nets/net.py:Net", {"wide-part": 2}),
    ],
)
def test_options_begin_after_the_last_colon_before_a_key(text, place, options):
    assert places.split_options(text)[0] == place
    assert places.options_of(text) == options


def test_a_file(file):
    assert places.find("model", f"{file}:width")() == 3
    assert (
        places.call(f"{file}:width:times=2,more=1", places.find("model", f"{file}:width"), ()) == 7
    )


def test_a_file_is_read_again_once_it_is_another(file, monkeypatch):
    """Also one of the same size, of the same second: a .pyc would be that of the first."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    first = places.find("model", f"{file}:width")
    assert places.find("model", f"{file}:width") is first
    (file.parent / "beside_mine.py").write_text("WIDTH = 4\n")
    assert places.find("model", f"{file}:width")() == 4
    file.write_text("def width():\n    return 5\n")
    assert places.find("model", f"{file}:width")() == 5


def test_a_relative_file_is_looked_for_in_the_folder(file, tmp_path):
    assert places.resolved("mine.py:width:times=2", tmp_path) == f"{file}:width:times=2"
    assert places.resolved("coprefl:gamma=0.5", tmp_path) == "coprefl:gamma=0.5"
    assert places.portable(f"{file}:width:times=2") == "mine.py:width:times=2"


def test_a_module(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    assert places.find("model", "mine:width")() == 3


def test_an_entry_point(file, monkeypatch, clean):
    monkeypatch.syspath_prepend(str(file.parent))
    entry = importlib.metadata.EntryPoint("wide", "mine:width", places.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    assert places.is_place("model", "wide")
    assert places.find("model", "wide:times=2")() == 3
    assert places.hash_at("model", "wide") == places.hash_at("model", "mine:width") != ""


def test_a_registered_name(clean):
    def net():
        return 1

    assert not places.is_place("model", "net")
    places.register("model", "net", net)
    assert places.find("model", "net") is net
    assert not places.is_place("method", "net")
    assert places.hash_at("model", "net")
    with pytest.raises(SettingsError, match="unknown kind 'modle': did you mean 'model'"):
        places.register("modle", "net", net)
    with pytest.raises(SettingsError, match="name 'a net': must be letters"):
        places.register("model", "a net", net)


def test_what_has_no_source_is_refused(clean):
    with pytest.raises(SettingsError, match="net: its source is not to be found"):
        places.register("model", "net", eval("lambda: 1"))


def test_a_class_of_a_notebook_has_the_text_of_its_cell(clean, monkeypatch):
    """Its module has no file, so `inspect.getsource` finds its functions alone."""

    def cell(text, name="<cell 1>"):
        module = types.ModuleType("cells")
        monkeypatch.setitem(sys.modules, "cells", module)
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
        exec(compile(text, name, "exec"), vars(module))
        places.register("method", "mine", module.Mine)
        return places.hash_at("method", "mine")

    text = (
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Mine:\n    step: float = {}\n\n"
        "    def round(self):\n        return self.step\n"
    )
    first = cell(text.format(1))
    assert cell(text.format(1) + "\nprint\n") == first != cell(text.format(2))
    with pytest.raises(SettingsError, match="its source is not to be found"):
        cell("class Mine:\n    step = 1\n")


def test_another_process_adopts_what_was_registered_with_its_source(clean):
    def net():
        return 1

    places.register("model", "net", net)
    known, text = places.registered(), places.hash_at("model", "net")
    places._registered.clear()
    places.adopt({key: (eval("lambda: 1"), source) for key, (_, source) in known.items()})
    assert places.find("model", "net")() == 1
    assert places.hash_at("model", "net") == text


def test_another_text_has_another_hash(file):
    place = f"{file}:width"
    first = places.hash_at("model", place)
    assert places.hash_at("model", f"{place}:times=2") == first
    file.write_text(file.read_text() + "# a remark\n")
    second = places.hash_at("model", place)
    assert second != first
    (file.parent / "beside_mine.py").write_text("WIDTH = 4\n")
    assert places.hash_at("model", place) not in (first, second)
    (file.parent / "not_imported.py").write_text("WIDTH = 4\n")
    assert places.hash_at("model", f"{file.parent / 'gone.py'}:f") == ""


def test_files_beside_it_are_found_through_others(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "__init__.py").write_text("from . import inner\n")
    (tmp_path / "part" / "inner.py").write_text("import numpy\nfrom ..other import X\n")
    (tmp_path / "other.py").write_text("X = 1\n")
    (tmp_path / "top.py").write_text("def f():\n    import part\n")
    found = places.beside(tmp_path / "top.py")
    assert set(found) == {"part", "part.inner", "other"}


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "f", r"there is no such file; unknown file 'own.py': did you mean 'own_one.py'"),
        ("import no_such_thing\n", "f", "does not import: .*No module named 'no_such_thing'"),
        ("def f(:\n", "f", "does not import: .*invalid syntax"),
        ("raise SystemExit(3)\n", "f", "does not import: SystemExit: 3"),
        ("def first():\n    pass\n", "frist", "unknown name 'frist': did you mean 'first'"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(tmp_path, content, name, message):
    (tmp_path / "own_one.py").write_text("")
    if content is not None:
        (tmp_path / "own.py").write_text(content)
    with pytest.raises(SettingsError, match=message) as raised:
        places.find("model", f"{tmp_path / 'own.py'}:{name}")
    assert "\n" not in str(raised.value)


def test_a_file_that_failed_is_tried_again(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("import no_such_thing\n")
    for _ in range(2):
        with pytest.raises(SettingsError, match="does not import"):
            places.find("model", f"{path}:f")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (":tmies=2", "unknown option 'tmies': did you mean 'times'"),
        (":times=2,more", "'more' has no value; write more=VALUE"),
        (":times=no", "failed: TypeError: .*"),
    ],
)
def test_wrong_options_are_told(file, options, message):
    text = f"{file}:width{options}"
    with pytest.raises(SettingsError, match=message):
        places.call(text, lambda times=1, more=0: 1 + times, ())


def test_a_name_that_another_folder_has_taken_is_told(tmp_path, monkeypatch):
    """Python would silently give the second file the first folder's module."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shared_name.py").write_text(f"NAME = '{folder}'\n")
        (tmp_path / folder / "own.py").write_text("import shared_name\n\ndef f():\n    pass\n")
    places.find("model", f"{tmp_path / 'one' / 'own.py'}:f")
    with pytest.raises(SettingsError, match="imports shared_name, which is already the module at"):
        places.find("model", f"{tmp_path / 'two' / 'own.py'}:f")


@pytest.mark.parametrize("name", ["two words", "one+two", "a;b"])
def test_a_folder_whose_name_settings_would_cut_is_refused(tmp_path, name):
    with pytest.raises(SettingsError, match=r"cannot stand in the path .* rename the folder"):
        places.resolved("mine.py:width", tmp_path / name)
