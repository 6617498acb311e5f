"""Arrays keep name, shape and dtype in records and files."""

import copy
import pickle

import flwr.app
import numpy as np
import pytest

from coprefl_flwr.arrays import (
    append_prefixed,
    cast_like,
    checksum_of,
    from_record,
    lazy_array,
    mismatch,
    numbers_of,
    read_sealed,
    size_of,
    split_prefixed,
    to_record,
    write_sealed,
)

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
        np.testing.assert_array_equal(back[name], array, strict=True)


def test_record_copies_arrays_unless_copy_is_false():
    array = np.zeros(3, np.float32)
    copied, shared = to_record({"a": array}), to_record({"a": array}, copy=False)
    assert from_record(shared, copy=False)["a"] is array
    from_record(shared)["a"].fill(1)
    array[0] = 5
    from_record(copied)["a"].fill(1)
    np.testing.assert_array_equal(from_record(copied)["a"], np.zeros(3))
    np.testing.assert_array_equal(from_record(shared)["a"], [5, 0, 0])


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.int64, [-2, -1, 0, 0, 2, 2, 3]),
        (np.float64, [-1.6, -1.4, -0.4, 0.5, 1.5, 2.4, 2.6]),
        (np.bool_, [True, True, False, False, True, True, True]),
    ],
)
def test_cast_rounds_whole_numbers(dtype, expected):
    """They are not cut off: 2.6 becomes 3 and -1.6 becomes -2; halves become even numbers."""
    numbers = np.array([-1.6, -1.4, -0.4, 0.5, 1.5, 2.4, 2.6])
    template = {"number": np.array(0, dtype), "a": np.zeros(7, dtype), "absent": np.zeros(1)}
    arrays = cast_like({"a": numbers, "number": np.array(1.0)}, template)
    assert list(arrays) == ["number", "a"]
    np.testing.assert_array_equal(arrays["a"], np.array(expected, dtype), strict=True)
    np.testing.assert_array_equal(arrays["number"], np.array(1, dtype), strict=True)


TEMPLATE = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32), "n": np.array(0)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"x": np.zeros(1)}, "array 'x' is not one of the 3 expected arrays"),
        ({"b": None}, "array 'b' is missing"),
        ({"w": np.zeros((3, 2))}, "array 'w' has shape (3, 2); expected is (2, 3)"),
        ({"b": np.float32([0, np.nan])}, "array 'b' holds a NaN or an infinity"),
        ({"b": np.float16([-np.inf, 0])}, "array 'b' holds a NaN or an infinity"),
    ],
)
def test_mismatch_names_the_array_that_does_not_fit(changes, message):
    arrays = {name: array for name, array in (TEMPLATE | changes).items() if array is not None}
    assert mismatch(arrays, TEMPLATE) == message


def test_gradient_may_have_a_part_of_the_arrays():
    assert mismatch({"b": np.zeros(2, np.float32)}, TEMPLATE, subset=True) is None
    for part, problem in (
        ({}, "array 'w' is missing"),
        ({"b": np.zeros(3)}, "array 'b' has shape (3,); expected is (2,)"),
        ({"x": np.zeros(3)}, "array 'x' is not one of the 3 expected arrays"),
    ):
        assert mismatch(part, TEMPLATE, subset=True) == problem


NOT_FINITE = "array 'w' holds a NaN or an infinity"


@pytest.mark.parametrize(
    ("array", "dtype", "problem"),
    [
        (np.float64([1e300]), np.float32, "1e+300"),
        (np.float64([1e250]), np.float64, "1e+250"),
        (np.float64([2.0**63]), np.int64, "9.22337e+18"),
        (np.int64([300]), np.uint8, "300"),
        (np.float64([-0.4, 255.3]), np.uint8, None),
        (np.zeros((0, 2)), np.float32, None),
        (np.float64([np.inf]), np.int64, NOT_FINITE),
        (np.float32([0, -np.inf]), np.float32, NOT_FINITE),
        (np.float32([0, np.nan]), np.float32, NOT_FINITE),
        (np.float32([3e38, -3e38]), np.float32, None),  # Their l2 norm is no float32.
    ],
)
def test_numbers_must_be_finite_in_the_dtype_that_was_sent(array, dtype, problem):
    template = {"w": np.zeros(array.shape, dtype)}
    if problem not in (None, NOT_FINITE):
        problem = f"array 'w' holds {problem}, which is outside the range of {np.dtype(dtype)}"
    assert mismatch({"w": array}, template) == problem
    # A sum of ten such numbers.
    assert mismatch({"w": 10 * np.float64(array)}, template, weights={"w": 10.0}) == problem


@pytest.mark.parametrize(
    ("array", "weight", "number"),
    [
        (np.float32([1.0]), 1e-39, "1e+39, which is outside the range of float32"),
        (np.float16([100]), 1e-3, "100000, which is outside the range of float16"),
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
    "big-endian": np.arange(3, dtype=">f8"),
}


@pytest.fixture(params=ARRAYS_OF_ALL_KINDS)
def array(request):
    return ARRAYS_OF_ALL_KINDS[request.param]


@pytest.mark.parametrize("copied", [True, False])
def test_lazy_array_is_what_flower_makes_of_the_array(array, copied):
    ours, flowers = lazy_array(array, copy=copied), flwr.app.Array(array)
    assert (ours.dtype, ours.shape, ours.stype) == (flowers.dtype, flowers.shape, flowers.stype)
    assert ours.data == flowers.data
    assert size_of(ours) == size_of(flowers) == len(flowers.data)
    assert ours.deflate() == flowers.deflate()
    assert ours.object_id == flowers.object_id
    one, expected = ours.numpy(), flowers.numpy()
    assert (one.dtype, one.flags.fnc) == (expected.dtype, expected.flags.fnc)
    np.testing.assert_array_equal(one, expected)
    for other in (pickle.loads(pickle.dumps(ours, 4)), copy.deepcopy(ours)):
        assert type(other) is flwr.app.Array  # The other process needs none of our code.
        assert other == flowers
    buffers = []
    content = pickle.dumps(ours, 5, buffer_callback=buffers.append)
    other = pickle.loads(content, buffers=buffers)
    assert other.data == flowers.data
    if ours.array is not None and array.size > 1:
        assert np.shares_memory(numbers_of(other), numbers_of(ours))


def test_array_of_objects_is_refused():
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        to_record({"a": np.array([None])})


@pytest.mark.parametrize("durable", [True, False])
def test_sealed_file_is_the_same_in_any_order_of_arrays(tmp_path, durable):
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(7), "c": np.zeros((0, 2))}
    write_sealed(tmp_path / "a", arrays, "a text", durable=durable)
    write_sealed(tmp_path / "b", dict(reversed(arrays.items())), "a text", durable=durable)
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
    checksum = checksum_of(arrays, "a text")
    assert checksum not in [checksum_of(other, "a text") for other in others]
    assert checksum != checksum_of(arrays, "another")


@pytest.mark.parametrize("name", ["control/a.weight", "control", "/", "rates/control/a"])
def test_groups_of_a_record_are_split_for_all_names_of_layers(name):
    """Before, an array of the model could be taken for one of the group "control"."""
    model, control = {name: np.zeros(1), "b": np.zeros(2)}, {name: np.ones(1)}
    both = append_prefixed(append_prefixed(model, "control", control), "rates", control)
    first, rates = split_prefixed(both, "rates")
    assert split_prefixed(first, "control") == (model, control)
    assert rates == control
