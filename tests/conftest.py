"""Fixtures of all tests."""

import pytest

from tests.tiny import Federation


@pytest.fixture
def federation():
    """The tiny federation, training by full-batch steps."""
    return Federation.full_batch()


@pytest.fixture
def stochastic_federation():
    """The tiny federation, training by small batches."""
    return Federation.stochastic()
