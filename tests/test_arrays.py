"""Arrays keep name, shape and dtype in records and files; on the local grid none is serialised."""

import copy
import pickle

import flwr.app
import numpy as np
import pytest

from coprefl_flwr import arrays as arrays_module
from coprefl_flwr.arrays import (
    cast,
    cast_like,
    checksum_of,
    from_record,
    lazy_array,
    mismatch,
    numbers_of,
    read_sealed,
    size_of,
    to_record,
    write_sealed,
)
from coprefl_flwr.clients import CoPreFLClient
from coprefl_flwr.strategies import CoPreFL
from tests.common.federation import Federation

DTYPES = [np.float16, np.float32, np.float64, np.int64, np.bool_]


@pytest.mark.parametrize("dtype", DTYPES)
def test_record_keeps_dtype_shape_and_order(dtype):
    sent = {
        "z.scalar": np.array(1, dtype),
        "a.matrix": np.arange(6).astype(dtype).reshape(2, 3).T,
        "m.empty": np.zeros((0, 2), dtype),
    }
    back = from_record(to_record(sent))
    assert list(back) == list(sent)
    for name, array in sent.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back[name], array)


def test_a_scalar_of_numpy_is_a_0d_array():
    back = from_record(to_record({"count": np.int64(2**60 + 1)}))["count"]
    assert isinstance(back, np.ndarray)
    assert back.shape == ()
    assert int(back) == 2**60 + 1


def test_what_is_read_is_a_copy():
    record = to_record({"w": np.float32([1, 2])})
    from_record(record)["w"][0] = 9
    np.testing.assert_array_equal(from_record(record)["w"], [1, 2])


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.int64, [-2, -1, 0, 0, 2, 2, 3]),
        (np.float64, [-1.6, -1.4, -0.4, 0.5, 1.5, 2.4, 2.6]),
    ],
)
def test_whole_numbers_are_rounded(dtype, expected):
    """They are not cut off: 2.6 becomes 3 and -1.6 becomes -2; halves become even numbers."""
    rounded = cast(np.array([-1.6, -1.4, -0.4, 0.5, 1.5, 2.4, 2.6]), np.dtype(dtype))
    assert rounded.dtype == dtype
    np.testing.assert_array_equal(rounded, expected)


def test_a_minority_does_not_make_a_mean_true():
    np.testing.assert_array_equal(cast(np.array([0.1, 0.9]), np.dtype(np.bool_)), [False, True])


@pytest.mark.parametrize("dtype", DTYPES)
def test_cast_like_gives_the_templates_dtypes_and_order(dtype):
    template = {"b": np.zeros(2, dtype), "a": np.array(0, dtype), "absent": np.zeros(1)}
    arrays = cast_like({"a": np.array(1.0), "b": np.array([0.0, 1.0])}, template)
    assert list(arrays) == ["b", "a"]
    assert {array.dtype for array in arrays.values()} == {np.dtype(dtype)}
    assert arrays["a"].shape == ()
    assert arrays["a"] == 1


TEMPLATE = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32), "n": np.array(0)}


def changed(**arrays):
    return {**TEMPLATE, **arrays}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (TEMPLATE, None),
        (changed(x=np.zeros(1)), "array 'x' is not one of the 3 expected arrays"),
        ({"w": TEMPLATE["w"], "n": TEMPLATE["n"]}, "array 'b' is missing"),
        ({}, "array 'w' is missing"),
        (changed(w=np.zeros((3, 2))), "array 'w' has shape (3, 2); expected is (2, 3)"),
        (changed(n=np.zeros(1, np.int64)), "array 'n' has shape (1,); expected is ()"),
        (changed(b=np.float32([0, np.nan])), "array 'b' holds a NaN or an infinity"),
        (changed(b=np.float16([-np.inf, 0])), "array 'b' holds a NaN or an infinity"),
        (changed(n=np.array(np.inf)), "array 'n' holds a NaN or an infinity"),
    ],
)
def test_misfits_are_named(arrays, message):
    assert mismatch(arrays, TEMPLATE) == message


def test_a_gradient_may_cover_a_part_but_not_nothing():
    part = {"b": np.zeros(2, np.float32)}
    assert mismatch(part, TEMPLATE, subset=True) is None
    assert mismatch({}, TEMPLATE, subset=True) == "array 'w' is missing"
    assert mismatch({"b": np.zeros(3)}, TEMPLATE, subset=True) == (
        "array 'b' has shape (3,); expected is (2,)"
    )
    assert mismatch({"x": np.zeros(3)}, TEMPLATE, subset=True) == (
        "array 'x' is not one of the 3 expected arrays"
    )


