"""What is trained on features: the sizes of Table 7, and weights that are a function of a key."""

import pytest
import torch

from coprefl_flwr.models import model_arrays
from coprefl_flwr.models.lightweight import lightweight_model, projection_head


@pytest.mark.parametrize("backbones", [1, 3])
def test_the_papers_counts_of_weights(backbones):
    """Table 2: 133,632 weights of one backbone, 395,776 of three."""
    arrays = model_arrays(lightweight_model(512 * backbones, 10))
    weights = sum(array.size for array in arrays.values() if array.ndim > 1)
    assert weights == {1: 133_632, 3: 395_776}[backbones]


def names(model):
    return [name for name, _ in model.named_children()]


def test_layers():
    assert names(projection_head(8)) == ["projection", "relu", "norm"]
    assert names(projection_head(8, "none")) == ["projection", "relu"]
    assert names(lightweight_model(8, 5)) == ["projection", "relu", "norm", "classifier"]
    assert names(lightweight_model(8, 5, "none")) == ["projection", "relu", "classifier"]
    assert projection_head(8)(torch.rand(3, 8)).shape == (3, 256)
    assert lightweight_model(8, 5)(torch.rand(3, 8)).shape == (3, 5)


def test_weights_are_a_function_of_the_key_and_the_callers_generator_is_left_alone():
    before = torch.random.get_rng_state()
    first, again, other = (projection_head(8, seed_key=(k,))[0].weight for k in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
