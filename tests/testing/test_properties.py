"""Every built-in method keeps every property; each method with an error fails the right check."""

import re

import pytest

from coprefl_flwr import plugins
from coprefl_flwr.cli import main
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.strategies import FedAvg
from coprefl_flwr.studies.known_methods import METHODS
from coprefl_flwr.testing import check_method, findings
from coprefl_flwr.testing.properties import PROPERTIES
from coprefl_flwr.testing.small_study import Case
from tests.common.simulation import ROOT

SPOILT = ROOT / "tests" / "common" / "spoilt.py"
KINDS = {
    "fedavg": "pretraining",  # one exchange, a mean
    "coprefl": "pretraining",  # two exchanges
    "cyclic": "pretraining",  # a chain of clients
    "scaffold": "task",  # states of clients
    "fedpcl": "personalised",  # prototypes and states
    "ncm": "head",  # one round
    "coprefl-sgd": "pretraining",  # refined on the server
}
"""One method of each kind of round; the others are checked by `make test-all`."""
TABLE = [
    pytest.param(name, role, marks=() if KINDS.get(name) == role else pytest.mark.slow)
    for name, method in METHODS.items()
    for role in method.roles
]


@pytest.mark.parametrize(("name", "role"), TABLE)
def test_built_in_method_has_every_property(name, role, tmp_path):
    case = Case(METHODS[name], role, tmp_path)
    for name_of_property, check in PROPERTIES.items():
        if (role, name_of_property) != ("head", "resume"):
            assert check(case)


def test_users_method_has_every_property_in_every_role():
    check_method(f"{SPOILT}:KeepsAll")


@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [
        ("CountsNodes", {"hosting"}, "must not depend on a node's other clients"),
        ("Leaves", {"hosting", "resume"}, "or earlier work"),
        ("KeepsInClass", {"hosting", "resume"}, "or earlier work"),
        (
            "Forgets",
            {"resume"},
            "interrupted in round 3 and resumed, .* store values in",
        ),
        ("MutatesInRound", {"runs"}, "read-only"),
        (
            "Fails",
            {"runs"},
            "client 1 on node 2 is left out: .*no samples of class 3.*: all clients",
        ),
        ("NotStateful", {"runs"}, "a state that no exchange commits: set stateful=True"),
    ],
)
def test_defect_fails_its_check_and_no_other(name, broken, reason):
    problems = {
        finding.property: finding.problem
        for finding in findings(f"{SPOILT}:{name}")
        if finding.problem
    }
    assert set(problems) == broken, problems
    assert re.search(reason, "\n".join(problems.values())), problems


def test_other_checks_of_a_method_that_does_not_run_are_left_out(monkeypatch):
    class Mine(FedAvg):
        roles = ("pretraining",)

        def round(self, ctx, arrays):
            yield from ()
            return {n: a.astype("float64") for n, a in arrays.items()}, {}

    monkeypatch.setattr(plugins, "REGISTERED", {})
    with pytest.raises(
        AssertionError, match=r"Mine:\nruns .* the new global model is invalid: array '1.weight'"
    ):
        check_method(Mine)
    assert [finding.property for finding in findings("Mine")] == ["runs"]


@pytest.mark.slow
@pytest.mark.ray
def test_users_method_under_flower(tmp_path, monkeypatch):
    """The file's path is relative to the current folder, which is not the app's folder."""
    (tmp_path / "mine.py").write_text(SPOILT.read_text())
    monkeypatch.chdir(tmp_path)
    found = [f for f in findings("mine.py:KeepsAll", flower=True) if f.property == "flower"]
    assert [finding.problem for finding in found] == [""]


def test_command_prints_a_line_per_check_and_fails(tmp_path, monkeypatch, capsys):
    """Each check prints a line; a relative path starts in the current folder."""
    (tmp_path / "mine.py").write_text(SPOILT.read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["check-method", "mine.py:Forgets", "ncm", "--no-flower"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line[0] != " "] == ["mine.py:Forgets", "ncm"]
    assert sum(" FAILS " in line for line in lines) == 1
    assert "  runs     pretraining   ok       all clients in every round" in lines
    assert main(["check-method", "ncm:logit-scale=0.5", "--no-flower"]) == 0
    with pytest.raises(SettingsError, match="did you mean 'fedavg'"):
        check_method("fedagv")
