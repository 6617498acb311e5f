"""Arrays as tensors, without a warning."""

import warnings

import numpy as np
import pytest
import torch

from coprefl_flwr.data import Samples, make_dataset
from coprefl_flwr.transfer import tensor_of
from tests.common.federation import CPU


def of_another_process(array):
    """Return an equal array in read-only memory, like the arrays that Ray gives to a process."""
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


@pytest.fixture(autouse=True)
def no_warning():
    """Make each warning an error; by default torch warns only once in a process."""
    torch.set_warn_always(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(False)


def test_memory_is_shared_if_it_can_be_written_to():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    locked = array.view()
    locked.flags.writeable = False
    assert tensor_of(locked).data_ptr() == tensor_of(array).data_ptr() == array.ctypes.data
    assert not locked.flags.writeable
    assert tensor_of(np.array(3.0)).item() == 3
    for other in (of_another_process(array), array[::-1]):
        assert tensor_of(other).tolist() == other.tolist()
        assert tensor_of(other).data_ptr() != other.ctypes.data


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("positions", [slice(1, 3), np.arange(2)])
def test_samples_whose_arrays_are_read_only(dtype, positions):
    """Before, the first message of a worker printed "The given NumPy array is not writable"."""
    images = torch.from_numpy(np.arange(64).astype(dtype).reshape(4, 1, 4, 4))
    data = make_dataset("made up", images, np.arange(4))
    labels = of_another_process(data.labels)
    inputs, targets = Samples(data, labels, labels).batch(positions, CPU)
    assert (len(inputs), targets.tolist()) == (2, np.arange(4)[positions].tolist())
