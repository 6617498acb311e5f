"""Functions, strategies and partitioners as arguments, instead of texts that name them."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from flwr_datasets.partitioner import IidPartitioner

import coprefl_flwr as cp
from coprefl_flwr import plugins
from coprefl_flwr.cli import main
from coprefl_flwr.errors import SettingsError
from tests.common.data import images
from tests.common.networks import Perceptron
from tests.common.simulation import ROOT

OWN_PARTS = ROOT / "examples" / "own_parts"
SMALL = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1, "quiet": True}


@pytest.fixture
def tasks():
    return cp.tasks(images(), number=2, classes=4, clients=3, scheme="iid")


def by_halves(labels, clients, rng):
    """Give client 0 half of the samples, and the other clients equal parts of the rest."""
    order = rng.permutation(len(labels))
    return [order[: len(order) // 2], *np.array_split(order[len(order) // 2 :], clients - 1)]


def top3(logits, labels):
    """Return the fraction of samples whose class is among the three largest logits."""
    return float((logits.topk(3, dim=1).indices == labels[:, None]).any(dim=1).double().mean())


def entropy(logits, labels):
    """Return the mean entropy of the predictions."""
    return float(torch.distributions.Categorical(logits=logits).entropy().mean())


entropy.title, entropy.better = "Entropy", "lower"


# ---- partitions ---------------------------------------------------------------------------------


def test_partition_by_a_function_its_place_or_a_partitioner():
    clients = cp.partition(images(), 3, by_halves)
    assert [len(one) for one in clients] == [120, 60, 60]
    named = cp.partition(images(), 3, f"{__file__}:by_halves")
    for one, other in zip(clients, named, strict=True):
        assert np.array_equal(one.indices, other.indices)
    assert [len(one) for one in cp.partition(images(), scheme=IidPartitioner(3))] == [80, 80, 80]
    for scheme, sizes in ((by_halves, [48, 24, 24]), (IidPartitioner(3), [32, 32, 32])):
        tasks = cp.tasks(images(), number=1, classes=4, clients=3, scheme=scheme)
        assert [len(one.train) for one in tasks[0].clients] == sizes


# ---- methods of tasks ---------------------------------------------------------------------------


def rows_of(tasks, **more):
    return cp.evaluate_starts({"one": Perceptron()}, tasks, rounds=2, **SMALL, **more).rows


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (cp.FedProx(mu=3.0), "fedprox:mu=3"),
        (cp.SCAFFOLD(), "scaffold"),
        (cp.FedAvg(aggregation="median"), "fedavg:aggregation=median"),
    ],
    ids=["option", "none", "robust"],
)
def test_strategy_object_runs_tasks_like_its_text(given, text, tasks):
    pd.testing.assert_frame_equal(rows_of(tasks, method=given), rows_of(tasks, method=text))
    assert not rows_of(tasks, method=given)["loss"].equals(rows_of(tasks)["loss"])


def test_task_method_whose_evaluation_reports_no_hits_is_reported_by_its_loss(tasks, tmp_path):
    options = {**SMALL, "method": "tests.common.own_parts:WithoutHits"}
    starts = {name: Perceptron() for name in ("random", "other")}
    result = cp.evaluate_starts(starts, tasks, rounds=2, **options)
    assert not {"correct", "accuracy"} & set(result.rows)
    of_random = result.rows[result.rows["start"] == "random"].groupby("task")["loss"]
    summary = result.summary().loc["random"]
    assert summary["loss"] == pytest.approx(of_random.mean().mean())
    assert summary["loss:worst-10%"] == pytest.approx(of_random.max().mean())
    assert "Worst 10 %: Loss" in str(result)
    curves = result.rounds.groupby(["start", "task"])["evaluate-client-loss"].last()
    assert curves["random", 0] == pytest.approx(of_random.mean()[0])
    assert "accuracy" not in result.rounds
    assert result.plot(tmp_path / "plot.png").axes
    assert [panel.get_ylabel() for panel in result.curves().axes] == ["Loss"]
    assert "Loss of the tasks" in result.report(tmp_path / "report").read_text(encoding="utf-8")


def test_options_of_the_client_of_a_strategy_object(tasks):
    place = f"{OWN_PARTS / 'method.py'}:PartWay"
    given = plugins.find("method", place)(step=0.4)
    found = rows_of(tasks, method=given, shrink=0.05)
    pd.testing.assert_frame_equal(found, rows_of(tasks, method=f"{place}:step=0.4,shrink=0.05"))
    assert not found["loss"].equals(rows_of(tasks, method=given)["loss"])


# ---- metrics ------------------------------------------------------------------------------------


def test_users_metrics_are_in_rows_summary_and_table(tasks):
    starts = {"one": Perceptron(), "other": Perceptron(seed=1)}
    result = cp.evaluate_starts(starts, tasks, rounds=1, client_metrics=[top3, entropy], **SMALL)
    for name in ("metric:top3", "metric:entropy"):
        per_task = result.rows.groupby(["start", "task"], sort=False)[name].mean()
        expected = per_task.groupby("start", sort=False)
        np.testing.assert_allclose(result.summary()[name], expected.mean())
        np.testing.assert_allclose(result.summary()[f"{name} std"], expected.std())
    named = [f"{__file__}:top3", f"{__file__}:entropy"]
    again = cp.evaluate_starts(starts, tasks, rounds=1, client_metrics=named, **SMALL)
    assert result.rows.equals(again.rows)
    table = str(result)
    assert "Entropy" in table
    for start in starts:
        mean, std = (result.summary().loc[start, f"metric:top3{one}"] for one in ("", " std"))
        assert f"{mean:.2f} ± {std:.2f}" in table[table.index("top3") :]


def test_report_of_a_result_is_reproduced_by_the_command(tasks, tmp_path, capsys):
    result = cp.evaluate_starts({"one": Perceptron(), "two": Perceptron(seed=1)}, tasks, **SMALL)
    page = result.report(tmp_path / "new")
    assert page == tmp_path / "new" / "report" / "report.html"
    before = {path: path.read_bytes() for path in page.parent.rglob("*.*")}
    assert page.with_name("figures") / "table-curves.pdf" in before
    assert result.report(tmp_path / "new") == page
    shutil.rmtree(page.parent)
    assert main(["report", str(tmp_path / "new")]) == 0
    assert str(result) in capsys.readouterr().out
    assert {path: path.read_bytes() for path in page.parent.rglob("*.*")} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match=r"folder = .*mine: .* did not write"):
        result.report(tmp_path / "mine")
