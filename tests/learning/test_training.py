"""Compare local training with numpy and plain autograd.

The comparisons are in float64, where rounding hides no error.
"""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.training import (
    LocalTraining,
    PlainSGD,
    endless_batches,
    local_sgd,
    torch_seeded,
)
from coprefl_flwr.models import model_arrays
from tests.common.networks import CLASSES, tiny_model

CPU = torch.device("cpu")
HALVED = "exponential:factor=0.5"


class SoftmaxRegression(nn.Module):
    """A float64 model whose gradient fits in one line of numpy."""

    def __init__(self):
        super().__init__()
        draws = np.random.default_rng(2)
        self.weight = nn.Parameter(torch.from_numpy(draws.normal(size=(CLASSES, 16))))
        self.bias = nn.Parameter(torch.zeros(CLASSES, dtype=torch.float64))

    def forward(self, images):
        return images.flatten(1).double() @ self.weight.T + self.bias


def softmax_gradient(weight, bias, inputs, targets):
    """Return dL/dweight, dL/dbias and L of the mean cross-entropy, in numpy."""
    logits = inputs @ weight.T + bias
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    share = exp / exp.sum(axis=1, keepdims=True)
    loss = -np.log(share[np.arange(len(targets)), targets]).mean()
    delta = (share - np.eye(CLASSES)[targets]) / len(targets)
    return delta.T @ inputs, delta.sum(axis=0), loss


def sgd_by_hand(samples, batches, learning_rate, momentum, weight_decay, clip_norm):
    """Return weight, bias, the mean loss and the gradients' norms of a plain loop in numpy.

    v <- mu v + clip(g) + lambda w, w <- w - eta v, and v starts as the first clip(g) + lambda w.
    """
    model = SoftmaxRegression()
    values = [model.weight.detach().numpy().copy(), model.bias.detach().numpy().copy()]
    velocity, losses, norms = None, [], []
    for positions in batches:
        inputs, targets = samples.batch(positions, CPU)
        inputs, targets = inputs.flatten(1).double().numpy(), targets.numpy()
        *gradient, loss = softmax_gradient(*values, inputs, targets)
        norms.append(np.sqrt(sum((g**2).sum() for g in gradient)))
        scale = 1.0 if clip_norm is None else min(1.0, clip_norm / (norms[-1] + 1e-6))
        step = [scale * g + weight_decay * w for g, w in zip(gradient, values, strict=True)]
        velocity = step if velocity is None else [
            momentum * v + s for v, s in zip(velocity, step, strict=True)
        ]  # fmt: skip
        values = [w - learning_rate * v for w, v in zip(values, velocity, strict=True)]
        losses.append(loss)
    return *values, np.mean(losses), np.array(norms)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip_norm", [None, 1.7])
