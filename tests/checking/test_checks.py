"""Every check holds for a good method, and fails, saying why, for one that is spoilt in its way."""

import re
from pathlib import Path

import pytest

from coprefl_flwr import places
from coprefl_flwr.checking import command, small_study
from coprefl_flwr.checking.lines import FAILS, OK, SKIPPED
from coprefl_flwr.checking.running import Job, folder_of
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import METHODS
from coprefl_flwr.strategies import FedAvg

SPOILT = Path(__file__).with_name("spoilt.py")

EVERY = ["runs", "hosting", "unchanged", "dtypes", "buffers", "tied", "failures", "resumed"]


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("checking") / "glyphs.npz"
    small_study.write_data(path)
    return path


@pytest.fixture
def lines(data, tmp_path):
    """Return a function: the lines of a method by its place, without Flower."""

    def of(place):
        return list(command.check_method(place, data, tmp_path, False, lambda _: None))

    return of


def with_status(lines, status):
    return {f"{line.check}, {line.role}": line.why for line in lines if line.status == status}


@pytest.mark.parametrize("name", ["coprefl:gamma=0.25", "cyclic", "fedpcl", "ridge"])
def test_built_in_methods_keep_everything(name, lines):
    found = lines(name)
    assert with_status(found, FAILS) == {}
    roles = METHODS[name.partition(":")[0]].roles
    made = [(line.check, line.role) for line in found if line.check in EVERY]
    assert made == [(check, role) for role in roles for check in EVERY]


def test_a_good_method_of_ones_own_keeps_everything_in_every_role(lines):
    found = lines(f"{SPOILT}:KeepsAll")
    assert with_status(found, FAILS) == {}
    assert set(with_status(found, SKIPPED)) == {"flower, pretraining"}


@pytest.mark.parametrize(
    ("name", "check", "reason"),
    [
        ("CountsNodes", "hosting", r"apart \(.*\): a result may depend on what a client holds"),
        ("Forgets", "resumed", r"killed in round 3 and resumed, .* keep what rounds carry in"),
        ("KeepsFailed", "failures", r"client \d in fit of round 2 fails after its work, and array"),
        ("Mutates", "unchanged", r"the client's fit changes the arrays it is sent: copy"),
        ("MutatesInRound", "unchanged", r"the strategy's round changes the arrays it is given"),
        ("WrongDtype", "dtypes", r"'body.weight' is float64, sent was float32.*: return arrays"),
        ("Stale", "buffers", r"norm.running_mean is off by .* weighted by num-examples"),
        ("Unties", "tied", r"a weight with two names ends as two, .* apart"),
        ("Fails", "runs", r"client 1 on node 2 is left out: .*no samples of class 3"),
        ("NotStateful", "runs", r"a state that no exchange commits: set stateful=True"),
        (
            "Options",
            "options",
            r"other is not declared.*Options takes rate=many, rate=true, rate=-1, rate=2, rate=nan",
        ),
    ],
)
def test_a_spoilt_method_fails_the_right_check_and_no_other(name, check, reason, lines):
    found = lines(f"{SPOILT}:{name}")
    failing = with_status(found, FAILS)
    roles = {line.role for line in found if line.check in EVERY}
    assert set(failing) == {f"{check}, {role}" for role in roles}, failing
    for why in failing.values():
        assert re.search(reason, why), why


@pytest.mark.parametrize(
    ("name", "checks"),
    [("Leaves", {"hosting", "failures", "resumed"}), ("KeepsInClass", {"failures", "resumed"})],
)
def test_what_is_kept_in_a_class_fails_several(name, checks, lines):
    failing = with_status(lines(f"{SPOILT}:{name}"), FAILS)
    assert set(failing) == {f"{check}, pretraining" for check in checks}, failing


def test_a_method_that_does_not_run_is_told_why_and_spared_the_rest(lines, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from coprefl_flwr.strategies import FedAvg\n\n\n"
        "class Mine(FedAvg):\n"
        "    roles = ('pretraining',)\n\n"
        "    def round(self, server_round, arrays):\n"
        "        yield from ()\n"
        "        return {n: a.astype('float64') for n, a in arrays.items()}, {}\n"
    )
    found = lines(f"{path}:Mine")
    (why,) = with_status(found, FAILS).values()
    assert "the new global model is no good: array 'body.weight' is float64, sent was" in why
    assert set(with_status(found, OK)) == {"options, pretraining"}


def test_a_name_that_was_registered(lines, monkeypatch):
    """New processes are told what is there, as they know nothing of this one."""
    monkeypatch.setattr(places, "_registered", {})

    class Here(FedAvg):
        """Defined where only this process can find it."""

        roles = ("pretraining",)

    places.register("method", "here", Here)
    found = lines("here")
    assert with_status(found, FAILS) == {}
    assert {line.check for line in found} >= set(EVERY)


@pytest.mark.ray
def test_a_method_of_ones_own_under_flower(data, tmp_path, monkeypatch):
    """A file that is named from the current folder, and lies in another than the app."""
    (tmp_path / "mine.py").write_text(SPOILT.read_text())
    monkeypatch.chdir(tmp_path)
    place, shown = "mine.py:KeepsAll", []
    found = list(command.check_method(place, data, tmp_path / "runs", True, shown.append))
    assert with_status(found, FAILS) == {}
    assert (found[-1].check, found[-1].status) == ("flower", OK)
    assert " under `flwr run`, which takes half a minute" in shown


def test_the_exit_status_and_what_is_shown(tmp_path, monkeypatch):
    """One line a check; a relative file is one of the current folder."""
    (tmp_path / "mine.py").write_text(SPOILT.read_text())
    monkeypatch.chdir(tmp_path)
    shown = []
    assert command.check_methods(["mine.py:WrongDtype", "ncm"], False, shown.append) == 1
    assert [line for line in shown if line[0] != " "] == ["mine.py:WrongDtype", "ncm"]
    assert sum(" FAILS " in line for line in shown) == 1
    assert "  dtypes     ok       names, shapes and dtypes are those that were sent" in shown
    assert command.check_methods(["ncm:logit-scale=0.5"], False, shown.append) == 0


def test_a_place_without_a_method_is_refused_before_any_check(tmp_path):
    shown = []
    with pytest.raises(SettingsError, match="unknown method 'copref': did you mean 'coprefl'"):
        command.check_methods(["fedavg", "copref"], False, shown.append)
    assert shown == []


@pytest.mark.parametrize(
    ("place", "role", "path"),
    [
        ("fedavg", "pretraining", "starts/fedavg"),
        ("fedavg", "task", "tasks/0/random"),
        ("ncm", "head", "tasks/0/random"),
    ],
)
def test_what_is_compared_is_the_methods_own_stage(data, tmp_path, place, role, path):
    """A study of a task has the stage of its starting model before that of the method."""
    job = Job(place, role, data, tmp_path / "whole" / "checked")
    assert folder_of(job) == job.folder / path
