import math

import pytest

from coprefl_flwr.report.training_checks import DIVERGED, NOT_LEARNT, problem_of

GUESSING = math.log(80)


@pytest.mark.parametrize(
    ("losses", "more", "what"),
    [
        ([4.386, 4.38, 4.376], {}, NOT_LEARNT),  # An earlier first run of the README, 80 classes.
        ([4.386, 4.3, 4.29], {}, None),  # 2 % below ln 80 is 4.294.
        ([4.386, 1.96e31], {}, DIVERGED),
        ([4.386, None], {}, DIVERGED),  # Results contain None if a loss is not finite.
        ([4.386, math.inf], {}, DIVERGED),
        ([9.0, 8.7], {}, NOT_LEARNT),  # Below twice ln 80, 8.76.
        ([None, 3.0], {}, None),
        ([], {}, None),
        # The last tenth of 20 rounds is two: 4.0 and 4.8 are no better than guessing.
        ([3.0] * 18 + [4.0, 4.8], {}, NOT_LEARNT),
        ([3.0] * 19 + [4.8], {}, None),
        # The loss of a chain is measured on one client's data after another's.
        ([4.38, 4.379], {"chained": True}, NOT_LEARNT),
        ([4.38, 9.5], {"chained": True}, None),
        ([4.38, 44.0], {"chained": True}, DIVERGED),
        # If the loss contains another term, a value above ln C has no meaning.
        ([4.5], {"comparable": False}, None),
        ([44.0], {"comparable": False}, DIVERGED),
        # The start's loss over all clients' data takes precedence over the losses of the rounds.
        ([3.0], {"start_loss": 4.38}, NOT_LEARNT),
        ([4.38], {"start_loss": 3.0}, None),
        ([3.0], {"start_loss": math.nan}, DIVERGED),
        ([3.0], {"start_loss": 5.0, "chained": True}, None),
    ],
)
def test_diverged_and_unlearned_training_is_detected(losses, more, what):
    problem = problem_of(losses, 80, **more)
    assert (problem.partition(":")[0] if problem else None) == what


def test_training_with_one_class_is_always_learnt():
    """Random guessing has loss 0, so any loss would be far above it."""
    assert problem_of([0.3, 0.1], 1) is None
    assert problem_of([0.3, None], 1) == "diverged: loss not finite"
    assert problem_of([4.376], 80) == "did not learn: loss 4.376 (random guessing: 4.382)"
