"""Local learning against numpy and plain autograd, in float64 so that nothing hides in rounding."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coprefl_flwr import seeds
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import (
    LocalTraining,
    evaluate,
    local_sgd,
    loss_and_gradient,
    torch_seeded,
)
from coprefl_flwr.models import model_arrays
from tests.tiny import CLASSES, tiny_model

CPU = torch.device("cpu")


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

    v <- mu v + clip(g) + lambda w, w <- w - eta v, and v starts at the first gradient.
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
    """Round 3 of a learning rate 0.2 that halves every round: 0.05."""
    samples = federation.samples[2]
    training = LocalTraining(
        local_steps=7,
        batch_size=6,
        learning_rate=0.2,
        learning_rate_decay=0.5,
        momentum=momentum,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
    )
    batches = list(training.schedule(len(samples), seeds.generator("key")))
    weight, bias, expected_loss, norms = sgd_by_hand(
        samples, batches, 0.05, momentum, weight_decay, clip_norm
    )
    if clip_norm:
        assert norms.min() < clip_norm < norms.max()
    model = SoftmaxRegression()
    options = {"rng": seeds.generator("key"), "device": CPU}
    loss = local_sgd(model, samples, training, server_round=3, **options)
    np.testing.assert_allclose(model.weight.detach(), weight, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(model.bias.detach(), bias, rtol=1e-12, atol=1e-13)
    assert loss == pytest.approx(expected_loss, rel=1e-12)


def test_local_sgd_trains_in_train_mode_and_leaves_frozen_parameters(federation):
    model = tiny_model()
    model[1].weight.requires_grad_(False)
    before = model_arrays(model)
    training = LocalTraining(local_steps=3, weight_decay=0.1)
    model.eval()
    local_sgd(
        model,
        federation.samples[1],
        training,
        server_round=1,
        rng=seeds.generator("key"),
        device=CPU,
    )
    after = model_arrays(model)
    assert after["2.num_batches_tracked"] == 3
    np.testing.assert_array_equal(after["1.weight"], before["1.weight"])
    assert (after["4.weight"] != before["4.weight"]).all()


def test_another_loss(federation):
    """With a loss that is constant in the bias, only the decay could move it, and there is none."""
    model = SoftmaxRegression()
    training = LocalTraining(local_steps=2, learning_rate=0.1)
    loss = local_sgd(
        model,
        federation.samples[0],
        training,
        server_round=1,
        rng=seeds.generator("key"),
        device=CPU,
        loss_fn=lambda outputs, targets: (outputs[:, 0] - outputs[:, 1]).mean() * 0 + 2,
    )
    assert loss == 2
    np.testing.assert_array_equal(model.weight.detach(), SoftmaxRegression().weight.detach())


def schedule(n, **options):
    return [list(batch) for batch in LocalTraining(**options).schedule(n, seeds.generator("s"))]


def test_steps_cross_the_end_of_an_epoch():
    """Ten samples in batches of 4 are batches of 4, 4 and 2; steps 4 and 5 begin a new epoch."""
    batches = schedule(10, local_steps=5, batch_size=4)
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4]
    assert sorted(itertools.chain(*batches[:3])) == list(range(10))
    assert len(set(itertools.chain(*batches[3:]))) == 8
    assert batches[0] != batches[3]


def test_an_epoch_covers_everything_once():
    batches = schedule(11, local_epochs=2, batch_size=4)
    assert [len(batch) for batch in batches] == [4, 4, 3] * 2
    epochs = [list(itertools.chain(*batches[:3])), list(itertools.chain(*batches[3:]))]
    assert [sorted(epoch) for epoch in epochs] == [list(range(11))] * 2
    assert epochs[0] != epochs[1]
    assert epochs[0] != list(range(11))


@pytest.mark.parametrize(
    ("n", "sizes"), [(9, [4, 5]), (8, [4, 4]), (5, [5]), (4, [4]), (1, [1]), (13, [4, 4, 5])]
)
def test_a_last_batch_of_one_joins_the_one_before(n, sizes):
    batches = schedule(n, local_epochs=1, batch_size=4)
    assert [len(batch) for batch in batches] == sizes
    assert sorted(itertools.chain(*batches)) == list(range(n))


def test_five_steps_where_nothing_is_set():
    assert len(schedule(3)) == 5


@pytest.mark.parametrize("options", [{}, {"local_steps": 2}, {"local_epochs": 2}])
def test_training_on_nothing_is_an_error(options):
    with pytest.raises(ValueError, match="no samples to train on"):
        schedule(0, **options)


def test_steps_and_epochs_are_refused_together():
    with pytest.raises(SettingsError, match="local-steps = 3 and local-epochs = 2: set one"):
        LocalTraining(local_steps=3, local_epochs=2)


class Partial(nn.Module):
    """The tiny model in float64, with BatchNorm that has seen data, and parameters off the path."""

    def __init__(self):
        super().__init__()
        self.body = tiny_model().double()
        with torch.no_grad():
            draws = np.random.default_rng(4)
            self.body[2].running_mean += torch.from_numpy(draws.normal(size=8))
            self.body[2].running_var += torch.from_numpy(draws.uniform(size=8))
        self.body[1].bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, images):
        return self.body(images.double())


def batches_of(samples, size):
    return samples.batches(size, CPU)


@pytest.mark.parametrize("size", [1, 4, 22, 1000])
def test_loss_and_gradient(federation, size):
    """Equal to autograd through the mean over the whole set in eval mode, for any batch size."""
    samples, model, expected = federation.samples[2], Partial(), Partial()
    before = model_arrays(model)
    model.train()
    found = loss_and_gradient(model, batches_of(samples, size))
    expected.eval()
    inputs, targets = samples.batch(slice(None), CPU)
    loss = functional.cross_entropy(expected(inputs), targets)
    loss.backward()
    assert found.num_examples == len(samples) == 23
    assert found.loss == pytest.approx(loss.item(), rel=1e-13)
    wanted = {"unused", "body.1.weight", "body.2.weight", "body.2.bias", "body.4.weight"}
    assert found.gradient.keys() == wanted | {"body.4.bias"}  # Neither body.1.bias nor buffers.
    for name, parameter in expected.named_parameters():
        if name == "unused":
            np.testing.assert_array_equal(found.gradient[name], [0.0, 0.0])
        elif parameter.requires_grad:
            np.testing.assert_allclose(
                found.gradient[name], parameter.grad, rtol=1e-11, atol=1e-14, err_msg=name
            )
    for name, array in model_arrays(model).items():
        assert array.tobytes() == before[name].tobytes(), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_gradient_left_over_does_not_count(federation):
    samples, model = federation.samples[0], Partial()
    clean = loss_and_gradient(model, batches_of(samples, 4))
    model.unused.grad = torch.ones(2, dtype=torch.float64)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    again = loss_and_gradient(model, batches_of(samples, 4))
    for name, gradient in clean.gradient.items():
        np.testing.assert_array_equal(again.gradient[name], gradient)


def test_gradient_in_the_dtype_of_the_model(federation):
    found = loss_and_gradient(tiny_model(), batches_of(federation.samples[0], 4))
    assert {gradient.dtype for gradient in found.gradient.values()} == {np.dtype(np.float32)}


def test_torch_seeded():
    state = torch.get_rng_state()
    draws = []
    for key in [("a", 1), ("a", 1), ("a", 2)]:
        with torch_seeded(*key):
            draws.append(torch.rand(4))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_torch_seeded_gives_the_generator_back_after_an_error():
    @torch_seeded("a")
    def draw_and_fail():
        torch.rand(4)
        raise ArithmeticError

    state = torch.get_rng_state()
    with pytest.raises(ArithmeticError):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), state)


def test_evaluate_counts():
    """Logits are the inputs. Hits: yes, no, yes, yes, no.

    Loss of a row (a, b) with target t: log(e^a + e^b) - (a, b)_t. For (x, 0) and target 0 that is
    log(1 + e^-x), for target 1 log(1 + e^x).
    """
    x, targets = np.array([2.0, 1.0, -1.0, 3.0, -2.0]), torch.tensor([0, 1, 1, 0, 0])
    inputs = torch.stack([torch.from_numpy(x), torch.zeros(5, dtype=torch.float64)], dim=1)
    signs = np.array([-1, 1, 1, -1, -1])
    model = nn.Sequential(nn.Dropout(0.9), nn.Identity())
    for cuts in ([0, 5], [0, 1, 5], [0, 2, 4, 5]):
        batches = [(inputs[a:b], targets[a:b]) for a, b in itertools.pairwise(cuts)]
        found = evaluate(model, batches)
        assert (found["num-examples"], found["correct"]) == (5, 3)
        assert found["loss"] == pytest.approx(np.log1p(np.exp(signs * x)).mean(), rel=1e-12)


def test_nothing_to_measure_is_an_error():
    with pytest.raises(ValueError, match="no samples to evaluate on"):
        evaluate(tiny_model(), [])
    with pytest.raises(ValueError, match="no samples to compute a loss of"):
        loss_and_gradient(tiny_model(), [])
