"""The comparison with other packages: a run of the smallest workload, and made-up times."""

import pytest
import torch

from benchmarks.peers import __main__ as peers
from benchmarks.peers import packages
from benchmarks.peers.one import Outcome
from benchmarks.peers.packages import PEERS
from benchmarks.peers.page import Comparison, page, section, stored
from benchmarks.peers.workloads import REAL, TASKS

MACHINE = {
    "date": "2026-01-01",
    "processor": "a processor",
    "cores": 2,
    "python": "3.11",
    "torch": "2",
}


def outcome(cpu, wall=0.5, memory=2**20, loss=0.25, version="1.0"):
    return Outcome(cpu, wall, memory, loss, version)


def comparison(task="lr-mnist", load=0.5):
    found = Comparison(task, 100, MACHINE, load=[load])
    for cpu in (0.001, 0.003, 0.002):
        found.add("plain", outcome(cpu))
        found.add("coprefl", outcome(2 * cpu, version="0.2"))
    return found


def test_the_smallest_workload_runs_and_what_is_not_installed_is_named(
    monkeypatch, tmp_path, capsys
):
    """Both packages train the same network on the same data, and both losses decrease."""
    monkeypatch.setattr(packages, "FOLDER", tmp_path / "none")
    given = ["smoke", "--turns", "1", "--packages", "coprefl", "fluke", "pfl", "fedlab"]
    peers.main([*given, "--output", str(tmp_path)])
    told = capsys.readouterr().err
    assert "not installed, so not measured (--install installs them): FedLab, pfl, fluke" in told
    found = stored(tmp_path)["smoke"]
    assert found.shown() == ["plain", "coprefl"]
    assert all(found.median(name, "cpu") > 0 for name in found.shown())
    first = torch.nn.functional.cross_entropy
    inputs, labels = TASKS["smoke"].data()
    before = first(TASKS["smoke"].model()(inputs), labels).item()
    for name in found.shown():
        assert found.median(name, "loss") < 0.9 * before
    text = (tmp_path / "peers.md").read_text()
    assert "Not measured here: FedLab, pfl, fluke, Flower's FedAvg." in text
    assert (tmp_path / "peers.png").exists()


def test_the_ratio_is_of_medians():
    found = comparison()
    assert found.ratio("coprefl", "cpu") == pytest.approx(2)
    text = section(found)
    assert "| coprefl-flwr | 0.2 | 4 (2 to 6) | 2.00 | 500 | 1 | 0.250 |" in text
    assert "busy" not in text
    assert "The machine was busy" in section(comparison(load=9.0))


def test_the_page_says_what_each_package_leaves_out():
    text = page([comparison()])
    for peer in PEERS.values():
        assert f"| {peer.title} | {peer.best} | {peer.lacks} |" in text


def test_results_of_other_workloads_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "run", lambda *_: outcome(1.0))
    for name in REAL[:2]:
        peers.main([name, "--turns", "1", "--packages", "plain", "--output", str(tmp_path)])
    assert list(stored(tmp_path)) == list(REAL[:2])


def test_the_command_refuses_what_it_does_not_know(capsys):
    with pytest.raises(SystemExit):
        peers.main(["mnist"])
    assert f"workload 'mnist': allowed are {', '.join(TASKS)}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        peers.main(["--turns", "0"])
    assert "--turns 0: at least 1 is needed" in capsys.readouterr().err


def test_a_package_that_fails_says_why(monkeypatch):
    broken = packages.Peer("nothing", "Nothing", "nothing", "", best="", lacks="")
    with pytest.raises(RuntimeError, match=r"(?s)Nothing on smoke failed; its end:.*KeyError"):
        peers.run(broken, "smoke", 1)


def test_clients_share_the_data_and_each_process_makes_the_same():
    task = TASKS["smoke"]
    inputs, labels = task.data()
    again, _ = task.data()
    assert torch.equal(inputs, again)
    parts = task.shares()
    assert len(parts[0]) == len(parts[1]) == task.clients
    assert torch.equal(torch.cat(parts[1]), labels)
    weights = [dict(task.model().named_parameters()) for _ in range(2)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_packages_with_a_requirement_have_an_environment_of_their_own():
    own = {name for name, peer in PEERS.items() if peer.requirement}
    assert own == {"fedlab", "pfl", "fluke"}
    assert len({peer.python for peer in PEERS.values()}) == len(own) + 1
