"""Rounds of methods by hand, for any loss, any optimiser and partly frozen networks.

All batches are whole sets and all numbers are float64, so that nothing is random but the support
sets and the orders of chains. Every client takes part in every round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from coprefl_flwr import seeds
from coprefl_flwr.data import split_in_two

SIZES = (6, 8, 10, 15)
RATE, STEPS = 0.1, 3
FULL = {"local_steps": STEPS, "batch_size": 100, "learning_rate": RATE, "weight_decay": 0.0}


class Net(nn.Module):
    """A body with BatchNorm and a head, in float64; a frozen body keeps its statistics."""

    def __init__(self, body, head, *, frozen):
        super().__init__()
        self.body, self.head = body.double(), head.double()
        self.body.requires_grad_(not frozen)

    def forward(self, inputs):
        return self.head(self.body(inputs.double()))


class Tagger(Net):
    """A network of token ids and a mask, (n, 5), which returns an object with logits (n, 5, C)."""

    def forward(self, ids, mask):
        vectors = torch.stack([ids, ids % 2, ids % 3], dim=-1) * mask[..., None]
        features = self.body(vectors.flatten(0, 1).double()).unflatten(0, ids.shape)
        return SimpleNamespace(logits=self.head(features))


def of_tokens(outputs, targets):
    """Return the cross-entropy of the targets that are not -100."""
    logs = outputs.log_softmax(dim=-1)[targets != -100]
    return -logs.gather(1, targets[targets != -100][:, None]).mean()


def of_labels(outputs, targets):
    """Return the binary cross-entropy; with float32 labels torch would round it to float32."""
    return functional.binary_cross_entropy_with_logits(outputs, targets.double())


def of_numbers(outputs, targets):
    return functional.mse_loss(outputs, targets.double())


LOSSES = {
    "classes": functional.cross_entropy,
    "numbers": of_numbers,
    "labels": of_labels,
    "pixels": functional.cross_entropy,
    "tokens": of_tokens,
}


@dataclass
class Problem:
    """Clients with one kind of targets, and how they train."""

    kind: str = "numbers"
    frozen: bool = False
    optimiser: str = "sgd"

    @property
    def loss(self):
        return LOSSES[self.kind]

    def parts(self):
        """Return (inputs, targets) of each client."""
        rng = np.random.default_rng(0)
        shape = (1, 4, 4) if self.kind == "pixels" else (3,)
        found = []
        for number, size in enumerate(SIZES):
            inputs = torch.tensor(rng.standard_normal((size, *shape)), dtype=torch.float32)
            if self.kind == "tokens":
                ids = torch.tensor(rng.integers(0, 7, (size, 5)))
                mask = (torch.arange(5) < torch.tensor(rng.integers(2, 6, (size, 1)))).long()
                found.append(({"ids": ids, "mask": mask}, torch.where(mask > 0, ids % 4, -100)))
                continue
            targets = {
                "classes": lambda x: (x.sum(dim=1) > 0).long() + 2 * (x[:, 0] > 0),
                "numbers": lambda x, n=number: (x.sum(dim=1, keepdim=True) + n) * 0.5,
                "labels": lambda x: (x @ torch.ones(3, 4) + torch.arange(4) > 1).float(),
                "pixels": lambda x: (x[:, 0] > 0).long(),
            }[self.kind](inputs)
            found.append((inputs, targets))
        return found

    def clients(self):
        if self.kind == "tokens":
            return [
                [
                    ({name: rows[n] for name, rows in inputs.items()}, targets[n])
                    for n in range(size)
                ]
                for size, (inputs, targets) in zip(SIZES, self.parts(), strict=True)
            ]
        return [TensorDataset(*part) for part in self.parts()]

    def mean_loss(self, model, data, rows=slice(None)):
        """Return the loss of a network on some rows of a client's data."""
        inputs, targets = data
        if self.kind == "tokens":
            named = {name: tensor[rows] for name, tensor in inputs.items()}
            return self.loss(model(**named).logits, targets[rows])
        return self.loss(model(inputs[rows]), targets[rows])

    def network(self):
        """Return the network with its first weights; only a frozen body has BatchNorm."""
        torch.manual_seed(0)
        if self.kind == "pixels":
            body, norm, head = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1)
        else:
            outputs = 1 if self.kind == "numbers" else 4
            body, norm, head = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, outputs)
        norm.running_mean.add_(0.3)
        layers = [body, norm, nn.Tanh()] if self.frozen else [body, nn.Tanh()]
        kind = Tagger if self.kind == "tokens" else Net
        return kind(nn.Sequential(*layers), head, frozen=self.frozen).eval()

    def at(self, weights):
        """Return the network with these trained weights; its frozen body is in eval mode."""
        model = self.network()
        with torch.no_grad():
            for parameter, weight in zip(trained(model), weights, strict=True):
                parameter.copy_(weight)
        return model

    def new_optimiser(self, model):
        kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        return kinds[self.optimiser](trained(model), lr=RATE, weight_decay=0.0)

    def locally(self, weights, data, correction=None, rows=slice(None)):
        """Take STEPS full-batch steps on some rows; `correction` is added to every gradient."""
        model = self.at(weights)
        optimiser = self.new_optimiser(model)
        for _ in range(STEPS):
            optimiser.zero_grad()
            self.mean_loss(model, data, rows).backward()
            for weight, term in zip(trained(model), correction or (), strict=bool(correction)):
                weight.grad += term
            optimiser.step()
        return values(model)

    def gradient(self, model, data):
        return torch.autograd.grad(self.mean_loss(model, data), trained(model))


