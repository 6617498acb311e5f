"""A training is compared with its first round, and the tasks of a start with those of `random`."""

import math

import pandas as pd
import pytest

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.training_checks import NOT_FINITE, not_learnt, problem_of


@pytest.mark.parametrize(
    ("losses", "problem"),
    [
        ([4.386, 1.96e31], "diverged: loss 1.96e+31 (first round: 4.386)"),
        ([4.386, None], NOT_FINITE),  # Results contain None if a loss is not finite.
        ([4.386, math.inf], NOT_FINITE),
        ([0.3, 3.1], "diverged: loss 3.100 (first round: 0.300)"),
        ([4.386, 43.0], None),  # Less than ten times the first: as of clients in a chain.
        ([None, 3.0], None),
        ([], None),
        # Five times the cross-entropy, a fifth of it, and a loss below 0.
        ([21.9, 15.0, 8.7], None),
        ([0.88, 0.87], None),
        ([-2.0, -3.0], None),
        ([-2.0, 17.0], "diverged: loss 17.000 (first round: -2.000)"),
    ],
)
def test_losses_are_compared_with_the_first_round(losses, problem):
    assert problem_of(losses) == problem


def test_start_that_is_no_better_than_random_weights_did_not_learn():
    tasks = {"random": [50.0, 60.0, 70.0], "good": [55.0, 59.0, 90.0], "idle": [60.0, 50.0, 70.0]}
    assert not_learnt(pd.DataFrame(tasks)) == {"idle": "did not learn: 60.00 % (random: 60.00 %)"}
    # Only the tasks that both have are compared: 60 % and 60 %.
    tasks["late"] = [math.nan, 61.0, 71.0]
    tasks["worse"] = [math.nan, 59.0, 70.0]
    assert sorted(not_learnt(pd.DataFrame(tasks))) == ["idle", "worse"]


def test_without_random_weights_nothing_is_said():
    assert not_learnt(pd.DataFrame({"fedavg": [1.0], "coprefl": [0.0]})) == {}
    assert not_learnt(pd.DataFrame({"random": [math.nan], "coprefl": [0.0]})) == {}


def test_start_with_a_loss_as_high_as_that_of_random_weights_did_not_learn():
    tasks = {"random": [0.05, 0.03], "good": [0.04, 0.03], "idle": [0.03, 0.06]}
    problem = "did not learn: 0.0450 (random: 0.0400)"
    assert not_learnt(pd.DataFrame(tasks), column("loss")) == {"idle": problem}