def test_local_sgd_by_hand(federation, momentum, weight_decay, clip_norm):
    """In round 3 the learning rate is 0.05: it starts at 0.2 and is halved every round."""
    samples = federation.samples[2]
    changes = {"momentum": momentum, "weight_decay": weight_decay, "clip_norm": clip_norm}
    training = LocalTraining(
        local_steps=7, batch_size=6, learning_rate=0.2, schedule=HALVED, **changes
    )
    batches = schedule(len(samples), training, "key")
    weight, bias, expected_loss, norms = sgd_by_hand(samples, batches, 0.05, **changes)
    if clip_norm:
        assert norms.min() < clip_norm < norms.max()
    model = SoftmaxRegression()
    options = {"rng": seeds.generator("key"), "device": CPU}
    loss = local_sgd(model, samples, training, server_round=3, **options)
    np.testing.assert_allclose(model.weight.detach(), weight, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(model.bias.detach(), bias, rtol=1e-12, atol=1e-13)
    assert loss == pytest.approx(expected_loss, rel=1e-12)


def test_local_sgd_uses_train_mode_and_keeps_frozen_parameters(federation):
    model = tiny_model()
    model[1].weight.requires_grad_(False)
    before, frozen = model_arrays(model), model[1].weight.clone()
    training = LocalTraining(local_steps=3, weight_decay=0.1)
    model.eval()
    options = {"server_round": 1, "rng": seeds.generator("key"), "device": CPU}
    local_sgd(model, federation.samples[1], training, **options)
    after = model_arrays(model)
    assert after["2.num_batches_tracked"] == 3
    assert torch.equal(model[1].weight, frozen)
    assert (after["4.weight"] != before["4.weight"]).all()


def test_objective_of_the_user_is_minimised(federation):
    """One step of rate 0.1 on the squared distance to 3 gives w - 0.1 * 2 (w - 3)."""
    model, seen = SoftmaxRegression(), []
    start = model.weight.detach().clone()

    def objective(inputs, targets):
        seen.append((inputs.shape, targets.dtype))
        return ((model.weight - 3) ** 2).sum()

    training = LocalTraining(local_steps=1, learning_rate=0.1)
    options = {"server_round": 1, "rng": seeds.generator("key"), "device": CPU}
    loss = local_sgd(model, federation.samples[0], training, objective=objective, **options)
    assert seen == [((10, 1, 4, 4), torch.int64)]
    assert loss == pytest.approx(float(((start - 3) ** 2).sum()), rel=1e-12)
    np.testing.assert_allclose(model.weight.detach(), start - 0.2 * (start - 3), rtol=1e-12)


def test_correction_is_applied_before_clipping(federation):
    """Gradients replaced by (3, 4, 0, ...) and clipped to norm 1 are (0.6, 0.8, 0, ...)."""
    model, calls = SoftmaxRegression(), []
    model.weight.requires_grad_(False)

    def correct():
        calls.append(model.bias.grad.clone())
        model.bias.grad = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)

    training = LocalTraining(local_steps=2, learning_rate=0.5, clip_norm=1.0)
    options = {"server_round": 1, "rng": seeds.generator("key"), "device": CPU}
    local_sgd(model, federation.samples[0], training, correct=correct, **options)
    assert len(calls) == 2
    assert all(gradient.any() for gradient in calls)
    np.testing.assert_allclose(model.bias.detach(), [-0.6, -0.8, 0.0], rtol=1e-5)


def schedule(n, training, key="s"):
    """Return the indices of the batches of a client with n samples."""
    stream = endless_batches(n, training.samples_per_step, seeds.generator(key))
    return [list(batch) for batch in itertools.islice(stream, training.steps(n))]


def test_epoch_has_every_sample_once():
    batches = schedule(11, LocalTraining(local_epochs=2, batch_size=4))
    assert [len(batch) for batch in batches] == [4, 4, 3] * 2
    epochs = [list(itertools.chain(*batches[:3])), list(itertools.chain(*batches[3:]))]
    assert [sorted(epoch) for epoch in epochs] == [list(range(11))] * 2
    assert epochs[0] != epochs[1]
    assert epochs[0] != list(range(11))
    with pytest.raises(ValueError, match="no samples to train on"):
        next(endless_batches(0, 2, seeds.generator("key")))


@pytest.mark.parametrize("options", [{"local_steps": 4}, {"local_epochs": 2}])
def test_order_of_batches_is_that_of_published_results(options):
    """Every version gives the same order for a seed, so that published results are reproducible."""
    expected = [[1, 3, 6], [5, 4, 0, 2], [3, 5, 4], [1, 0, 2, 6]]
    assert schedule(7, LocalTraining(batch_size=3, **options)) == expected


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"local_epochs": 5, "max_local_steps": 4}, [4, 4, 3, 4]),
        ({"local_epochs": 1, "max_local_steps": 4}, [4, 4, 3]),
        ({"local_steps": 7, "max_local_steps": 2}, [4, 4]),
        ({"max_local_steps": 3}, [4, 4, 3]),
    ],
)
def test_max_local_steps_cuts_the_order_of_batches(options, sizes):
    """The batches are the first batches of the order without `max_local_steps`."""
    batches = schedule(11, LocalTraining(batch_size=4, **options))
    assert [len(batch) for batch in batches] == sizes
    without = LocalTraining(batch_size=4, **{**options, "max_local_steps": None})
    unlimited = schedule(11, without)
    assert batches == unlimited[: len(sizes)]
    assert LocalTraining(batch_size=4, **options).steps(11) == len(sizes)


