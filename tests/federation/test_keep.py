"""The best round of a run and early ends, by hand: accuracies go up and down."""

import math

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.client import NumPyClient

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import TorchClient, client_app
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.federation.keep import Keep
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import Cyclic, FedAvg, Schedule
from tests.common.checks import Killed, files, refusal

START = {"w": np.zeros(2, np.float32)}
ACCURACIES = (0.25, 0.5, 0.5, 0.75, 0.25, 0.5, 0.75, 0.5)
"""The accuracy in each round. Round 4 is the first with the largest, and round 2 with 0.5."""
BROKEN, UNDEFINED = "broken", math.nan


class Scripted(NumPyClient):
    """Adds 1 to the weights in each round, so a model's weights are its round's number.

    Its loss is 1 minus the accuracy of the round. A metric of its own is undefined if that is nan.
    """

    def __init__(self, values):
        self.values = values

    def fit(self, parameters, config):
        return [array + 1 for array in parameters], 4, {"loss": 1.0}

    def evaluate(self, parameters, config):
        value = self.values[config["server-round"] - 1]
        if value == BROKEN:
            raise ValueError("broken")
        if math.isnan(value):
            return 1.0, 4, {"accuracy": 0.5}
        return 1 - value, 4, {"accuracy": value, "metric:f1": value}


def run(keep, values=ACCURACIES, rounds=8, strategy=None, clients=2, **more):
    grid = LocalGrid(client_app(lambda _, i: Scripted(values)))
    strategy = strategy or FedAvg(clients=clients)
    return strategy.start(grid, to_record(START), rounds, keep=keep, **more)


def rounds_of(result):
    """Return (best round, last round): the weights of both models are their rounds' numbers."""
    last = len(result.history.train)
    for number, arrays in ((result.best.round, result.best.arrays), (last, None)):
        arrays = from_record(result.arrays) if arrays is None else arrays
        assert arrays["w"].tobytes() == np.full(2, number, np.float32).tobytes()
    return result.best.round, last


# Accuracies of 0.25, 0.5, 0.5, 0.75, 0.25, 0.5, 0.75, 0.5 in the rounds 1 to 8.
BY_HAND = {
    "accuracy": (4, 8),
    "loss": (4, 8),  # 1 minus the accuracy: the smallest is the best.
    "accuracy:mode=min": (1, 8),
    "metric:f1:mode=max": (4, 8),
    "accuracy:patience=1": (2, 3),  # Round 3 only equals round 2.
    "accuracy:patience=2": (4, 6),
    "accuracy:patience=3": (4, 7),
    "accuracy:patience=4": (4, 8),
    "accuracy:stop-at=0.5": (2, 2),
    "loss:stop-at=0.25": (4, 4),
    "loss:stop-at=0.2": (4, 8),
}


@pytest.mark.parametrize(("keep", "expected"), BY_HAND.items(), ids=list(BY_HAND))
def test_best_and_last_round_are_those_by_hand(keep, expected):
    result = run(keep)
    assert rounds_of(result) == expected
    named = "loss" if keep.startswith("loss") else "accuracy"
    assert result.best.value == result.history.evaluate[expected[0]][named]


def test_only_rounds_with_an_evaluation_count():
    """Rounds 3, 6 and 8, the last, are evaluated: 0.5, 0.5, 0.5."""
    assert rounds_of(run("accuracy", strategy=FedAvg(evaluate_every=3, clients=2))) == (3, 8)
    # Rounds 4 and 5 have no better value, but nothing is measured before round 6.
    patient = run("accuracy:patience=1", strategy=FedAvg(evaluate_every=3, clients=2))
    assert rounds_of(patient) == (3, 6)


def test_failed_evaluation_and_values_that_are_not_finite_are_never_the_best():
    values = (UNDEFINED, 0.25, 0.75, 0.5, UNDEFINED, math.inf)

    def measured(server_round, arrays):
        value = values[server_round - 1]
        return None if server_round == 3 else MetricRecord({"auc": value})

    # The server measures nothing in round 3. Round 6 is the second without a better value.
    result = run("server-auc:mode=max,patience=2", values, evaluate_fn=measured, rounds=6)
    assert rounds_of(result) == (4, 6)
    nothing = run(
        "server-auc:mode=max,patience=2", evaluate_fn=lambda *_: MetricRecord({"auc": math.nan})
    )
    assert (nothing.best, len(nothing.history.train)) == (None, 2)
    # The evaluation of one client fails, maybe due to its data: these rounds end no run.
    broken = (0.25, BROKEN, 0.5, BROKEN, BROKEN, BROKEN, BROKEN, 0.25)
    assert rounds_of(run("accuracy:patience=2", broken, clients=1)) == (3, 8)
    # A metric that no client could compute was not measured.
    assert rounds_of(run("metric:f1:mode=max,patience=1", (*values[:5], 0.25), 6)) == (3, 4)


