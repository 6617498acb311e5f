"""`cp.choose_start`: candidates of every kind, a choice that continues, bad arguments."""

import json
from dataclasses import replace

import pytest
import torch
from flwr.serverapp.strategy import FedAdam
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.studies import running
from tests.common.checks import Killed, refusal

OPTIONS = {
    "pretraining": {"local_steps": 1, "batch_size": 8, "learning_rate": 0.05},
    "downstream": {"rounds": 1, "local_steps": 1},
    "quiet": True,
}


@pytest.fixture(scope="module")
def setting():
    glyphs = cp.load_dataset("glyphs")
    clients = cp.partition(glyphs, clients=4, only=range(20))
    tasks = cp.tasks(glyphs, number=1, classes=2, clients=2, scheme="iid", only=range(80, 90))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 20))
    return clients, tasks, network


def test_every_kind_of_candidate(setting, tmp_path):
    clients, _, network = setting
    cp.pretrain("fedavg", network, clients, rounds=1, checkpoint=tmp_path / "file", quiet=True)
    candidates = {
        "random": "random",
        "text": "fedavg:learning-rate=0.1",
        "strategy": cp.CoPreFL(participants=2),
        "schedule": cp.Schedule([(cp.Cyclic(participants=2), 1), (cp.FedAvg(participants=2), 1)]),
        "flower": FedAdam(fraction_train=1.0),
        "file": tmp_path / "file",
        "module": network,
    }
    chosen = cp.choose_start(candidates, *setting, 2, draws=5, reference="random", **OPTIONS)
    assert set(chosen.table.index) == set(candidates)
    assert chosen.name in candidates
    assert isinstance(chosen.start, nn.Module)
    page = chosen.report(tmp_path / "report")
    assert chosen.answer.split("`")[1] in page.read_text()
    assert str(chosen).startswith(chosen.answer)
    chosen.plot(tmp_path / "differences.png")
    assert (tmp_path / "differences.png").exists()


def test_draws_have_other_clients_tasks_and_seeds(setting):
    """Draw n has the seeds plus n; all candidates of a draw have the same clients and tasks."""
    clients, tasks, network = setting
    clients, tasks = replace(clients, seed=3), replace(tasks, seed=20) + replace(tasks, seed=30)
    methods = {"a": "fedavg", "b": cp.FedAvg(seed=10)}
    chosen = cp.choose_start(methods, clients, tasks, network, 1, draws=5, **OPTIONS)
    assert list(chosen.comparisons.comparisons[0].units) == [
        f"seed {20 + draw}, task {task}" for draw in (3, 4) for task in (0, 1)
    ]
    assert methods["b"].seed == 10


def test_run_is_a_pretraining_and_its_tasks(setting, tmp_path):
    """The numbers of a draw are those of `pretrain` and `evaluate_starts` with its seeds."""
    clients, tasks, network = setting
    chosen = cp.choose_start(
        ["random", "fedavg"], clients, tasks, network, 1, draws=5, checkpoint=tmp_path, **OPTIONS
    )
    (row,) = (r for r in chosen.comparisons.comparisons[1].rows if r.name == "fedavg")
    drawn = replace(clients, seed=clients.seed + 1)
    start = cp.pretrain("fedavg", network, drawn, 1, seed=1, quiet=True, **OPTIONS["pretraining"])
    result = cp.evaluate_starts(
        {"fedavg": start}, replace(tasks, seed=tasks.seed + 1), quiet=True, **OPTIONS["downstream"]
    )
    expected = result.summary()["accuracy"]["fedavg"]
    assert row.values["accuracy"].iloc[1] == pytest.approx(expected, abs=1e-4)


