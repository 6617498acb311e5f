"""Prototypes of clients without samples of some classes: every class keeps its row."""

import numpy as np
import pytest

from coprefl_flwr.learning.prototypes import aggregated, padded, unit_rows

# Both clients have class 0, the first has class 1, the second has class 3, and none has class 2.
FIRST = {
    "prototypes": np.float32([[1, 0], [0, 1], [0, 0], [0, 0]]),
    "counts": np.float32([3, 2, 0, 0]),
}
SECOND = {
    "prototypes": np.float32([[0, 1], [0, 0], [0, 0], [-1, 0]]),
    "counts": np.float32([1, 0, 0, 4]),
}


def test_global_prototypes_by_hand():
    """Class 0: 3/4 [1, 0] + 1/4 [0, 1]; class 2 has no samples and a row of zeros."""
    shared = aggregated([FIRST, SECOND])
    assert shared["counts"].tolist() == [4, 2, 0, 4]
    assert shared["prototypes"].tolist() == [[0.75, 0.25], [0, 1], [0, 0], [-1, 0]]
    assert {array.dtype for array in shared.values()} == {np.dtype(np.float64)}
    assert aggregated([SECOND, FIRST])["prototypes"].tolist() == shared["prototypes"].tolist()


def test_normalised_rows_have_length_1_or_stay_zero():
    rows = unit_rows(aggregated([FIRST, SECOND])["prototypes"])
    length = np.sqrt(0.75**2 + 0.25**2)
    assert rows == pytest.approx(
        np.array([[0.75 / length, 0.25 / length], [0, 1], [0, 0], [-1, 0]])
    )


def test_client_without_a_class_gets_its_global_prototype():
    shared = aggregated([FIRST, SECOND])
    assert padded(FIRST, shared).tolist() == [[1, 0], [0, 1], [0, 0], [-1, 0]]
    assert padded(SECOND, shared).tolist() == [[0, 1], [0, 1], [0, 0], [-1, 0]]