def test_metric_of_the_server_s_evaluation():
    def measured(server_round, arrays):
        return MetricRecord({"error": abs(server_round - 2.5)})

    assert rounds_of(run("server-error:mode=min", evaluate_fn=measured)) == (2, 8)


def test_hooks_see_the_best_round_so_far():
    seen = []
    run("accuracy", hooks=[seen.append])
    assert [report.best.round for report in seen] == [1, 2, 2, 4, 4, 4, 4, 4]
    assert not any(array.flags.writeable for array in seen[-1].best.arrays.values())


def test_whole_run_of_a_schedule_counts():
    phases = [(Cyclic(participants=1, clients=2), 3), (FedAvg(), 5)]
    result = run("accuracy:patience=3", strategy=Schedule(phases))
    assert (result.best.round, len(result.history.train)) == (4, 7)


@pytest.mark.parametrize("killed", range(1, 8))
@pytest.mark.parametrize("every", [1, 3])
def test_resumed_run_has_the_bytes_of_an_uninterrupted_run(tmp_path, killed, every):
    def kill(report):
        if report.round == killed:
            raise Killed

    for folder in ("whole", "part"):
        (tmp_path / folder).mkdir()
    how = {"checkpoint_every": every}
    whole = run("accuracy:patience=4", checkpoint=tmp_path / "whole" / "c", **how)
    part = {"checkpoint": tmp_path / "part" / "c", "resume": True, **how}
    with pytest.raises(Killed):
        run("accuracy:patience=4", hooks=[kill], **part)
    resumed = run("accuracy:patience=4", **part)
    assert files(tmp_path / "part") == files(tmp_path / "whole")
    assert rounds_of(resumed) == rounds_of(whole) == (4, 8)
    again = run("accuracy:patience=4", **part)
    assert rounds_of(again) == (4, 8)


def test_run_that_ended_early_ends_again_and_another_choice_is_refused(tmp_path):
    where = {"checkpoint": tmp_path / "c", "resume": True}
    assert rounds_of(run("accuracy:patience=2", **where)) == (4, 6)
    seen = []
    assert rounds_of(run("accuracy:patience=2", hooks=[seen.append], **where)) == (4, 6)
    assert [(report.round, report.num_rounds, report.best.round) for report in seen] == [(6, 6, 4)]
    with pytest.raises(SettingsError, match=r"another run: its keep is 'accuracy:patience=2'"):
        run("accuracy:patience=3", **where)


def test_choice_is_written_as_it_is_read():
    text = "metric:auc:mode=min,patience=3,stop-at=0.5,every=2,share=0.25,model=last"
    choice = {"metric": "metric:auc", "mode": "min", "patience": 3, "stop_at": 0.5, "every": 2}
    assert Keep.read(text) == Keep.read(choice | {"share": 0.25, "model": "last"})
    assert str(Keep.read(text)) == text
    assert str(Keep.read({"patience": 20})) == "accuracy:patience=20"


REFUSED = {
    "accuracy:mode=largest": "keep: mode: unknown value 'largest': known are max, min",
    "accuracy:patiense=3": "keep: unknown option 'patiense': did you mean 'patience'?",
    "accuracy:patience=0": "keep: patience = 0: must be at least 1",
    "acuracy": "keep: unknown metric 'acuracy': did you mean 'accuracy'?",
    "server-acc": "keep: unknown metric 'server-acc': did you mean 'server-auc'?",
}


@pytest.mark.parametrize(("keep", "line"), REFUSED.items(), ids=list(REFUSED))
def test_wrong_choice_is_refused_in_one_line(keep, line):
    how = {"evaluate_fn": lambda *_: MetricRecord({"auc": 0.5})}
    assert refusal(run, keep, rounds=1, **how) == line


def test_run_that_can_never_measure_is_refused(federation):
    assert refusal(run, 5).startswith("keep: got 5; pass a text or a mapping, as in ")
    line = "keep: nothing measures 'accuracy': set evaluate_every"
    assert refusal(run, "accuracy", strategy=FedAvg(evaluate_every=0)) == line
    line = "keep: nothing measures 'server-auc': set evaluate_fn"
    assert refusal(run, "server-auc") == line
    app = federation.app(TorchClient, test=None)
    with pytest.raises(
        RunFailedError, match=r"first evaluation .*: this client has no test samples"
    ):
        FedAvg(clients=4).start(LocalGrid(app), to_record(federation.arrays()), 3, keep="loss")