def test_interrupted_choice_continues(setting, monkeypatch, tmp_path):
    """It is killed before every stage in turn, and gives the answer of an uninterrupted choice."""
    arguments = (["random", "fedavg"], *setting, 1)
    more = {**OPTIONS, "draws": 5}
    whole = cp.choose_start(*arguments, **more, budget="1 hour", checkpoint=tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "choice.json").read_text())["rounds"] > 5
    started, run_stage = [], running.run_stage

    def killed(stage, *given):
        if stage.key not in started:
            started.append(stage.key)
            raise Killed
        run_stage(stage, *given)

    monkeypatch.setattr(running, "run_stage", killed)
    for _ in range(20):
        with pytest.raises(Killed):
            cp.choose_start(*arguments, **more, checkpoint=tmp_path / "choice")
    resumed = cp.choose_start(*arguments, **more, checkpoint=tmp_path / "choice")
    assert str(resumed) == str(whole)
    assert len(started) == 2 * 2 * 5


def test_rates_are_searched_on_two_further_draws(setting, tmp_path):
    """A rate that diverges is not chosen; `random` and strategies have no searched values."""
    candidates = {"random": "random", "b": cp.FedAvg(), "a": "fedavg"}
    search = {"learning_rate": (1e30, 0.05)}
    options = {**OPTIONS, "pretraining": {"local_steps": 1, "batch_size": 8}}
    chosen = cp.choose_start(candidates, *setting, 1, search=search, draws=5, **options)
    assert not any("`a`" in line and "failed" in line for line in chosen.left)
    assert set(chosen.table.index) == {"random", "a", "b"}


def test_default_candidates_can_all_be_run(setting):
    """The methods of the page, on few rounds; screens drop two of the ten."""
    glyphs = cp.load_dataset("glyphs")
    tasks = cp.tasks(glyphs, number=1, classes=2, clients=2, scheme="iid", only=range(80, 90))
    options = {**OPTIONS, "downstream": {"rounds": 2, "local_steps": 1}}
    chosen = cp.choose_start(None, setting[0], tasks, setting[2], 2, draws=5, **options)
    assert len(chosen.table) == 10
    left = [line for line in chosen.left if "left after the screens: behind" in line]
    failed = [line for line in chosen.left if "failed" in line]
    assert len(left) == 2 or failed


@pytest.mark.ray
def test_workers_make_the_same_choice(setting, tmp_path):
    arguments = (["random", "fedavg", cp.CoPreFL(participants=2)], *setting, 1)
    chosen = [
        str(cp.choose_start(*arguments, draws=5, workers=workers, **OPTIONS)) for workers in (1, 2)
    ]
    assert chosen[0] == chosen[1]


def test_wrong_arguments_are_refused_in_one_line(setting):
    def line(candidates=("random", "fedavg"), **changes):
        return refusal(cp.choose_start, candidates, *setting, 1, **{**OPTIONS, **changes})

    assert "two or more" in line(["fedavg"])
    assert "'fedavg'" in line("fedavg")
    two = [cp.CoPreFL(gamma=0.5), "random", cp.CoPreFL(gamma=0.75)]
    assert line(two).startswith("candidates: several are CoPreFL: name them")
    assert "at least 5" in line(draws=4)
    assert "30 minutes" in line(budget="30")
    assert "30 minutes" in line(budget="0 rounds")
    assert (
        line(budget="8 rounds") == "budget: 5 draws need 2.2 times as much"
    )  # 12 cells of 1.5 rounds.
    assert "'learning-rate'" in line(search={"learning_rat": (0.1,)})
    assert "'fedavg'" in line(reference="fedvg")
    assert "'fedavg'" in line(["random", "fedvg"])
    assert "learning_rate" in line(pretraining={"learning_rat": 0.1})
    assert "cp.tasks" in refusal(cp.choose_start, ["a", "b"], setting[0], None, setting[2])


def test_start_that_diverges_is_out(setting):
    """Its learning rate makes the loss infinite."""
    candidates = {"random": "random", "fast": "fedavg:learning-rate=1e30", "fedavg": "fedavg"}
    chosen = cp.choose_start(candidates, *setting, 2, draws=5, **OPTIONS)
    assert chosen.name != "fast"
    assert any(line.startswith("`fast` left after 2 draws: failed (") for line in chosen.left)
