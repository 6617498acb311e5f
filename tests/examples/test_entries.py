"""Entries of startbench: their form, their checks, and the changes that measure them."""

import importlib
import json
import sys

import numpy as np
import pytest
import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes.load import read_recipe
from tests.common.simulation import ROOT

FOLDER = ROOT / "examples" / "startbench"
EXAMPLE = ROOT / "examples" / "own_parts" / "entry.yml"
sys.path.append(str(FOLDER))
entries, partitions = map(importlib.import_module, ("entries", "partitions"))
GLYPHS = FOLDER / "glyphs.yaml"
VALID = {"name": "mine", "method": "fedavg", "about": "me", "search": {"learning-rate": [0.1, 0.2]}}


def written(tmp_path, **changes):
    path = tmp_path / "entry.yml"
    content = {key: value for key, value in (VALID | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(content))
    return path


def read(tmp_path, **changes):
    return entries.read_entry(written(tmp_path, **changes), ("glyphs", "unseen-classes"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"about": None}, "about: is missing"),
        ({"methods": []}, "unknown key 'methods'.*method"),
        ({"options": [1]}, "options: must be a dict"),
        ({"settings": ["glyph"]}, "settings: unknown setting 'glyph'.*glyphs"),
        ({"search": {"learning-rate": [0.1] * 9}}, "9 trials; at most 8"),
    ],
)
def test_wrong_entry_gets_one_line(tmp_path, changes, message):
    with pytest.raises(SettingsError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "fedprox"}, "has a row 'fedprox' already"),
        ({"options": {"learning-rat": 0.1}}, "unknown setting 'learning-rat'.*learning-rate"),
        ({"method": "file:weights.pt", "search": {}}, "there is no file"),
        ({"options": {"local-steps": 16}}, "1.95 times the gradients of fedavg"),
    ],
)
def test_entry_that_a_setting_cannot_measure_gets_one_line(tmp_path, changes, message):
    with pytest.raises(SettingsError, match=message):
        entries.check(GLYPHS, read(tmp_path, **changes))


def test_example_is_searched_alone_and_measured_next_to_the_reference():
    entry = entries.read_entry(EXAMPLE, ("glyphs",))
    assert entries.check(GLYPHS, entry) == "1.00 times fedavg's"
    searched = read_recipe(GLYPHS, entries.changes(GLYPHS, entry, None)[1::2], protocol="tune")
    (row,) = searched.rows
    assert len(row.trials()) == 8
    values = {"learning-rate": 0.2, "step": 1.0}
    fresh = read_recipe(GLYPHS, entries.changes(GLYPHS, entry, values)[1::2], protocol="fresh")
    assert [row.label for row in fresh.rows] == ["random", "fedavg", "part of the way"]
    assert fresh.rows[2].options["step"] == (1.0,)
    assert fresh.reference == "fedavg"


def test_some_rows_are_searched_alone_and_measured_next_to_the_reference():
    assert entries.only(GLYPHS, "tune", []) == []
    assert entries.only(GLYPHS, "tune-scaffold", ["fedprox"]) is None
    for protocol, labels in {"tune": ["fedprox"], "fresh": ["fedavg", "fedprox"]}.items():
        methods = entries.only(GLYPHS, protocol, ["fedprox"])[1]
        rows = json.loads(methods.removeprefix("methods="))
        assert [next(iter(row)) for row in rows] == labels
    with pytest.raises(SettingsError, match=r"unknown row 'fedprx'.*fedprox"):
        entries.only(GLYPHS, "fresh", ["fedprx"])


def test_clients_of_whole_classes_share_none():
    labels = np.arange(80).repeat(3)
    clients = partitions.whole_classes(labels, 40, np.random.default_rng(0))
    classes = [set(labels[rows]) for rows in clients]
    assert [len(one) for one in classes] == [2] * 40
    assert set.union(*classes) == {*range(80)}
    assert sorted(np.concatenate(clients)) == [*range(240)]


def test_entry_is_searched_then_measured_with_the_chosen_rate(tmp_path, monkeypatch):
    """The commands are recorded, and the search's table is written by hand."""
    startbench, commands = importlib.import_module("startbench"), []

    def coprefl(verb, path, protocol, options):
        out = startbench.Path(options[options.index("--out") + 1])
        table = startbench.search_of(out)
        table.parent.mkdir(parents=True)
        table.write_text("| Method | Values | Chosen |\n| mine | learning-rate=0.2 | chosen |\n")
        commands.append((verb, path.stem, protocol, out.name, options[1]))
        return 0

    monkeypatch.setattr(startbench, "coprefl", coprefl)
    entry = written(tmp_path, settings=["glyphs"])
    assert startbench.main(["--entry", str(entry), "--outputs", str(tmp_path)]) == 0
    assert [command[2] for command in commands] == ["tune", "fresh", "ncm", "ridge"]
    assert {command[:2] for command in commands} == {("run", "glyphs")}
    assert commands[1][3] == "startbench-glyphs-fresh-mine"
    rows = json.loads(commands[1][4].removeprefix("methods="))
    assert rows[-1] == {"mine": {"method": "fedavg", "learning-rate": 0.2}}
