"""The page of what fits with what: each cell has the outcome that the page says."""

import pytest

from tests.common.rounds_by_hand import Problem
from tests.records.fits import BY_HAND, NO, PAGE, RUNS, all_outcomes, outcome, table

SOME = [
    ("fedavg", "pixels", False, "adamw", BY_HAND),
    ("coprefl", "labels", True, "adamw", BY_HAND),
    ("coprefl", "tokens", False, "sgd", BY_HAND),
    ("per-fedavg", "tokens", True, "adamw", BY_HAND),
    ("fedmeta", "tokens", False, "sgd", RUNS),
    ("fedbabu", "numbers", False, "adamw", BY_HAND),
    ("scaffold", "numbers", True, "sgd", BY_HAND),
    ("cyclic", "numbers", False, "sgd", BY_HAND),
    ("per-fedavg", "numbers", True, "sgd", BY_HAND),
    ("fedmeta", "labels", True, "sgd", RUNS),
    ("coprefl-sgd", "numbers", False, "adamw", RUNS),
    ("ridge", "classes", True, "sgd", RUNS),
    ("scaffold", "numbers", False, "adamw", NO),
    ("moon", "pixels", False, "sgd", NO),
    ("fedbabu", "classes", True, "sgd", NO),
    ("fedetf", "labels", False, "sgd", NO),
    ("ncm", "numbers", False, "sgd", NO),
]


@pytest.mark.parametrize(("method", "kind", "frozen", "optimiser", "expected"), SOME)
def test_one_cell_of_each_kind(method, kind, frozen, optimiser, expected):
    found, reason = outcome(method, Problem(kind, frozen, optimiser))
    assert found == expected
    assert (found == NO) == bool(reason)
    assert "\n" not in reason
    line = next(x for x in PAGE.read_text().splitlines() if x.startswith(f"| `{method}`"))
    assert found in line


@pytest.mark.slow
def test_the_page_has_the_outcome_of_every_cell():
    assert table(all_outcomes()) in PAGE.read_text()
