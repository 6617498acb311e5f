"""Compare losses, gradients and hits with autograd in float64 and calculations by hand."""

import itertools
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.evaluation import (
    batch_size,
    cross_entropy_of_classes,
    evaluate,
    loss_and_gradient,
    next_token,
)
from coprefl_flwr.models import model_arrays
from tests.common.federation import CPU
from tests.common.networks import tiny_model


class Partial(nn.Module):
    """The tiny model in float64.

    BatchNorm has changed statistics, a bias is frozen, and the parameter `unused` does not enter
    the output.
    """

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
def test_loss_and_gradient_are_those_of_autograd_for_every_batch_size(federation, size):
    """For every batch size, the result is equal to autograd on the whole set.

    Autograd uses the mean loss in eval mode.
    """
    samples, model, expected = federation.samples[2], Partial(), Partial()
    before = model_arrays(model)
    model.train()
    result = loss_and_gradient(model, batches_of(samples, size))
    expected.eval()
    inputs, targets = samples.batch(slice(None), CPU)
    loss = functional.cross_entropy(expected(inputs), targets)
    loss.backward()
    assert result.num_examples == len(samples) == 23
    assert result.loss == pytest.approx(loss.item(), rel=1e-13)
    wanted = {"unused", "body.1.weight", "body.2.weight", "body.2.bias", "body.4.weight"}
    assert result.gradient.keys() == wanted | {"body.4.bias"}  # Neither body.1.bias nor buffers.
    for name, parameter in expected.named_parameters():
        if name == "unused":
            np.testing.assert_array_equal(result.gradient[name], [0.0, 0.0])
        elif parameter.requires_grad:
            np.testing.assert_allclose(
                result.gradient[name], parameter.grad, rtol=1e-11, atol=1e-14, err_msg=name
            )
    for name, array in model_arrays(model).items():
        assert array.tobytes() == before[name].tobytes(), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluation_by_hand():
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
        metrics = evaluate(model, batches)
        assert (metrics["num-examples"], metrics["correct"]) == (5, 3)
        assert metrics["loss"] == pytest.approx(np.log1p(np.exp(signs * x)).mean(), rel=1e-12)


def test_evaluation_without_samples_is_an_error():
    with pytest.raises(ValueError, match="no samples to evaluate on"):
        evaluate(tiny_model(), [])
    with pytest.raises(ValueError, match="no samples to compute a loss of"):
        loss_and_gradient(tiny_model(), [])


def linear_and_batches(size):
    """Return a linear network and 22 samples of 3 classes in batches; the last one is smaller."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(22, 5, generator=draws, dtype=torch.float64)
    network = nn.Linear(5, 3, dtype=torch.float64)
    targets = torch.arange(22) % 3
    targets[:3] = 1
    return network, [(inputs[at : at + size], targets[at : at + size]) for at in range(0, 22, size)]


WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("loss_fn", "weight"),
    [
        (WEIGHTED, lambda batch: WEIGHTED.weight[batch[1]].sum()),
        (nn.CrossEntropyLoss(ignore_index=1), lambda batch: (batch[1] != 1).sum()),
        (nn.CrossEntropyLoss(label_smoothing=0.1), None),
        (lambda outputs, targets: functional.mse_loss(outputs[:, 0], targets.double()), None),
        (lambda outputs, targets: 5 * functional.cross_entropy(outputs, targets), None),
    ],
)
@pytest.mark.parametrize("size", [4, 5, 22])
def test_weighted_mean_is_that_of_the_whole_set(loss_fn, weight, size):
    network, batches = linear_and_batches(size)
    sizes = {} if weight is None else {"size": weight}
    result = loss_and_gradient(
        network, batches, lambda model, batch: loss_fn(model(batch[0]), batch[1]), **sizes
    )
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss = loss_fn(network(inputs), targets)
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    assert result.loss == pytest.approx(float(loss.detach()), rel=1e-9)
    for array, gradient in zip(result.gradient.values(), gradients, strict=True):
        np.testing.assert_allclose(array, gradient, rtol=1e-8, atol=1e-12)


def test_batch_without_a_counted_sample_is_left_out():
    """Its cross-entropy is not a number; before, the whole loss was not."""
    network, batches = linear_and_batches(4)
    ignored = (batches[0][0], torch.full((4,), -100))

    def of(parts):
        return loss_and_gradient(network, parts, size=lambda batch: (batch[1] >= 0).sum())

    assert of([ignored, *batches]).loss == of(batches).loss
    with pytest.raises(ValueError, match="no samples"):
        of([ignored])


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (1, torch.zeros(4).long()),  # Its cross-entropy would be 0 for any outputs.
        (1, torch.zeros(4, 1)),
        (3, torch.zeros(4, 3)),
        (3, torch.zeros(4)),
    ],
)
def test_default_loss_takes_only_integer_labels_and_two_outputs(outputs, targets):
    network = nn.Linear(5, outputs)
    with pytest.raises(SettingsError, match=r"^without loss=, a batch is .*: pass loss="):
        loss_and_gradient(network, [(torch.ones(4, 5), targets)])


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(7, 2),
        (torch.ones(7, 2), torch.zeros(3)),
        [{"tokens": torch.ones(7, 5)}, torch.zeros(7)],
        UserDict(words=["a", "b"], tokens=torch.ones(7, 5), mask=torch.ones(3)),
    ],
)
def test_size_of_a_batch_is_the_length_of_its_first_tensor(batch):
    assert batch_size(batch) == 7


def test_batch_without_a_tensor_needs_a_size():
    with pytest.raises(SettingsError, match=r"^a batch is a list: pass size=, a function of a"):
        batch_size(["a", "b"])


def test_default_loss_of_sequences_leaves_out_targets_of_minus_100():
    outputs = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 2, -100, 1], [1, -100, -100, 0]])
    logs = outputs.log_softmax(dim=-1)
    counted = [(0, 0, 0), (0, 1, 2), (0, 3, 1), (1, 0, 1), (1, 3, 0)]
    by_hand = -torch.stack([logs[place] for place in counted]).mean()
    torch.testing.assert_close(cross_entropy_of_classes(outputs, targets), by_hand)
    torch.testing.assert_close(cross_entropy_of_classes(outputs.transpose(1, 2), targets), by_hand)
    # The output of a place is compared with the target of the next.
    following = -torch.stack([logs[0, 0, 2], logs[0, 2, 1], logs[1, 2, 0]]).mean()
    torch.testing.assert_close(next_token(outputs, targets), following)
    with pytest.raises(SettingsError, match=r"outputs \(2, 4, 4\): .* pass loss="):
        cross_entropy_of_classes(torch.zeros(2, 4, 4), targets)
