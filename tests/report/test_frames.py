"""Rows of results: summarised over tasks, written, and read again."""

import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest

from coprefl_flwr.report import frames
from coprefl_flwr.report.columns import column
from tests.common.comparisons import row, two_starts, without_classes


def test_summary_over_tasks_by_hand() -> None:
    """By hand: random has 80 and 60 in task 0 (mean 70, variance 100), 90 and 90 in task 1 (90, 0).

    Over tasks: accuracy (70 + 90) / 2 = 80, sample std |70 - 90| / √2; variance 50, std 100 / √2;
    every worst-k % is one client: 60 and 90, mean 75, std 30 / √2; best: 80 and 90, mean 85, std
    10 / √2. The variance from sampling is (80 · 20 + 60 · 40) / 9 / 2 / 2 = 1000 / 9 in task 0 and
    90 · 10 / 9 / 2 = 50 in task 1.
    """
    random, coprefl = frames.summary(pd.DataFrame(two_starts())).to_dict("records")
    root = math.sqrt(2)
    assert random == pytest.approx(
        {
            "start": "random",
            "tasks": 2,
            "accuracy": 80.0,
            "accuracy std": 20 / root,
            "variance": 50.0,
            "variance std": 100 / root,
            **{f"worst-{k}%": 75.0 for k in (10, 20, 30, 40)},
            **{f"worst-{k}% std": 30 / root for k in (10, 20, 30, 40)},
            "best-10%": 85.0,
            "best-10% std": 10 / root,
            "variance-beyond": (100 - 1000 / 9 - 50) / 2,
            "variance-beyond std": (100 - 1000 / 9 + 50) / root,
        }
    )
    assert (coprefl["start"], coprefl["accuracy"]) == ("coprefl", 85.0)


def test_clients_have_equal_weights_for_any_number_of_samples() -> None:
    """100 % of 1 sample and 50 % of 100 samples have the mean 75 %, not 51 / 101."""
    rows = [row("a", 0, 0, 1, n=1), row("a", 0, 1, 50, n=100)]
    (entry,) = frames.summary(pd.DataFrame(rows)).to_dict("records")
    assert entry["accuracy"] == 75
    assert math.isnan(entry["accuracy std"])


def test_written_rows_are_read_unchanged(tmp_path: Path) -> None:
    rows = two_starts()
    rows[0]["start"] = "gr\u00fcn\u2028"
    path = tmp_path / "new" / "rows.jsonl"
    frames.write_lines(path, pd.DataFrame(rows), keep="loss")
    pd.testing.assert_frame_equal(frames.read_rows(path), pd.DataFrame(rows))
    assert os.listdir(path.parent) == ["rows.jsonl"]


def test_written_rounds_are_read_unchanged(tmp_path: Path) -> None:
    """The line of a round has only the round's metrics; whole numbers stay whole."""
    records = [
        {"phase": "pretraining", "start": "a", "task": None, "round": 1, "wire-bytes-up": 7},
        {"phase": "downstream", "start": "a", "task": 0, "round": 1, "accuracy": 50.0},
        {"phase": "downstream", "start": "a", "task": 1, "round": 1, "loss": math.inf},
    ]
    path = tmp_path / "rounds.jsonl"
    frames.write_lines(path, frames.frame(records), keep="task")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        *records[:2], {**records[2], "loss": None},
    ]  # fmt: skip
    read = frames.read_rounds(path)
    assert read["task"].tolist() == [pd.NA, 0, 1]
    assert read["accuracy"][1] == 50
    assert read["loss"].isna().all()


def pretraining(start, accuracies, models=4.0):
    return [
        {
            "phase": "pretraining",
            "start": start,
            "round": number,
            "models-down": models,
            "models-up": models / 2,
            "client-bytes-down": 2_000_000,
            "client-bytes-up": 1_000_000,
            # These are the bytes of this run's messages, so no table compares them.
            "wire-bytes-down": 500_000,
            "wire-bytes-up": 700_000,
        }
        | ({} if accuracy is None else {"server-accuracy": accuracy})
        for number, accuracy in enumerate(accuracies, 1)
    ]


ROUNDS = [
    *pretraining("fedavg", [10.0, None, 40.0, 35.0]),
    *pretraining("cyclic:rounds=2+fedavg", [20.0, None, 41.0, 50.0], models=8.0),
    *pretraining("cyclic:rounds=1+fedavg", [20.0, None, 30.0, 39.9], models=8.0),
    {"phase": "downstream", "start": "fedavg", "round": 1},
]


def test_pretraining_summary_by_hand():
    summary = frames.pretraining_summary(frames.frame(ROUNDS))
    assert list(summary.index) == [
        f"{phases}fedavg" for phases in ("", "cyclic:rounds=2+", "cyclic:rounds=1+")
    ]
    fedavg, cyclic, slower = summary.to_dict("records")
    assert math.isnan(fedavg.pop("catches-up"))
    assert fedavg == {
        "rounds": 4, "models": 24.0, "megabytes": 12.0, "final": 35.0,
        "best": 40.0, "best-round": 3,
    }  # fmt: skip
    # In round 3, cyclic reaches the best accuracy of FedAvg alone; the slower start never does.
    assert cyclic["catches-up"] == 3
    assert (cyclic["final"], cyclic["best"], cyclic["best-round"]) == (50.0, 50.0, 4)
    assert cyclic["models"] == 48
    assert slower["catches-up"] == math.inf


