"""SCAFFOLD's client: the control variate after steps that are not plain SGD steps."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import weights_of
from coprefl_flwr.clients import SCAFFOLDClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.models import load_arrays, model_arrays
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


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.9999])
def test_step_sum_is_the_distance_of_a_constant_gradient(momentum):
    """Compare with torch's SGD on a gradient of 1: 7 steps in round 3, with the rate 0.2 / 4."""
    training = LocalTraining(
        local_steps=7, learning_rate=0.2, learning_rate_decay=0.5, momentum=momentum
    )
    p = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([p], lr=0.05, momentum=momentum)
    for _ in range(7):
        p.grad = torch.ones_like(p)
        optimiser.step()
    distance = training.rate(3) * training.step_sum(50)
    assert distance == pytest.approx(-p.item(), rel=1e-12)


def test_step_sum_of_epochs_counts_their_steps():
    """33 samples make batches of 16 and 17, which are two steps per epoch."""
    training = LocalTraining(local_epochs=3, batch_size=16, learning_rate=0.5)
    assert training.rate(1) * training.step_sum(33) == 3.0


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
def test_scalar_has_a_variate_and_a_frozen_array_has_zero(exact_federation, tmp_path, variant):
    client, start = make(SCAFFOLDClient, scaled(), exact_federation, tmp_path)
    config = {**II, "scaffold-variant": variant}
    returned, _, _ = fit(client, start, controls(client.model, 0.0), config)
    again, _, _ = fit(client, start, controls(client.model, 0.0), later(config))
    names = list(model_arrays(client.model))
    change = dict(zip(names, returned[len(start) :], strict=True))
    assert change["1.scale"].shape == ()
    assert change["1.scale"] != 0
    assert not change["1.features.bias"].any()
    assert not np.array_equal(again[1], returned[1])
    # Option I takes the gradient at the same model twice, so the second change is 0.
    second = max(abs(array).max() for array in again[len(start) :])
    assert (second == 0) == (variant == "I")


def test_option_2_refuses_clipping_and_adam(exact_federation, tmp_path):
    """Gradient clipping works with option I only.

    Option I computes the control variate from a gradient. Option II computes it from the steps.
    """
    training = LocalTraining(local_steps=3, learning_rate=0.1, clip_norm=1.0)
    client, start = make(SCAFFOLDClient, scaled(), exact_federation, tmp_path, training)
    sent = start, controls(client.model, 0.0)
    with pytest.raises(SettingsError, match=r"^clip-norm needs variant I"):
        fit(client, *sent, II)
    adam = LocalTraining(local_steps=3, algorithm="adam")
    other, _ = make(SCAFFOLDClient, scaled(), exact_federation, tmp_path, adam)
    with pytest.raises(SettingsError, match="variant II needs SGD"):
        fit(other, *sent, II)
    assert list(tmp_path.iterdir()) == []
    returned, _, _ = fit(client, *sent, {**II, "scaffold-variant": "I"})
    assert returned[len(start)].any()


def test_option_1_is_the_gradient_of_all_samples_in_eval_mode(exact_federation, tmp_path):
    """With BatchNorm, train mode would give a different gradient."""
    client, start = make(SCAFFOLDClient, exact_federation.model, exact_federation, tmp_path)
    weights = [p.detach().numpy() for p in client.model.parameters()]
    model = exact_federation.model
    returned, _, _ = fit(
        client, start, [np.zeros_like(array) for array in weights], {**II, "scaffold-variant": "I"}
    )
    load_arrays(model, dict(zip(model_arrays(model), start, strict=True)))
    inputs, targets = exact_federation.whole(1)
    change = returned[len(start) :]
    for mode, same in ((False, True), (True, False)):
        loss = cross_entropy(model.train(mode)(inputs), targets)
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        pairs = zip(change, gradient, strict=True)
        assert all(np.allclose(a, b.numpy(), rtol=0, atol=1e-12) for a, b in pairs) == same
