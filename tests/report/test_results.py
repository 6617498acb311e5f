"""Rows of results: summed up over tasks, written, and read again."""

import csv
import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import results
from coprefl_flwr.report.starts import summary_table
from tests.common.comparisons import row, two_starts


def test_summary() -> None:
    """Oracle. random: task 0 has 80 and 60 (mean 70, variance 100), task 1 90 and 90 (90, 0).

    Over tasks: accuracy (70 + 90) / 2 = 80, sample std = |70 - 90| / √2; variance 50, 100 / √2;
    every worst-k % is one client: 60 and 90, 75, 30 / √2; best: 80 and 90, 85, 10 / √2. Sampling
    gives (80 · 20 + 60 · 40) / 9 / 2 / 2 = 1000 / 9 in task 0, 90 · 10 / 9 / 2 = 50 in task 1.
    """
    random, coprefl = results.summary(pd.DataFrame(two_starts())).to_dict("records")
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


def test_clients_count_the_same_whatever_their_samples() -> None:
    """100 % of 1 sample and 50 % of 100 have the mean 75, not 51 / 101."""
    rows = [row("a", 0, 0, 1, n=1), row("a", 0, 1, 50, n=100)]
    (entry,) = results.summary(pd.DataFrame(rows)).to_dict("records")
    assert entry["accuracy"] == 75
    assert math.isnan(entry["accuracy std"])


def test_rows_come_back(tmp_path: Path) -> None:
    rows = two_starts()
    rows[0]["start"] = "gr\u00fcn\u2028"
    path = tmp_path / "new" / "rows.jsonl"
    results.write_rows(path, pd.DataFrame(rows))
    pd.testing.assert_frame_equal(results.read_rows(path), pd.DataFrame(rows))
    assert os.listdir(path.parent) == ["rows.jsonl"]


def test_diverged_loss_is_standard_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    results.write_rows(path, pd.DataFrame([{**row("a", 0, 0, 5), "loss": math.inf}]))
    assert json.loads(path.read_text())["loss"] is None
    assert math.isnan(results.read_rows(path)["loss"][0])


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    results.write_rows(path, pd.DataFrame(two_starts()))
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        results.write_rows(path, pd.DataFrame(two_starts()[:1]))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["rows.jsonl"]


WHOLE = row("a", 0, 0, 1)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b'{"start": "a"', ""),
        (b"\xff\xfe", ""),
        (b"[1]", r"\[1\]"),
        (b'{"start": "a", "task": 0}', "'client'"),
        (json.dumps(WHOLE).replace("correct", "corect").encode(), "'corect'.*'correct'"),
        (json.dumps(WHOLE | {"n": True}).encode(), "'n' .* True"),
        (json.dumps(WHOLE | {"n": 0, "correct": 0}).encode(), "'n' .* 0"),
        (json.dumps(WHOLE | {"n": 3, "correct": 4}).encode(), "'correct' .* 4.* 3"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: bytes, named: str) -> None:
    path = tmp_path / "rows.jsonl"
    results.write_rows(path, pd.DataFrame([row("a", 0, 0, 5)]))
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(SettingsError, match=f"line 2: .*{named}") as caught:
        results.read_rows(path)
    assert "\n" not in str(caught.value)


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    results.write_rows(tmp_path / "rows.jsonl", pd.DataFrame())
    with pytest.raises(SettingsError, match=r"nearest: .*rows\.jsonl"):
        results.read_rows(tmp_path / "row.jsonl")


def test_rounds_come_back(tmp_path: Path) -> None:
    """A metric that a round lacks is not in its line; whole numbers stay whole."""
    records = [
        {"phase": "pretraining", "start": "a", "task": None, "round": 1, "wire-bytes-up": 7},
        {"phase": "downstream", "start": "a", "task": 0, "round": 1, "accuracy": 50.0},
        {"phase": "downstream", "start": "a", "task": 1, "round": 1, "loss": math.inf},
    ]
    path = tmp_path / "rounds.jsonl"
    results.write_rounds(path, results.frame(records))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        *records[:2], {**records[2], "loss": None},
    ]  # fmt: skip
    found = results.read_rounds(path)
    assert found["task"].tolist() == [pd.NA, 0, 1]
    assert found["accuracy"][1] == 50
    assert found["loss"].isna().all()


def test_repeated_and_absent_rows_are_refused() -> None:
    with pytest.raises(SettingsError, match="start 'a', task 0, client 3 has two rows"):
        results.summary(pd.DataFrame([row("a", 0, 3, 5), row("a", 0, 3, 6)]))
    with pytest.raises(SettingsError, match="0 result rows"):
        summary_table(pd.DataFrame())


def test_summary_csv(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    rows = pd.DataFrame([row("a,b", 0, 0, 5), row("a,b", 0, 1, 10)])
    results.write_csv(path, results.summary(rows))
    with path.open(newline="") as file:
        (entry,) = csv.DictReader(file)
    assert entry["start"] == "a,b"
    assert (entry["tasks"], entry["accuracy"], entry["variance"]) == ("1", "75.0", "625.0")
    assert (entry["worst-40%"], entry["best-10%"], entry["accuracy std"]) == ("50.0", "100.0", "")
