"""Which code may be named: what COPREFL_ALLOW says, and what nobody needs to allow."""

import re
import sys

import pytest

from coprefl_flwr import allowed, places
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import METHODS


@pytest.fixture
def allow(monkeypatch):
    """Set COPREFL_ALLOW."""
    return lambda text: monkeypatch.setenv(allowed.VARIABLE, text)


@pytest.fixture
def file(tmp_path):
    """A file that leaves a mark when it is run."""
    path = tmp_path / "nets" / "own.py"
    path.parent.mkdir()
    mark = tmp_path / "mark"
    path.write_text(f"open({str(mark)!r}, 'w')\n\ndef net(num_classes):\n    return 1\n")
    return path


def test_without_it_all_may_be_named(monkeypatch):
    for text in (None, "", " "):
        monkeypatch.delenv(allowed.VARIABLE, raising=False)
        if text is not None:
            monkeypatch.setenv(allowed.VARIABLE, text)
        assert allowed.is_allowed("os:system")
        assert not allowed.is_listed("os:system")  # As a model.json asks.


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ("none", "os:system", False),
        ("all", "os:system", True),
        ("my_lab", "my_lab:Net", True),
        ("my_lab", "my_lab.nets.small:Net", True),
        ("my_lab", "my_laboratory:Net", False),
        ("my_lab.nets", "my_lab:Net", False),
        ("my_lab:Net", "my_lab:Net", True),
        ("my_lab:Net", "my_lab:Other", False),
        ("my_lab, os", "os:system", True),
        ("my_lab,none", "os:system", False),
        ("my_lab", "my_lab.py:Net", False),
        ("nets/", "nets/own.py:Net", True),
        ("./nets", "nets/more/own.py:Net", True),
        ("nets/", "nets/../own.py:Net", False),
        ("nets/", "nets.own:Net", False),
        ("nets/own.py", "nets/own.py:Net", True),
        ("nets/own.py:Net", "nets/own.py:Other", False),
        (".", "nets/own.py:Net", True),
    ],
)
def test_what_is_named_there_is_allowed(allow, text, place, found):
    allow(text)
    assert allowed.is_allowed(place) is allowed.is_listed(place) is found


def test_code_that_is_not_allowed_is_not_run(allow, file, tmp_path):
    place = f"{file}:net"
    allow("none")
    line = f"^{re.escape(place)}: COPREFL_ALLOW = none does not allow this code; allowed: built-in"
    with pytest.raises(SettingsError, match=line):
        places.find("model", place)
    assert places.hash_at("model", place)  # Its text is read, and not run.
    assert not (tmp_path / "mark").exists()
    allow(f"my_lab,{tmp_path}/other/")
    with pytest.raises(SettingsError, match=rf"allowed: my_lab, {re.escape(str(tmp_path))}/other/"):
        places.find("model", place)
    assert not (tmp_path / "mark").exists()
    allow(f"my_lab,{file.parent}/")
    assert places.find("model", place)(2) == 1
    assert (tmp_path / "mark").exists()


def test_not_even_the_package_of_a_module_is_imported(allow, tmp_path, monkeypatch):
    """Python runs a to look for a.b."""
    package = tmp_path / "leaves_a_mark"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    (package / "inner.py").write_text("def net(num_classes):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    allow("none")
    text = places.hash_at("model", "leaves_a_mark.inner:net")
    assert text == places.hash_at("model", f"{package / 'inner.py'}:net") != ""
    assert places.hash_at("model", "leaves_a_mark.outer:net") == ""
    with pytest.raises(SettingsError, match="does not allow this code"):
        places.find("model", "leaves_a_mark.inner:net")
    assert "leaves_a_mark" not in sys.modules
    assert not (tmp_path / "mark").exists()


def test_what_a_program_registered_and_built_in_parts_stay(allow, monkeypatch):
    monkeypatch.setattr(places, "_registered", {})
    allow("none")
    places.register("model", "mine", test_without_it_all_may_be_named)
    assert places.find("model", "mine") is test_without_it_all_may_be_named
    assert places.find("partition", "IidPartitioner").__name__ == "IidPartitioner"
    for method in METHODS.values():  # Each was refused for its client.
        assert issubclass(method.client_class, TorchClient)
    with pytest.raises(SettingsError, match="does not allow this code"):
        places.find("model", "coprefl_flwr.files:write_atomically")


def test_an_entry_point_may_be_allowed_by_its_name(allow, monkeypatch):
    class Entry:
        value = "my_lab.nets:Net"

        def load(self):
            return "loaded"

    monkeypatch.setattr(places, "_entry_points", lambda: {"net-of-mine": Entry()})
    for text in ("my_lab", "net-of-mine", "all"):
        allow(text)
        assert places.find("model", "net-of-mine") == "loaded"
    allow("none")
    with pytest.raises(SettingsError, match=r"^net-of-mine \(my_lab\.nets:Net\): COPREFL_ALLOW"):
        places.find("model", "net-of-mine")
