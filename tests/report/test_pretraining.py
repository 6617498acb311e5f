"""What a table says of the pre-training."""

import math

from coprefl_flwr.report.forms import markdown, plain
from coprefl_flwr.report.results import frame
from coprefl_flwr.report.starts import pretraining_summary, pretraining_table
from coprefl_flwr.report.table import NONE


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
