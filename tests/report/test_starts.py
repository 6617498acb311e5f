"""What the table of starts says, and that of their pre-training."""

import math
import re
from typing import Any

import pandas as pd
import pytest

from coprefl_flwr.report.forms import markdown, plain
from coprefl_flwr.report.results import frame
from coprefl_flwr.report.starts import pretraining_summary, pretraining_table, summary_table
from coprefl_flwr.report.statistics import Summary
from coprefl_flwr.report.table import MARK, NONE, Note, Table, column_of
from tests.common.comparisons import row, two_starts
from tests.common.simulation import ROOT


def format_table(rows: list[dict[str, Any]]) -> str:
    return plain(summary_table(pd.DataFrame(rows)))


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
    (shown,) = re.findall(
        r"```text\n(Start .*?)\n```", (ROOT / "README.md").read_text(), flags=re.DOTALL
    )
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


def test_a_start_that_did_not_learn_is_not_best() -> None:
    """The most accurate one would be; of two, the one that is left stands alone."""
    trouble = {"coprefl": "did not learn: loss 4.38, guessing is 4.382"}
    text = plain(summary_table(pd.DataFrame(two_starts()), trouble))
    _, _, random, coprefl, *_ = text.splitlines()
    assert coprefl.startswith("coprefl †  85.0 ±  7.1 ")
    assert "*" not in random + coprefl
    assert " ".join(text.split()).endswith(f"† coprefl {trouble['coprefl']}.")


def rows(start, accuracies, models=4.0):
    return [
        {
            "phase": "pretraining",
            "start": start,
            "round": number,
            "models-down": models,
            "models-up": models / 2,
            "client-bytes-down": 2_000_000,
            "client-bytes-up": 1_000_000,
            # Of the messages of this run alone, so in no table that compares.
            "wire-bytes-down": 500_000,
            "wire-bytes-up": 700_000,
        }
        | ({} if accuracy is None else {"server-accuracy": accuracy})
        for number, accuracy in enumerate(accuracies, 1)
    ]


ROUNDS = [
    *rows("fedavg", [10.0, None, 40.0, 35.0]),
    *rows("cyclic:rounds=2+fedavg", [20.0, None, 41.0, 50.0], models=8.0),
    *rows("cyclic:rounds=1+fedavg", [20.0, None, 30.0, 39.9], models=8.0),
    {"phase": "downstream", "start": "fedavg", "round": 1},
]


def test_summary_by_hand():
    fedavg, cyclic, slower = pretraining_summary(frame(ROUNDS)).to_dict("records")
    assert math.isnan(fedavg.pop("catches-up"))
    assert fedavg == {
        "start": "fedavg", "rounds": 4, "models": 24.0, "megabytes": 12.0, "final": 35.0,
        "best": 40.0, "best-round": 3,
    }  # fmt: skip
    # At round 3 it is as good as FedAvg alone ever was; the other never is.
    assert cyclic["catches-up"] == 3
    assert (cyclic["final"], cyclic["best"], cyclic["best-round"]) == (50.0, 50.0, 4)
    assert cyclic["models"] == 48
    assert slower["catches-up"] == math.inf


def test_an_untrained_start_which_is_tested_once_sends_nothing():
    untrained = {"phase": "pretraining", "start": "random", "round": 0, "server-accuracy": 9.0}
    found = pretraining_summary(frame([*rows("fedavg", [1.0]), untrained])).set_index("start")
    assert found["megabytes"].to_dict() == {"fedavg": 3, "random": 0}
    assert found["models"].to_dict() == {"fedavg": 6, "random": 0}


def test_a_plain_start_is_found_by_its_last_phase():
    def catches_up(*starts):
        rounds = frame([row for start in starts for row in rows(start, [10.0, 20.0])])
        return pretraining_summary(rounds).set_index("start")["catches-up"]

    two = ("fedavg:q=1", "fedavg:q=2")
    assert catches_up(*two, "cyclic+fedavg:q=2")["cyclic+fedavg:q=2"] == 2
    # Which of the two would it be?
    assert math.isnan(catches_up(*two, "cyclic+fedavg")["cyclic+fedavg"])
    assert catches_up("fedavg:q=1", "cyclic+fedavg")["cyclic+fedavg"] == 2
    assert math.isnan(catches_up("fedavg", "cyclic+scaffold")["cyclic+scaffold"])


def test_table():
    table = plain(pretraining_table(pretraining_summary(frame(ROUNDS))))
    head, rule, fedavg, cyclic, slower, _, why = table.splitlines()
    assert head.startswith("Start  ")
    assert head.endswith("Rounds  Final %  Best %  at round  plain's best by  Models sent  MB sent")
    assert {len(line) for line in table.splitlines()[:5]} == {len(rule)}
    assert fedavg.split() == ["fedavg", "4", "35.0", "40.0", "3", NONE, "24", "12"]
    assert why.startswith(f"{NONE} plain's best by: of a start A+B alone")
    assert cyclic.split()[-3:] == ["3", "48", "12"]
    assert slower.split()[-3:] == ["never", "48", "12"]
    untested = markdown(pretraining_table(pretraining_summary(frame(rows("fedavg", [None])))))
    assert untested.splitlines()[0] == "| Start | Rounds | Models sent | MB sent |"
    assert untested.splitlines()[2] == "| fedavg | 1 | 6 | 3 |"