@pytest.mark.parametrize(
    ("array", "dtype", "line"),
    [
        (
            np.float64([1e300]),
            np.float32,
            "array 'w' holds 1e+300, which is outside the range of float32",
        ),
        (
            np.float64([-7e4]),
            np.float16,
            "array 'w' holds -70000, which is outside the range of float16",
        ),
        (
            np.float64([1e250]),
            np.float64,
            "array 'w' holds 1e+250, which is outside the range of float64",
        ),
        (
            np.float64([2.0**63]),
            np.int64,
            "array 'w' holds 9.22337e+18, which is outside the range of int64",
        ),
        (np.int64([300]), np.uint8, "array 'w' holds 300, which is outside the range of uint8"),
        (np.float64([-0.4, 255.3]), np.uint8, None),
        (np.float64([3e38, -3e38]), np.float32, None),
        (np.zeros((0, 2)), np.float32, None),
        (np.float64([np.inf]), np.int64, "array 'w' holds a NaN or an infinity"),
        (np.float32([1e30, -1e30]), np.float32, None),  # Their squares are not finite.
        (np.float32([0, -np.inf]), np.float32, "array 'w' holds a NaN or an infinity"),
    ],
)
def test_numbers_are_finite_in_the_dtype_that_was_sent(array, dtype, line):
    assert mismatch({"w": array}, {"w": np.zeros(array.shape, dtype)}) == line
    # A sum of ten such numbers.
    sums = {"w": 10 * np.float64(array)}
    problem = mismatch(sums, {"w": np.zeros(array.shape, dtype)}, weights={"w": 10.0})
    assert problem == line


@pytest.mark.parametrize(
    ("array", "weight", "number"),
    [
        (np.float32([1e30]), 1e-20, "1e+50, which is outside the range of float32"),
        (np.float32([1.0]), 1e-39, "1e+39, which is outside the range of float32"),
        (np.float16([100]), 1e-3, "100000, which is outside the range of float16"),
        # Its square is 0 in float16.
        (np.float16([1e-4]), 1e-12, "1.00017e+08, which is outside the range of float16"),
    ],
)
def test_numbers_are_divided_by_small_weights(array, weight, number):
    template = {"w": np.zeros(1, array.dtype)}
    assert mismatch({"w": array}, template, weights={"w": weight}) == f"array 'w' holds {number}"


ARRAYS_OF_ALL_KINDS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "in Fortran's order": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "in neither's": np.arange(24, dtype=np.float16).reshape(2, 3, 4).transpose(1, 0, 2),
    "turned around": np.arange(5)[::-1],
    "number": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.bool_),
    "wide": np.zeros((1,) * 25, np.uint8),
    "big-endian": np.arange(3, dtype=">f8"),
}


@pytest.fixture(params=ARRAYS_OF_ALL_KINDS)
def array(request):
    return ARRAYS_OF_ALL_KINDS[request.param]


@pytest.mark.parametrize("copied", [True, False])
def test_it_is_what_flower_makes_of_the_array(array, copied):
    ours, flowers = lazy_array(array, copy=copied), flwr.app.Array(array)
    assert (ours.dtype, ours.shape, ours.stype) == (flowers.dtype, flowers.shape, flowers.stype)
    assert ours.data == flowers.data
    assert size_of(ours) == size_of(flowers) == len(flowers.data)
    assert ours.deflate() == flowers.deflate()
    assert ours.object_id == flowers.object_id
    assert ours == flowers
    assert flowers == ours
    assert ours != flwr.app.Array(np.ones(2))
    own, expected = ours.numpy(), flowers.numpy()
    assert (own.dtype, own.flags.fnc) == (expected.dtype, expected.flags.fnc)
    np.testing.assert_array_equal(own, expected)
    for other in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert type(other) is flwr.app.Array  # The other process needs none of our code.
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
    ours, other = lazy_array(np.zeros(3), copy=True), flwr.app.Array(np.ones(3))
    ours.data = other.data
    assert ours == other
    assert size_of(ours) == len(other.data)
    np.testing.assert_array_equal(ours.numpy(), np.ones(3))
    np.testing.assert_array_equal(numbers_of(ours), np.ones(3))


def test_what_cannot_be_serialised_is_refused_at_once():
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        to_record({"a": np.array([None])})


def test_a_round_on_the_local_grid_serialises_nothing(monkeypatch):
    """Only Flower serialises the model, to log its size at the start and at the end."""
    federation, serialised = Federation.stochastic(), []
    real = arrays_module.FlowerArray

    def counted(array):
        serialised.append(array)
        return real(array)

    def run(rounds):
        serialised.clear()
        start, grid = to_record(federation.arrays()), federation.grid("2", CoPreFLClient)
        CoPreFL(participants=3, clients=grid.clients).start(grid, start, rounds)
        return len(serialised)

    monkeypatch.setattr(arrays_module, "FlowerArray", counted)
    monkeypatch.setattr(
        arrays_module.Array, "data", property(lambda lazy: counted(lazy.array).data)
    )
    assert run(3) == run(1)


def test_arrays_whatever_their_order(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(7), "c": np.zeros((0, 2))}
    write_sealed(tmp_path / "a", arrays, "a text")
    write_sealed(tmp_path / "b", dict(reversed(arrays.items())), "a text")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    read, text = read_sealed(tmp_path / "a")
    assert text == "a text"
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array, strict=True)
    others = (
        {**arrays, "a": arrays["a"] + np.float64(1e-16) * (arrays["a"] == 0)},
        {**arrays, "b": np.array(7.0)},
        {**arrays, "c": np.zeros((2, 0))},
        {"a": arrays["a"], "b": arrays["b"]},
    )
    known = checksum_of(arrays, "a text")
    assert not any(checksum_of(other, "a text") == known for other in others)
    assert checksum_of(arrays, "text") != checksum_of(arrays, "another")
