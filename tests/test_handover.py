"""Arrays on the local grid are never serialised; anywhere else they are Flower's, to the byte."""

import copy
import pickle

import flwr.app
import numpy as np
import pytest

from coprefl_flwr import handover
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient
from coprefl_flwr.handover import handed, size_of, taken
from coprefl_flwr.strategies import CoPreFL
from tests.common.federation import Federation

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "in Fortran's order": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "in neither's": np.arange(24, dtype=np.float16).reshape(2, 3, 4).transpose(1, 0, 2),
    "turned around": np.arange(5)[::-1],
    "number": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.bool_),
    "wide": np.zeros((1,) * 25, np.uint8),
    "big-endian": np.arange(3, dtype=">f8"),
}


@pytest.fixture(params=ARRAYS)
def array(request):
    return ARRAYS[request.param]


@pytest.mark.parametrize("copied", [True, False])
def test_it_is_what_flower_makes_of_the_array(array, copied):
    ours, flowers = handed(array, copy=copied), flwr.app.Array(array)
    assert (ours.dtype, ours.shape, ours.stype) == (flowers.dtype, flowers.shape, flowers.stype)
    assert ours.data == flowers.data
    assert size_of(ours) == size_of(flowers) == len(flowers.data)
    assert ours.deflate() == flowers.deflate()
    assert ours.object_id == flowers.object_id
    assert ours == flowers
    assert flowers == ours
    assert ours != flwr.app.Array(np.ones(2))
    found, expected = ours.numpy(), flowers.numpy()
    assert (found.dtype, found.flags.fnc) == (expected.dtype, expected.flags.fnc)
    np.testing.assert_array_equal(found, expected)
    for other in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert type(other) is flwr.app.Array  # So that the other process needs nothing of ours.
        assert other == flowers


def test_what_is_read_and_what_is_kept_are_copies(array):
    array = array.copy()
    ours = to_record({"a": array})["a"]
    before = ours.data
    array.fill(1)
    ours.numpy().fill(1)
    assert ours.data == before


def test_without_copies_the_memory_is_shared():
    array = np.zeros(3, np.float32)
    record = to_record({"a": array}, copy=False)
    assert from_record(record, copy=False)["a"] is array
    assert from_record(record)["a"] is not array


def test_new_bytes_take_the_place_of_the_array():
    ours, other = handed(np.zeros(3), copy=True), flwr.app.Array(np.ones(3))
    ours.data = other.data
    assert ours == other
    assert size_of(ours) == len(other.data)
    np.testing.assert_array_equal(ours.numpy(), np.ones(3))
    np.testing.assert_array_equal(taken(ours), np.ones(3))


def test_what_cannot_be_serialised_is_refused_at_once():
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        to_record({"a": np.array([None])})


def test_a_round_on_the_local_grid_serialises_nothing(monkeypatch):
    """But for what Flower logs of the model's size, at the start and the end."""
    federation, made = Federation.stochastic(), []
    real = handover.FlowerArray

    def counted(array):
        made.append(array)
        return real(array)

    def run(rounds):
        made.clear()
        start, grid = to_record(federation.arrays()), federation.grid("2", CoPreFLClient)
        CoPreFL(participants=3, clients=grid.clients).start(grid, start, rounds)
        return len(made)

    monkeypatch.setattr(handover, "FlowerArray", counted)
    monkeypatch.setattr(handover.Array, "data", property(lambda one: counted(one.kept).data))
    assert run(3) == run(1)
