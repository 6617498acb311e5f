"""SCAFFOLD's client: the control variate after steps that are not plain SGD steps."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import weights_of
from coprefl_flwr.clients import SCAFFOLDClient
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import model_arrays
from tests.common.clients import CONFIG, later, make
from tests.common.networks import scaled

II = {**CONFIG, "scaffold-variant": "II"}


def controls(model, value):
    """Return a control variate of the server in which every element is `value`."""
    return [np.full(np.shape(array), value) for array in model_arrays(model).values()]


def fit(client, start, control, config):
    """Return the client's answer as a list, n and the metrics.

    The list has the arrays of the model, followed by the changes of the control variate.
    """
    names = weights_of(model_arrays(client.model))
    extra = {"control": dict(zip(names, control, strict=True))}
    answer, n, metrics = client.fit(start, {**config, "extra": extra})
    return list(answer.values()), n, metrics


def steps_by_hand(model, data, tilt, steps, rate, momentum):
    """Step with momentum on g + tilt; return the plain gradients g of each step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    velocity, gradients = [0.0] * len(trained), []
    for _ in range(steps):
        g = torch.autograd.grad(cross_entropy(model(data[0]), data[1]), trained)
        gradients.append(g)
        with torch.no_grad():
            velocity = [momentum * v + a + tilt for v, a in zip(velocity, g, strict=True)]
            for p, v in zip(trained, velocity, strict=True):
                p -= rate * v
    return gradients


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_option_2_is_a_weighted_mean_of_the_gradients(exact_federation, tmp_path, momentum):
    """With momentum m, the gradient of step j of 3 has the weight 1 + m + ... + m^(3 - j)."""
    training = LocalTraining(local_steps=3, batch_size=1000, learning_rate=0.1, momentum=momentum)
    client, start = make(SCAFFOLDClient, scaled(), exact_federation, tmp_path, training)
    returned, n, _ = fit(client, start, controls(client.model, 0.2), II)
    model = scaled()
    gradients = steps_by_hand(model, exact_federation.whole(1), 0.2, 3, 0.1, momentum)
    weights = [1 + momentum + momentum**2, 1 + momentum, 1]
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    change = dict(zip(model_arrays(model), returned[len(start) :], strict=True))
    for name, terms in zip(names, zip(*gradients, strict=True), strict=True):
        expected = np.average([t.numpy() for t in terms], axis=0, weights=weights)
        assert change[name] == pytest.approx(expected, rel=0, abs=1e-12), name
    for ours, array in zip(returned, model_arrays(model).values(), strict=False):
        assert ours == pytest.approx(array, rel=0, abs=1e-12)
    assert n == 14


@pytest.mark.parametrize("variant", ["I", "II"])
def test_scalar_has_a_variate_and_a_frozen_array_has_none(exact_federation, tmp_path, variant):
    client, start = make(SCAFFOLDClient, scaled(), exact_federation, tmp_path)
    config = {**II, "scaffold-variant": variant}
    returned, _, _ = fit(client, start, controls(client.model, 0.0), config)
    again, _, _ = fit(client, start, controls(client.model, 0.0), later(config))
    names = list(model_arrays(client.model))
    change = dict(zip(names, returned[len(start) :], strict=True))
    assert change["1.scale"].shape == ()
    assert change["1.scale"] != 0
    assert "1.features.bias" not in change
    assert not np.array_equal(again[1], returned[1])
    # Option I takes the gradient at the same model twice, so the second change is 0.
    second = max(abs(array).max() for array in again[len(start) :])
    assert (second == 0) == (variant == "I")
