import csv
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import results
from coprefl_flwr.report.forms import markdown, plain
from coprefl_flwr.report.starts import summary_table
from coprefl_flwr.report.statistics import Summary
from coprefl_flwr.report.table import MARK, Note, Table, column_of

README = Path(__file__).parents[2] / "README.md"


def row(start: str, task: int, client: int, correct: int, n: int = 10) -> dict[str, Any]:
    return {
        "start": start,
        "task": task,
        "client": client,
        "n": n,
        "correct": correct,
        "loss": 0.5,
    }


def format_table(rows: list[dict[str, Any]]) -> str:
    return plain(summary_table(pd.DataFrame(rows)))


def two_starts() -> list[dict[str, Any]]:
    return [
        row("random", 0, 0, 8),
        row("random", 0, 1, 6),
        row("coprefl", 0, 0, 9),
        row("random", 1, 0, 9),
        row("random", 1, 1, 9),
        row("coprefl", 0, 1, 7),
        row("coprefl", 1, 0, 9),
        row("coprefl", 1, 1, 9),
    ]


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


def test_every_character_of_the_text() -> None:
    assert format_table(two_starts()) == (
        "Start     Accuracy %      Variance    Worst 10 %    Worst 20 %    Worst 30 %\n"
        "-----------------------------------------------------------------------------\n"
        "random   80.0 ± 14.1   50.0 ± 70.7*  75.0 ± 21.2   75.0 ± 21.2   75.0 ± 21.2\n"
        "coprefl  85.0 ±  7.1*  50.0 ± 70.7*  80.0 ± 14.1*  80.0 ± 14.1*  80.0 ± 14.1*\n"
        "\n"
        "Mean ± sample std over 2 tasks; accuracies in %, variance in %²; *: best."
    )


def test_the_table_of_the_readme() -> None:
    """The numbers of README's table, from left to right, give its very characters."""
    (shown,) = re.findall(r"```text\n(Start .*?)\n```", README.read_text(), flags=re.DOTALL)
    titles = ["Accuracy %", "Variance", "Worst 10 %", "Worst 20 %", "Worst 30 %"]
    numbers = [list(map(float, re.findall(r"\d+\.\d", line))) for line in shown.splitlines()[2:5]]
    columns = [
        column_of(
            title,
            [Summary(line[2 * at], line[2 * at + 1], 3) for line in numbers],
            "lower" if title == "Variance" else "higher",
        )
        for at, title in enumerate(titles)
    ]
    lines = [["random"], ["fedavg"], ["coprefl"]]
    said = f"Mean ± sample std over 3 tasks; accuracies in %, variance in %²; {MARK}: best."
    assert plain(Table(["Start"], lines, columns, [Note(said)])) == shown


def test_least_variance_is_best() -> None:
    lines = format_table(
        [row("even", 0, 0, 5), row("even", 0, 1, 5), row("odd", 0, 0, 9), row("odd", 0, 1, 7)]
    ).splitlines()
    assert lines[2].split() == ["even", "50.0", "0.0*", "50.0", "50.0", "50.0"]
    assert lines[3].split() == ["odd", "80.0*", "100.0", "70.0*", "70.0*", "70.0*"]


@pytest.mark.parametrize("name", ["coprefl:gamma={}.5", "coprefl:gamma={}.5 " + "alpha=0.5," * 12])
def test_text_table_fits_a_terminal(name: str) -> None:
    """The widest cells: accuracies of 0 and 100 only, 2500 %² in one task and 0 in the other."""
    rows = []
    for start in map(name.format, range(6)):
        rows += [row(start, 0, client, 10 * (client % 2)) for client in range(4)]
        rows += [row(start, 1, client, 10) for client in range(4)]
    table = format_table(rows)
    assert max(map(len, table.splitlines())) <= 100
    assert "1250.0 ± 1767.8" in table
    letters = "".join(line.split("  ")[0] for line in table.splitlines()).replace(" ", "")
    assert all(name.format(number).replace(" ", "") in letters for number in range(6))


def test_note_says_when_tasks_differ() -> None:
    assert "same tasks" not in format_table(two_starts())
    rows = [row("a", 0, 0, 5), row("a", 1, 0, 5), row("b", 2, 0, 5)]
    table = format_table(rows)
    assert "over 1 to 2 tasks" in table
    assert "the starts did not all meet the same tasks" in " ".join(table.split())


def test_markdown_table() -> None:
    rows = [*two_starts(), row("a|b", 0, 0, 1), row("a|b", 1, 0, 1)]
    lines = markdown(summary_table(pd.DataFrame(rows))).splitlines()
    assert lines[0] == "| Start | Accuracy % | Variance | Worst 10 % | Worst 20 % | Worst 30 % |"
    assert lines[1] == "|:--|--:|--:|--:|--:|--:|"
    assert lines[2].startswith("| random | 80.0 ± 14.1 | 50.0 ± 70.7 | 75.0 ± 21.2 |")
    assert lines[3].startswith("| coprefl | **85.0 ± 7.1** | 50.0 ± 70.7 | **80.0 ± 14.1** |")
    assert lines[4].startswith("| a\\|b | 10.0 ± 0.0 | **0.0 ± 0.0** |")


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
        format_table([])


def test_summary_csv(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    rows = pd.DataFrame([row("a,b", 0, 0, 5), row("a,b", 0, 1, 10)])
    results.write_csv(path, results.summary(rows))
    with path.open(newline="") as file:
        (entry,) = csv.DictReader(file)
    assert entry["start"] == "a,b"
    assert (entry["tasks"], entry["accuracy"], entry["variance"]) == ("1", "75.0", "625.0")
    assert (entry["worst-40%"], entry["best-10%"], entry["accuracy std"]) == ("50.0", "100.0", "")


def test_a_start_that_did_not_learn_is_not_best() -> None:
    """The most accurate one would be; of two, the one that is left stands alone."""
    trouble = {"coprefl": "did not learn: loss 4.38, guessing is 4.382"}
    text = plain(summary_table(pd.DataFrame(two_starts()), trouble))
    _, _, random, coprefl, *_ = text.splitlines()
    assert coprefl.startswith("coprefl †  85.0 ±  7.1 ")
    assert "*" not in random + coprefl
    assert " ".join(text.split()).endswith(f"† coprefl {trouble['coprefl']}.")