def trained(model):
    return [weight for weight in model.parameters() if weight.requires_grad]


def values(model):
    return [weight.detach().clone() for weight in trained(model)]


def moved(weights, direction, rate):
    return [weight - rate * change for weight, change in zip(weights, direction, strict=True)]


def average(states, shares):
    total = sum(shares)
    return [
        sum(weight * share for weight, share in zip(one, shares, strict=True)) / total
        for one in zip(*states, strict=True)
    ]


# ---- rounds: functions of (problem, weights, number of the round, memory of the method) ----------


def fedavg(problem, weights, server_round, memory):
    return average([problem.locally(weights, data) for data in problem.parts()], SIZES)


def coprefl(problem, weights, server_round, memory):
    """Algorithm 1 with gamma 0.25 and zeta 0.05, and autograd through L_meta itself."""
    states, counts, queries = [], [], []
    for client, data in enumerate(problem.parts()):
        key = seeds.generator(0, "pretrain", server_round, client, "support")
        support, query = split_in_two(SIZES[client], 0.8, key)
        states.append(problem.locally(weights, data, rows=support))
        counts.append(len(support))
        queries.append((data, query))
    model = problem.at(average(states, counts))
    losses = torch.stack([problem.mean_loss(model, *query) for query in queries])
    meta = 0.25 * losses.sum() + 0.75 * ((losses - losses.mean()) ** 2).mean()
    return moved(values(model), torch.autograd.grad(meta, trained(model)), 0.05)


def per_fedavg(problem, weights, server_round, memory):
    """The first-order variant with alpha 0.2; all batches of a step are the whole set."""
    states = []
    for data in problem.parts():
        model = problem.at(weights)
        optimiser = problem.new_optimiser(model)
        for _ in range(STEPS):
            inner = problem.at(moved(values(model), problem.gradient(model, data), 0.2))
            step = problem.gradient(inner, data)
            for weight, gradient in zip(trained(model), step, strict=True):
                weight.grad = gradient
            optimiser.step()
        states.append(values(model))
    return average(states, [1] * len(states))


def scaffold(problem, weights, server_round, memory):
    """Option II; `memory` has c and the c_i."""
    zeros = [torch.zeros_like(weight) for weight in weights]
    c, variates = memory.get("c", zeros), memory.get("variates", [zeros] * len(SIZES))
    states, renewed = [], []
    for own, data in zip(variates, problem.parts(), strict=True):
        correction = [a - b for a, b in zip(c, own, strict=True)]
        states.append(problem.locally(weights, data, correction))
        both = zip(own, c, weights, states[-1], strict=True)
        renewed.append([o - a + (w - y) / (STEPS * RATE) for o, a, w, y in both])
    memory |= {"c": average(renewed, [1] * len(renewed)), "variates": renewed}
    return average(states, [1] * len(states))


def cyclic(problem, weights, server_round, memory):
    """One run from client to client; `memory` has the chains."""
    for client in memory["chains"][server_round - 1]:
        weights = problem.locally(weights, problem.parts()[client])
    return weights


class FixedHead(Problem):
    def network(self):
        network = super().network()
        network.head.requires_grad_(False)
        return network


def fedbabu(problem, weights, server_round, memory):
    """The last two weights, those of the head, keep their first values."""
    *body, weight, bias = weights
    fixed = FixedHead(**vars(problem))
    return [*average([fixed.locally(body, data) for data in problem.parts()], SIZES), weight, bias]


Round = Callable[[Problem, list[torch.Tensor], int, dict], list[torch.Tensor]]
ROUNDS: dict[str, Round] = {
    "fedavg": fedavg,
    "fedbabu": fedbabu,
    "coprefl": coprefl,
    "per-fedavg": per_fedavg,
    "scaffold": scaffold,
    "cyclic": cyclic,
}
OPTIONS = {
    "coprefl": "gamma=0.25,meta-learning-rate=0.05",
    "per-fedavg": "variant=fo,inner-learning-rate=0.2",
}
"""The options of a method's text with which `ROUNDS` were written."""


def by_hand(method, problem, rounds, chains=()):
    """Return the trained weights after some rounds of a method."""
    weights, memory = values(problem.network()), {"chains": list(chains)}
    for server_round in range(1, rounds + 1):
        weights = ROUNDS[method](problem, weights, server_round, memory)
    return weights


def assert_weights(model, expected):
    """Check that the trained weights of a network agree with weights that were found by hand."""
    for found, wanted in zip(values(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
