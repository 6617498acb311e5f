"""Rounds of adapters by hand: the means of FedIT, FFA-LoRA and FedEx-LoRA, and CoPreFL on them.

The network has a linear layer (6, 16), or a Conv1D of transformers, and a linear layer (3, 6). By
hand, plain autograd in float64 trains A and B in x W^T + s x (B A + R)^T.
"""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from coprefl_flwr import average_adapters, seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient, PerFedAvgClient, TorchClient
from coprefl_flwr.data import split_in_two
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import model_arrays
from coprefl_flwr.models.adapters import save_adapters
from coprefl_flwr.strategies import CoPreFL, Cyclic, FedAvg, PerFedAvg, Schedule
from tests.common.by_hand import assert_equal, run
from tests.common.federation import HOSTINGS, SIZES, Federation
from tests.common.networks import CLASSES, ToDouble
from tests.strategies.test_cyclic import record_chains

peft = pytest.importorskip("peft")
CLIENTS, SCALES = (
    range(len(SIZES)),
    {"alpha = r": (2, False, 1.0), "stabilised": (6, True, 18**0.5)},
)
SCALES["alpha = 3 r"] = (6, False, 3.0)


def base_network(first=None):
    """Return a float64 network of two layers, of which no matrix is square."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = ToDouble(), nn.Flatten(), first or nn.Linear(16, 6), nn.Tanh()
        return nn.Sequential(*layers, nn.Linear(6, CLASSES)).double()


def conv1d():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(1)
    return Conv1D(6, 16)


def adapted(by, alpha=6, stabilised=False, first=None):
    """Return the network with adapters of rank 2 in both layers, of which B is not 0."""
    config = {"target_modules": ["2", "4"], "r": 2, "lora_alpha": alpha, "use_rslora": stabilised}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = peft.get_peft_model(base_network(first), peft.LoraConfig(**config))
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.3)
    return average_adapters(model, by)


def federation_of(model):
    """Return a federation in which client i takes i + 1 full-batch steps of 0.1."""
    federation = Federation(LocalTraining(batch_size=1000, learning_rate=0.1), model)
    federation.uneven = True
    return federation


# ---- by hand ------------------------------------------------------------------------------------


class Hand:
    """The two layers by hand: `factors` are A and B of each, `corrections` R of each."""

    def __init__(self, model, scale, by):
        layers = [model.base_model.model[number] for number in (2, 4)]
        weights = [layer.base_layer.weight.detach() for layer in layers]
        shapes = [(6, 16), (3, 6)]
        self.weights = [w if w.shape == s else w.T for w, s in zip(weights, shapes, strict=True)]
        self.biases = [layer.base_layer.bias.detach() for layer in layers]
        both = ("lora_A", "lora_B")
        self.factors = [
            getattr(n, f)["default"].weight.detach().clone() for n in layers for f in both
        ]
        self.corrections = [torch.zeros(shape).double() for shape in shapes]
        self.scale, self.by = scale, by

    def loss(self, factors, data):
        x, targets = data[0].double().flatten(1), data[1]
        for number in (0, 1):
            a, b = factors[2 * number : 2 * number + 2]
            w = self.weights[number] + self.scale * (b @ a + self.corrections[number])
            x = x @ w.T + self.biases[number]
            x = x if number else torch.tanh(x)
        return cross_entropy(x, targets)

    def slopes(self, factors, data):
        """Return the gradients of A and B; 0 for A if it is frozen."""
        factors = [f.clone().requires_grad_() for f in factors]
        found = list(torch.autograd.grad(self.loss(factors, data), factors))
        return [0 * g if self.by == "ffa" and n in (0, 2) else g for n, g in enumerate(found)]

    def trained(self, data, steps, factors=None, rate=0.1):
        factors = self.factors if factors is None else factors
        for _ in range(steps):
            slopes = self.slopes(factors, data)
            factors = [f - rate * g for f, g in zip(factors, slopes, strict=True)]
        return factors

    def average(self, models, weights):
        """Set the means of the factors; with "exact", the mean of what clients add is kept."""
        shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        self.factors = [
            sum(w * f for w, f in zip(shares, of, strict=True)) for of in zip(*models, strict=True)
        ]
        for n in (0, 1) if self.by == "exact" else ():
            products = sum(w * m[2 * n + 1] @ m[2 * n] for w, m in zip(shares, models, strict=True))
            a, b = self.factors[2 * n : 2 * n + 2]
            self.corrections[n] = self.corrections[n] + products - b @ a

    def arrays(self, names):
        """Return what travels, by name."""
        found = {}
        for number, layer in enumerate((2, 4)):
            start = f"base_model.model.{layer}"
            found[f"{start}.lora_correction"] = self.corrections[number].numpy()
            for n, factor in enumerate("AB"):
                found[f"{start}.lora_{factor}.default.weight"] = self.factors[
                    2 * number + n
                ].numpy()
        assert set(names) <= set(found)
        return {name: found[name] for name in names}


def assert_effective_mean(hand, before, models, weights):
    """The layers' weights after an exact round are the mean of the clients' weights."""
    for n in (0, 1):
        total = [hand.scale * (m[2 * n + 1] @ m[2 * n] + before[n]) for m in models]
        mean = sum(w * t for w, t in zip(weights, total, strict=True)) / sum(weights)
        a, b = hand.factors[2 * n : 2 * n + 2]
        assert torch.allclose(hand.scale * (b @ a + hand.corrections[n]), mean, atol=1e-12)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("by", ["mean", "ffa", "exact"])
@pytest.mark.parametrize("first", [None, conv1d])
def test_three_rounds_by_hand(by, scale, first):
    alpha, stabilised, s = SCALES[scale]
    model = adapted(by, alpha, stabilised, first and first())
    federation, hand = federation_of(model), Hand(model, s, by)
    arrays, _ = run(FedAvg(), federation.app(TorchClient), federation.arrays(), 3)
    assert len(arrays) == {"mean": 4, "ffa": 2, "exact": 6}[by]
    for _ in range(3):
        models = [hand.trained(federation.whole(i), i + 1) for i in CLIENTS]
        before = hand.corrections[:]
        hand.average(models, SIZES)
        if by == "exact":
            assert_effective_mean(hand, before, models, SIZES)
    assert_equal(arrays, hand.arrays(arrays))


@pytest.mark.parametrize("by", ["mean", "ffa", "exact"])
def test_coprefl_by_hand(by):
    """The meta step moves A and B at the temporary model, whose correction it keeps."""
    model = adapted(by)
    federation, hand = federation_of(model), Hand(model, 3.0, by)
    strategy = CoPreFL(gamma=0.25, meta_learning_rate=0.5)
    arrays, _ = run(strategy, federation.app(CoPreFLClient), federation.arrays())
    for server_round in (1, 2):
        sets = []
        for i in CLIENTS:
            rng = seeds.generator(0, "train", server_round, i, "support")
            parts = split_in_two(SIZES[i], 0.8, rng)
            sets.append([tuple(t[part] for t in federation.whole(i)) for part in parts])
        models = [hand.trained(sets[i][0], i + 1) for i in CLIENTS]
        hand.average(models, [len(support[1]) for support, _ in sets])
        losses = np.array([float(hand.loss(hand.factors, query)) for _, query in sets])
        factors = 0.25 + 0.75 * 2 / 4 * (losses - losses.mean())
        slopes = [hand.slopes(hand.factors, query) for _, query in sets]
        for n, _ in enumerate(hand.factors):
            step = sum(c * g[n] for c, g in zip(factors, slopes, strict=True))
            hand.factors[n] = hand.factors[n] - 0.5 * step
    assert_equal(arrays, hand.arrays(arrays))


def test_unweighted_mean_has_equal_weights_in_all_three_means():
    model = adapted("exact")
    federation, hand = federation_of(model), Hand(model, 3.0, "exact")
    app = federation.app(PerFedAvgClient)
    arrays, _ = run(PerFedAvg(inner_learning_rate=1.0), app, federation.arrays())
    for _ in range(2):
        models = []
        for i in CLIENTS:
            own, data = hand.factors, federation.whole(i)
            for _ in range(i + 1):
                ahead = hand.trained(data, 1, own, rate=1.0)
                slopes = hand.slopes(ahead, data)
                own = [f - 0.1 * g for f, g in zip(own, slopes, strict=True)]
            models.append(own)
        hand.average(models, [1] * len(models))
    assert_equal(arrays, hand.arrays(arrays))


def test_chain_passes_adapters_on_before_rounds_of_fedavg():
    """Nothing is averaged in a chain: the correction stays as it is."""
    model = adapted("exact")
    federation, hand = federation_of(model), Hand(model, 3.0, "exact")
    cyclic = Cyclic(participants=3)
    chains = record_chains(cyclic)
    strategy = Schedule([(FedAvg(), 1), (cyclic, 1)])
    arrays, _ = run(strategy, federation.app(TorchClient), federation.arrays())
    hand.average([hand.trained(federation.whole(i), i + 1) for i in CLIENTS], SIZES)
    for i in chains[0]:
        hand.factors = hand.trained(federation.whole(i), i + 1)
    assert_equal(arrays, hand.arrays(arrays))


# ---- hosting, bytes -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedAvg, CoPreFL])
def test_exact_means_and_bytes_of_a_client_are_the_same_for_every_hosting(method):
    """A node of one client returns A and B; a node of several the sum of the products B A."""
    client = CoPreFLClient if method is CoPreFL else TorchClient
    ends, counts = {}, {}
    for hosting in HOSTINGS:
        federation = federation_of(adapted("exact"))
        grid = federation.grid(hosting, client)
        strategy = method(participants=3, seed=3, clients=grid.clients)
        result = strategy.start(grid, to_record(federation.arrays()), 3)
        ends[hosting] = from_record(result.arrays)
        traffic = result.history.traffic[3]
        counts[hosting] = traffic["client-bytes-down"], traffic["client-bytes-up"]
    for hosting, arrays in ends.items():
        assert_equal(arrays, ends["1"])
        assert counts[hosting] == counts["1"]


def test_bytes_of_a_round():
    """Down go A, B and the correction, (out, in) each; up go only A and B."""
    sizes = {}
    for by in ("mean", "ffa", "exact"):
        federation = federation_of(adapted(by))
        strategy = FedAvg(clients=4, evaluate_every=0)
        grid = federation.grid("4", TorchClient)
        result = strategy.start(grid, to_record(federation.arrays()), 1)
        traffic, header = result.history.traffic[1], 128
        a, b, whole = 2 * (16 + 6), 2 * (6 + 3), 6 * 16 + 3 * 6
        down = {"mean": (a + b, 4), "ffa": (b, 2), "exact": (a + b + whole, 6)}[by]
        up = {"mean": (a + b, 4), "ffa": (b, 2), "exact": (a + b, 4)}[by]
        for (numbers, arrays), kind in ((down, "down"), (up, "up")):
            assert traffic[f"client-bytes-{kind}"] == 4 * (8 * numbers + header * arrays)
            assert traffic[f"wire-bytes-{kind}"] == traffic[f"client-bytes-{kind}"]
        sizes[by] = traffic["client-bytes-up"]
    assert sizes["ffa"] < sizes["mean"] == sizes["exact"]


@pytest.mark.parametrize("first", [None, conv1d])
def test_base_with_its_correction_and_adapters_of_peft_have_the_outputs(tmp_path, first):
    model, inputs = adapted("exact", first=first and first()), torch.rand(5, 1, 4, 4)
    before = model(inputs)
    with torch.no_grad():
        for number in (2, 4):
            model.base_model.model[number].lora_correction.normal_()
    save_adapters(tmp_path, model, model_arrays(model))
    network = base_network(first and first())
    for name, added in load_file(tmp_path / "base_correction.safetensors").items():
        network.get_parameter(name).data += added
    loaded = peft.PeftModel.from_pretrained(network, str(tmp_path))
    for one in (loaded, copy.deepcopy(model)):
        assert torch.allclose(one(inputs), model(inputs), atol=1e-6)
        assert not torch.allclose(one(inputs), before, atol=1e-2)
