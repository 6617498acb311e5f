"""Clients that are computed as one have the numbers of clients that train one after another."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.data import Samples, TensorDataset
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.evaluation import evaluate, loss_and_gradient
from coprefl_flwr.learning.together import (
    AT_ONCE,
    clients_at_once,
    gradients_together,
    outputs_together,
    train_together,
)
from coprefl_flwr.learning.training import LocalTraining, local_sgd
from tests.common.networks import Scaled

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SIZES = (16, 5, 9, 30, 1)
"""Samples of the clients; in batches of 8 they have 2, 1, 1 (of 9), 4 and 1 steps an epoch."""


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def partly_frozen():
    return nn.Sequential(nn.Flatten(), Scaled())


class Tied(nn.Module):
    """A network that uses its first layer twice."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 3)
        self.second = self.first

    def forward(self, images):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(images.flatten(1))))))


NETWORKS = [linear, convolutions, partly_frozen, Tied]


def made(network, dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return network().to(dtype)


def clients(sizes=SIZES, dtype=torch.float64):
    """Return the samples of each client, and of one more client that has a dataset of its own."""
    numbers = torch.Generator().manual_seed(0)
    parts, ends = [], np.cumsum(sizes)
    images = torch.randn(ends[-1], 1, 4, 4, generator=numbers, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, 3, (ends[-1],), generator=numbers).numpy()
    whole = TensorDataset(images, labels=labels, classes=("a", "b", "c"))
    for size, end in zip(sizes, ends, strict=True):
        rows = np.arange(end - size, end)
        parts.append(Samples(whole, rows, labels[rows]))
    alone = TensorDataset(images[:7] + 1, labels=labels[:7], classes=("a", "b", "c"))
    return [*parts, Samples(alone, np.arange(7), labels[:7])]


def orders(count):
    return [functools.partial(seeds.generator, 5, client, "batches") for client in range(count)]


def one_after_another(network, training, samples, mu=0.0):
    """Return the weights and the losses of clients that `local_sgd` trains alone."""
    results, losses, start = [], [], made(network, samples[0].dataset.values.dtype)
    for own, order in zip(samples, orders(len(samples)), strict=True):
        model = made(network, own.dataset.values.dtype)
        pairs = list(zip(model.parameters(), start.parameters(), strict=True))

        def towards_start(pairs=pairs):
            for p, anchor in pairs:
                if p.grad is not None:
                    p.grad += mu * (p.detach() - anchor.detach())

        about = {"server_round": 2, "rng": order(), "device": CPU, "correct": towards_start}
        losses.append(local_sgd(model, own, training, **about))
        results.append({n: p.detach() for n, p in model.named_parameters() if p.requires_grad})
    return results, losses


def difference(stack, results):
    """Return the largest difference, relative to the largest number of the array."""
    assert stack.keys() == results[0].keys()
    return max(
        float((stack[name][k] - own[name]).abs().max() / own[name].abs().max())
        for k, own in enumerate(results)
        for name in own
    )


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("network", NETWORKS)
def test_training_has_the_numbers_of_one_after_another(network, mu):
    """Different numbers of samples, steps and sizes of batches, in float64; a falling rate."""
    how = {"learning_rate": 0.1, "batch_size": 8, "schedule": "exponential:factor=0.5"}
    for training in (LocalTraining(local_epochs=3, **how), LocalTraining(local_steps=4, **how)):
        samples = clients()
        expected, losses = one_after_another(network, training, samples, mu)
        stack, found = train_together(
            made(network),
            training,
            samples,
            orders(len(samples)),
            server_round=2,
            device=CPU,
            proximal_mu=mu,
        )
        assert difference(stack, expected) < 1e-12
        np.testing.assert_allclose(found, losses, rtol=1e-12)


def test_float32_differs_by_rounding_only():
    """1e-6 after one step, 1e-4 after thirty."""
    samples = clients(dtype=torch.float32)
    for steps, bound in ((1, 1e-6), (30, 1e-4)):
        training = LocalTraining(local_steps=steps, batch_size=8, learning_rate=0.1)
        expected, _ = one_after_another(convolutions, training, samples)
        model, order = made(convolutions, torch.float32), orders(len(samples))
        stack, _ = train_together(model, training, samples, order, server_round=2, device=CPU)
        assert difference(stack, expected) < bound


def test_without_steps_the_weights_stay():
    training, samples = LocalTraining(local_steps=0), clients()
    model = made(linear)
    stack, losses = train_together(
        model, training, samples, orders(len(samples)), server_round=1, device=CPU
    )
    assert losses == [0.0] * len(samples)
    assert all(torch.equal(one, model[1].weight) for one in stack["1.weight"])


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_have_the_numbers_of_one_after_another(network):
    """One client has more than one batch in eval mode (256), and a last sample that joins it."""
    samples = clients((16, 513, 300, 1))
    stack, losses = gradients_together(made(network), samples, CPU)
    alone = [loss_and_gradient(made(network), own.batches(256, CPU)) for own in samples]
    gradients = [{n: torch.from_numpy(g) for n, g in one.gradient.items()} for one in alone]
    named = [{name: one[name] for name in stack} for one in gradients]  # Tied: the first name.
    assert difference(stack, named) < 1e-12
    np.testing.assert_allclose(losses, [one.loss for one in alone], rtol=1e-12)


def test_outputs_are_split_by_client():
    samples, model = clients((16, 300, 1)), made(convolutions)
    for own, batch in zip(samples, outputs_together(model, samples, CPU), strict=True):
        found, alone = evaluate(nn.Identity(), [batch]), evaluate(model, own.batches(256, CPU))
        assert found["correct"] == alone["correct"]
        assert found["num-examples"] == len(own)
        assert found["loss"] == pytest.approx(alone["loss"], rel=1e-12)


def test_outputs_of_a_network_that_draws_are_refused():
    """Its numbers are seeded by client, which one computation of all cannot do."""

    class Noisy(nn.Flatten):
        def forward(self, images):
            return super().forward(images) + torch.randn(1)

    with pytest.raises(SettingsError, match="draws random numbers"):
        list(outputs_together(Noisy(), clients(), CPU))


# ---- which clients are computed as one -----------------------------------------------------------


def count(network=None, device=CPU, **options):
    return clients_at_once(LocalTraining(**options), network or linear(), device)


def test_the_rule_is_a_function_of_network_and_device():
    small, large = nn.Linear(784, 10), nn.Linear(784, 100)
    assert count(small) == (AT_ONCE, "")
    assert count(large) == (1, "the network has other layers or more weights than pays on a cpu")
    assert count(convolutions())[0] == 1
    assert {count(network, GPU)[0] for network in (small, large, convolutions())} == {AT_ONCE}
    assert count(nn.LSTM(4, 4), GPU)[0] == 1


def test_a_number_is_kept_where_it_can_be():
    assert count(convolutions(), together=5) == (5, "")
    assert count(together=1) == (1, "")


def with_hook():
    network = linear()
    network[1].register_forward_hook(lambda *_: None)
    return network


@pytest.mark.parametrize(
    ("network", "options", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), {}, "BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), {}, "Dropout"),
        (with_hook(), {}, "hooks"),
        (nn.Linear(4, 4).bfloat16(), {}, "16 bits"),
        (None, {"momentum": 0.9}, "plain SGD"),
        (None, {"weight_decay": 0.1}, "plain SGD"),
        (None, {"clip_norm": 1.0}, "plain SGD"),
        (None, {"optimiser": "adam"}, "plain SGD"),
        (None, {"accumulation": 2}, "plain SGD"),
        (None, {"schedule": "linear:over=steps"}, "plain SGD"),
        (None, {"loss": "torch.nn.functional:mse_loss"}, "cross-entropy"),
        (None, {"precision": "bf16"}, "cross-entropy"),
    ],
)
def test_what_cannot_be_one_computation_has_a_reason(network, options, reason):
    for together in (None, 8):
        number, why = count(network, together=together, **options)
        assert number == 1
        assert reason in why