@pytest.mark.parametrize(
    ("options", "n", "steps"),
    [
        ({}, 3, 5),
        ({"local_steps": 0}, 3, 0),
        ({"local_steps": 9}, 3, 9),
        ({"local_epochs": 3, "batch_size": 4}, 10, 9),
        ({"local_epochs": 3, "batch_size": 4}, 9, 6),
        ({"local_epochs": 2}, 1, 2),
    ],
)
def test_number_of_steps_is_that_of_the_schedule(options, n, steps):
    """A last batch of one sample is added to the batch before it.

    So 9 samples in batches of 4 make two steps.
    """
    assert LocalTraining(**options).steps(n) == steps


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_learning_rate_decays_by_the_round(optimiser):
    training = LocalTraining(learning_rate=0.2, schedule=HALVED, optimiser=optimiser)
    assert [training.rate(server_round) for server_round in (1, 2, 4)] == [0.2, 0.1, 0.025]
    for server_round in (1, 3):
        (group,) = training.new_optimiser(SoftmaxRegression(), server_round).param_groups
        assert group["lr"] == training.rate(server_round)


def test_fast_sgd_gives_the_bits_of_torch():
    """This includes weights without a gradient, and gradients that are clipped."""
    torch.manual_seed(0)
    training = LocalTraining(learning_rate=0.3, schedule=HALVED, clip_norm=0.5)
    models = [nn.ModuleList([nn.Linear(7, 5), nn.Linear(3, 3)]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    mine = training.new_optimiser(models[0], 4)
    torchs = torch.optim.SGD(models[1].parameters(), lr=training.rate(4))
    assert isinstance(mine, PlainSGD)
    for _ in range(20):
        inputs = torch.randn(6, 7)
        for model, optimiser in zip(models, (mine, torchs), strict=True):
            optimiser.zero_grad()
            model[0](inputs).square().mean().backward()
            training.clip(model)
            optimiser.step()
    for name, array in model_arrays(models[0]).items():
        np.testing.assert_array_equal(array, model_arrays(models[1])[name])


def test_steps_and_epochs_are_refused_together():
    with pytest.raises(SettingsError, match="local-steps = 3 and local-epochs = 2: set one"):
        LocalTraining(local_steps=3, local_epochs=2)


def test_torch_seeded_restores_the_random_state():
    state, model = torch.get_rng_state(), tiny_model()
    draws = []
    for key in [("a", 1), ("a", 1), ("a", 2)]:
        with torch_seeded(*key, network=model):
            draws.append(torch.rand(4))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_adam_by_hand():
    """Two full-batch steps: m and v with bias correction, weight decay added to the gradient."""
    rate, decay = 0.01, 0.1
    model = torch.nn.Linear(2, 1, bias=False).double()
    w = model.weight.detach().clone()
    training = LocalTraining(optimiser="adam", learning_rate=rate, weight_decay=decay)
    optimiser = training.new_optimiser(model, 1)
    x, m, v = torch.tensor([[1.0, -3.0]]).double(), 0.0, 0.0
    for step in (1, 2):
        optimiser.zero_grad()
        (model(x) ** 2).sum().backward()
        optimiser.step()
        gradient = 2 * (w @ x.T) * x + decay * w
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        w = w - rate * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        assert model.weight.detach().numpy() == pytest.approx(w.numpy(), rel=1e-9)