def test_start_is_compared_with_the_plain_start_of_its_last_phase():
    def catches_up(*starts):
        rounds = frames.frame([row for start in starts for row in pretraining(start, [10.0, 20.0])])
        return frames.pretraining_summary(rounds)["catches-up"]

    two = ("fedavg:q=1", "fedavg:q=2")
    assert catches_up(*two, "cyclic+fedavg:q=2")["cyclic+fedavg:q=2"] == 2
    # Two plain starts match the last phase, so neither of them is chosen.
    assert math.isnan(catches_up(*two, "cyclic+fedavg")["cyclic+fedavg"])
    assert catches_up("fedavg:q=1", "cyclic+fedavg")["cyclic+fedavg"] == 2
    assert math.isnan(catches_up("fedavg", "cyclic+scaffold")["cyclic+scaffold"])


MAE = {"metric:mae": ("MAE", "lower")}


def test_metrics_of_a_task_without_classes_by_hand() -> None:
    """Losses 1 to 4: mean 2.5, variance 1.25; the worst is 4, the best 1. MAE 3, 5 of two clients.

    A client without a value is left out of the statistics of a metric: mean 4, variance 1, worst 5.
    """
    rows = without_classes("a", 0, [1.0, 4.0, 2.0, 3.0], mae=[5.0, math.nan, 3.0, math.nan])
    (task,) = frames.task_metrics(pd.DataFrame(rows), MAE).to_dict("records")
    assert task == {
        "start": "a", "task": 0,
        "loss": 2.5, "loss:variance": 1.25, "loss:worst-10%": 4.0, "loss:worst-20%": 4.0,
        "loss:worst-30%": 3.5, "loss:worst-40%": 3.5, "loss:best-10%": 1.0,
        "loss:std-clients": math.sqrt(1.25),
        "metric:mae": 4.0, "metric:mae:variance": 1.0, "metric:mae:worst-10%": 5.0,
        "metric:mae:worst-20%": 5.0, "metric:mae:worst-30%": 5.0, "metric:mae:worst-40%": 5.0,
        "metric:mae:best-10%": 3.0, "metric:mae:std-clients": 1.0,
    }  # fmt: skip


def test_client_whose_loss_is_not_finite_is_not_left_out() -> None:
    rows = pd.DataFrame(without_classes("a", 0, [1.0, math.nan]))
    assert frames.task_metrics(rows)["loss"].isna().all()


def test_summary_is_of_the_measure_and_of_the_named_columns() -> None:
    rows = pd.DataFrame(
        without_classes("a", 0, [1.0, 3.0], mae=[1.0, 2.0])
        + without_classes("a", 1, [2.0, 6.0], mae=[1.0, 4.0])
    )
    assert frames.measure_of(rows, MAE).metric == "metric:mae"
    assert frames.measure_of(rows.drop(columns="metric:mae")).metric == "loss"
    assert frames.measure_of(pd.DataFrame(two_starts())).metric == "accuracy"
    (entry,) = frames.summary(rows, MAE).to_dict("records")
    assert list(entry)[2:6] == [
        "metric:mae", "metric:mae std", "metric:mae:variance", "metric:mae:variance std",
    ]  # fmt: skip
    assert (entry["metric:mae"], entry["metric:mae:worst-10%"]) == (2.0, 3.0)
    (entry,) = frames.summary(rows, MAE, ["loss", "loss:worst-10%"]).to_dict("records")
    assert entry == pytest.approx(
        {
            "start": "a", "tasks": 2, "loss": 3.0, "loss std": math.sqrt(2),
            "loss:worst-10%": 4.5, "loss:worst-10% std": 3 / math.sqrt(2),
        }
    )  # fmt: skip
    with pytest.raises(KeyError, match="loss:worst-11%"):
        frames.summary(rows, MAE, ["loss:worst-11%"])


def test_rows_with_classes_have_the_statistics_of_the_loss_too() -> None:
    (entry, _) = frames.summary(pd.DataFrame(two_starts()), metrics=["loss"]).to_dict("records")
    assert entry == {"start": "random", "tasks": 2, "loss": 0.5, "loss std": 0.0}


def test_pretraining_without_classes_is_summarised_by_its_test_loss() -> None:
    """The best is the lowest; fedavg's best is 0.3, which the chain reaches in round 2."""
    rounds = [
        {"phase": "pretraining", "start": start, "round": at, "server-loss": loss}
        for start, of_rounds in (("fedavg", [0.9, 0.3, 0.4]), ("cyclic+fedavg", [0.8, 0.2, 0.1]))
        for at, loss in enumerate(of_rounds, 1)
    ]
    fedavg, chain = frames.pretraining_summary(frames.frame(rounds)).to_dict("records")
    assert (fedavg["final-loss"], fedavg["best-loss"], fedavg["best-round"]) == (0.4, 0.3, 2)
    assert chain["catches-up"] == 2
    assert "final" not in fedavg


def test_cost_to_reach_an_accuracy_is_missing_without_classes() -> None:
    rounds = pd.DataFrame({"round": [1, 2], "evaluate-client-loss": [2.0, 1.0]})
    assert math.isnan(frames.cost_to_reach(rounds, "rounds-to-60%"))
    assert column("rounds-to-60%").missing.endswith("or the targets are no classes")
