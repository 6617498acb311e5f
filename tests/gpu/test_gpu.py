"""On a real GPU: the numbers of the CPU, memory that is returned, and steps without waits."""

import gc
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.clients import CoPreFLClient, TorchClient
from coprefl_flwr.learning import device
from coprefl_flwr.learning.together import train_together
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.methods import PERSONALISED
from coprefl_flwr.models import model_arrays
from coprefl_flwr.studies.known_methods import METHODS
from coprefl_flwr.testing.properties import furthest
from coprefl_flwr.testing.small_study import Case
from tests.common.rounds_by_hand import LOSSES, ROUNDS, Problem
from tests.learning.test_together import clients, convolutions, linear, made, orders
from tests.records.fits import BY_HAND, outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
TABLE = [(name, role) for name, method in METHODS.items() for role in method.roles]
ROUNDING = 1e-3
"""The largest allowed relative difference between the devices, in float32 after four rounds."""


class SmallSteps(Case):
    """A case in which rounding does not grow.

    The gradient of a weight that BatchNorm makes useless is nothing but rounding, and Adam makes
    full steps of it: at rate 0.05 two orders of summation on one CPU differ by 0.3 to 1.3.
    """

    def settings(self, name):
        settings = super().settings(name)
        if self.role == PERSONALISED:
            return replace(settings, head_norm="none", learning_rate=0.001)
        return settings


@pytest.fixture(scope="module", autouse=True)
def _float32():
    """No TensorFloat-32, whose rounding is a thousand times coarser."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@pytest.fixture
def hide_gpu(monkeypatch):
    """A function that hides the GPU from the package until the end of the test."""

    def hide():
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        device.default_device.cache_clear()

    yield hide
    monkeypatch.undo()
    device.default_device.cache_clear()


def weights(case):
    """Return the final arrays and states of a case's run, without its metrics."""
    numbers = case.undisturbed.numbers
    return {name: value for name, value in numbers.items() if name.startswith(("array", "state"))}


@pytest.mark.parametrize(("name", "role"), TABLE)
def test_a_method_has_the_weights_of_the_cpu(name, role, tmp_path, hide_gpu):
    torch.cuda.reset_peak_memory_stats()
    there = weights(SmallSteps(METHODS[name], role, tmp_path / "gpu"))
    assert torch.cuda.max_memory_allocated() > 0
    hide_gpu()
    here = weights(SmallSteps(METHODS[name], role, tmp_path / "cpu"))
    difference, where = furthest(here, there)
    print(f"\n{name} as {role}: {difference:.1e}")
    assert here
    assert difference < ROUNDING, where


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("method", ROUNDS)
def test_other_losses_and_frozen_bodies_have_the_numbers_by_hand(method, kind, frozen):
    for optimiser in ("sgd", "adamw"):
        found, _ = outcome(method, Problem(kind, frozen, optimiser))
        assert found == BY_HAND or (method, optimiser) == ("scaffold", "adamw")


def test_weights_of_a_loss_and_augmentation_are_on_the_gpu():
    seen = []

    def shift(inputs, generator):
        seen.append((inputs.device.type, generator.device.type))
        return inputs + torch.rand(1, generator=generator, device=inputs.device)

    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.standard_normal((40, 6), np.float32))
    samples = TensorDataset(inputs, torch.arange(40) % 2)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0]))
    cp.pretrain("fedavg", nn.Linear(6, 2), [samples], 1, quiet=True, loss=loss, augment=shift)
    assert set(seen[1:]) == {("cuda", "cuda")}  # The first call is the check, on the CPU.


def test_the_memory_of_a_run_is_returned(tmp_path):
    taken = []
    for number in range(3):
        case = Case(METHODS["coprefl"], "pretraining", tmp_path / str(number))
        assert case.undisturbed.rounds == 4
        del case
        gc.collect()
        taken.append(torch.cuda.memory_allocated())
    assert taken[2] <= taken[1]


def test_two_actors_of_half_a_card_have_the_weights_of_one_process():
    pytest.importorskip("ray")
    rng, main, net = np.random.default_rng(0), os.getpid(), nn.Linear(6, 2)
    inputs = torch.from_numpy(rng.standard_normal((4, 30, 6), np.float32))
    clients = [TensorDataset(own, torch.arange(30) % 2) for own in inputs]

    def on_the_card(batch, _):
        assert batch.is_cuda or os.getpid() == main  # A check of this function is on the CPU.
        return batch

    one, two = (
        cp.pretrain(
            *("coprefl", net, clients, 3),
            **{"workers": workers, "augment": on_the_card, "quiet": True},
        )
        for workers in (1, 2)
    )
    assert furthest(model_arrays(one), model_arrays(two))[0] < ROUNDING


@pytest.mark.parametrize("network", [linear, convolutions])
def test_clients_that_are_one_have_the_weights_of_the_cpu(network):
    training, found = LocalTraining(local_steps=30, batch_size=8, learning_rate=0.1), []
    for where in ("cpu", "cuda"):
        model, samples = made(network, torch.float32).to(where), clients(dtype=torch.float32)
        on = {"server_round": 2, "device": torch.device(where)}
        stack, _ = train_together(model, training, samples, orders(len(samples)), **on)
        found.append({name: tensor.numpy() for name, tensor in stack.items()})
    assert furthest(*found)[0] < ROUNDING


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("client_class", [TorchClient, CoPreFLClient])
def test_no_step_waits_for_the_gpu(client_class, together):
    """As many waits in a round of 20 steps as in a round of 2."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((64, 1, 8, 8), np.float32))
    samples = TensorDataset(images, torch.arange(64) % 4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

    def waits(steps):
        training = LocalTraining(local_steps=steps, batch_size=8)
        several = [client_class(net, samples, training=training) for _ in range(8)]
        arrays = list(model_arrays(net).values())

        def fit():
            if together:
                client_class.fit_together(several, arrays, 8 * [{"server-round": 1}])
            else:
                several[0].fit(arrays, {"server-round": 1})

        fit()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fit()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in caught)

    few, many = waits(2), waits(20)
    print(f"\n{client_class.__name__}: {few} waits with 2 steps, {many} with 20")
    assert many == few
