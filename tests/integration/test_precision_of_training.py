"""Training, losses and gradients in low precision, compared with a loop in torch's autocast."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coprefl_flwr import seeds
from coprefl_flwr.clients import CoPreFLClient, QFFLClient, TorchClient
from coprefl_flwr.learning.evaluation import evaluate, loss_and_gradient
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import load_arrays, model_arrays
from coprefl_flwr.strategies import FedAvg
from tests.common.by_hand import mean, run_on
from tests.common.federation import CPU, SIZES, Federation
from tests.common.networks import tiny_model

BF16 = LocalTraining(local_steps=2, batch_size=1000, learning_rate=0.1, precision="bf16")


def bare(model, inputs):
    """Return a model's outputs, computed in bfloat16 with torch's autocast alone."""
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(inputs)
    return outputs.float()


def test_round_of_fedavg_in_bfloat16_by_hand():
    federation, strategy, states = Federation(BF16), FedAvg(seed=3), []
    found, _ = run_on(strategy, federation.grid("1", TorchClient), federation.arrays(), 1)
    for client, samples in enumerate(federation.samples):
        model = tiny_model().train()
        rng = seeds.generator(3, strategy.population, 1, client, "batches")
        for _ in range(2):
            inputs, targets = samples.batch(rng.permutation(len(samples)), CPU)
            gradients = torch.autograd.grad(
                cross_entropy(bare(model, inputs), targets), list(model.parameters())
            )
            with torch.no_grad():
                for p, gradient in zip(model.parameters(), gradients, strict=True):
                    p.sub_(gradient, alpha=0.1)
        states.append({name: array.astype(float) for name, array in model_arrays(model).items()})
    expected = mean(states, SIZES, range(4))
    for name, array in found.items():
        assert array.tobytes() == expected[name].astype(array.dtype).tobytes(), name


def test_loss_and_gradient_in_bfloat16_by_hand(federation):
    """The loss and the gradient of a whole set in two batches; weights and sums are float32."""
    model, samples = tiny_model(), federation.samples[3]
    inputs, targets = samples.batch(slice(None), CPU)
    model.eval()
    total, gradients = 0.0, [torch.zeros_like(p) for p in model.parameters()]
    for part in (slice(20), slice(20, None)):
        batch = cross_entropy(bare(model, inputs[part]), targets[part]) * len(targets[part])
        for summed, gradient in zip(
            gradients, torch.autograd.grad(batch, list(model.parameters())), strict=True
        ):
            summed += gradient
        total += batch.item()
    found = loss_and_gradient(model, samples.batches(20, CPU), precision="bf16")
    assert found.loss == pytest.approx(total / len(samples), abs=1e-6)
    for array, gradient in zip(found.gradient.values(), gradients, strict=True):
        assert array.tobytes() == (gradient / len(samples)).numpy().tobytes()
    loss = evaluate(model, samples.batches(20, CPU), precision="bf16")["loss"]
    assert loss == pytest.approx(found.loss, abs=1e-6)
    assert loss != evaluate(model, samples.batches(20, CPU))["loss"]


def test_clients_and_server_evaluate_in_their_precision(federation):
    samples, start = federation.samples[2], list(federation.start.values())
    config = {"server-round": 1, "client": 2, "q": 1.0}
    found = {}
    for precision in ("float32", "bf16"):
        training = replace(BF16, precision=precision)
        own = {"training": training, "test": samples, "device": CPU}
        server = ServerData(tiny_model(), samples, CPU, precision)
        found[precision] = [
            TorchClient(tiny_model(), samples, **own).evaluate(start, config)[0],
            CoPreFLClient(tiny_model(), samples, **own).query(start, config)[2]["loss"],
            QFFLClient(tiny_model(), samples, **own).fit(start, config)[2]["loss-before"],
            server.evaluate(federation.start)["loss"],
            server.loss_and_gradient(federation.start, np.arange(9)).loss,
        ]
    for plain, other in zip(*found.values(), strict=True):
        assert other != plain
        assert other == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_model_of_16_bits_trains_with_gradients_summed_in_float32(dtype, federation):
    """Gradients are summed in float32: in 16 bits, a sum over many batches would stop growing."""
    model, samples = tiny_model().to(dtype), federation.samples[3]
    full = tiny_model()
    load_arrays(full, model_arrays(model))
    batches = list(samples.batches(2, CPU)) * 40
    found, expected = (loss_and_gradient(one, batches) for one in (model, full))
    assert found.loss == pytest.approx(expected.loss, rel=0.02)
    for name, array in found.gradient.items():
        assert array.dtype == np.float32
        assert array == pytest.approx(expected.gradient[name], abs=0.02), name
    own = {"training": replace(BF16, precision="float32"), "test": samples, "device": CPU}
    client = TorchClient(model, samples, **own)
    config = {"server-round": 1, "client": 2}
    before = client.evaluate(list(model_arrays(full).values()), config)[0]
    arrays, _, _ = client.fit(list(model_arrays(full).values()), config)
    assert client.evaluate(arrays, config)[0] < before
