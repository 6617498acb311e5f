"""What explains a starting model's worth: measured at it on the clients' data, not learnt.

Nguyen et al. 2023 (Where to Begin?) look at how alike the clients' gradients and how sharp the loss
are at a start, Chen et al. 2023 (On the Importance and Applicability of Pre-Training for FL) at
how far apart clients' models get. All losses are cross-entropies in eval mode.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.data import Samples
from coprefl_flwr.learning.device import default_device, placed
from coprefl_flwr.learning.evaluation import EVALUATION_BATCH, differentiable
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import load_arrays, outputs_and_representation
from coprefl_flwr.models.precision import HALF_TYPES
from coprefl_flwr.seeds import generator

POINTS = 11
"""Points on the line between two clients' models, both ends among them."""

HESSIAN_SAMPLES = 512
"""Most samples that the Hessian is of: every product with it passes all of them twice."""

PROBE_STEPS, PROBE_DECAY = 200, 1e-3
"""Largest number of L-BFGS steps of a linear probe, and its weight decay."""


@dataclass(frozen=True)
class ClientSamples:
    """What one client holds, to train on and to test on."""

    train: Samples
    test: Samples


def diagnose(
    model: nn.Module,
    arrays: Arrays,
    clients: Sequence[ClientSamples],
    training: LocalTraining,
    key: tuple[str | int, ...],
) -> Mapping[str, float]:
    """Return every measure below of the starting model `arrays`.

    Parameters
    ----------
    model : nn.Module
        The network; its weights are overwritten.
    clients : Sequence[ClientSamples]
        The clients of a task, at least two.
    training : LocalTraining
        How they train in their first round, for the barrier.
    key : tuple[str | int, ...]
        What the random numbers depend on: the drawn batches, and where the eigenvalue's search
        begins.
    """
    # Of 16 bits no second derivative would be left.
    if next(model.parameters()).dtype in HALF_TYPES:
        model = model.float()
    model = placed(model, default_device())
    # Each client's model after its local training in the first round.
    ends = [
        ServerData(model, client.train).refine(arrays, training, 1, *key, number)[0]
        for number, client in enumerate(clients)
    ]
    return {
        "gradient-diversity": gradient_diversity(model, arrays, clients),
        "hessian": top_eigenvalue(model, arrays, clients, key),
        "barrier": barrier(model, ends, clients),
        "probe": probe(model, arrays, clients),
    }


def gradient_diversity(model: nn.Module, arrays: Arrays, clients: Sequence[ClientSamples]) -> float:
    """Return sum_i |g_i|^2 / |sum_i g_i|^2 of the gradients over each client's training samples.

    It is 1 / n for n clients that agree, and grows as they point apart (Yin et al. 2018).
    """
    gradients = []
    for client in clients:
        gradient = ServerData(model, client.train).loss_and_gradient(arrays).gradient
        gradients.append(np.concatenate([g.astype(np.float64).ravel() for g in gradient.values()]))
    return float(sum(g @ g for g in gradients) / np.square(np.sum(gradients, axis=0)).sum())


def top_eigenvalue(
    model: nn.Module,
    arrays: Arrays,
    clients: Sequence[ClientSamples],
    key: tuple[str | int, ...],
) -> float:
    """Return the largest eigenvalue of the Hessian of the mean training loss, to a percent.

    The mean is over all clients' samples, or HESSIAN_SAMPLES of them, drawn by `key`; found by
    Lanczos iteration on products of the Hessian with a vector.
    """
    load_arrays(model, arrays)
    sets = _sampled([client.train for client in clients], key)
    model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)

    def product(vector: np.ndarray) -> np.ndarray:
        """Return H v, float64 (parameters,)."""
        flat = torch.from_numpy(vector.reshape(-1)).to(parameters[0])
        parts = torch.split(flat, [p.numel() for p in parameters])
        along = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
        total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        for inputs, targets in _batches(model, sets):
            loss = cross_entropy(model(inputs), targets, reduction="sum")
            first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            pairs = [(g, v) for g, v in zip(first, along, strict=True) if g is not None]
            slope = torch.stack([(g * v).sum() for g, v in pairs]).sum()
            second = torch.autograd.grad(slope, parameters, allow_unused=True)
            for whole, part in zip(total, second, strict=True):
                whole += 0 if part is None else part.double()
        flat = torch.cat([whole.reshape(-1) for whole in total])
        return flat.cpu().numpy() / sum(map(len, sets))

    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    start = generator(*key, "eigenvalue").standard_normal(size)
    with differentiable(model):
        value = eigsh(
            operator, k=1, which="LA", v0=start, ncv=8, tol=1e-2, return_eigenvectors=False
        )
    return float(value[0])


def _sampled(sets: Sequence[Samples], key: tuple[str | int, ...]) -> list[Samples]:
    """Return all samples of the clients, or a share of each's, HESSIAN_SAMPLES together."""
    share = min(1.0, HESSIAN_SAMPLES / sum(map(len, sets)))
    rng = generator(*key, "hessian-samples")
    sampled = []
    for samples in sets:
        drawn = rng.permutation(len(samples))[: round(share * len(samples))]
        sampled.append(samples.take(np.sort(drawn)))
    return sampled


def barrier(model: nn.Module, ends: Sequence[Arrays], clients: Sequence[ClientSamples]) -> float:
    """Return how much the loss rises on the line between two clients' models, mean over pairs.

    For two models a and b it is the maximum over t of L((1 - t) a + t b) - (1 - t) L(a) - t L(b),
    over the training samples of both clients (Frankle et al. 2020), at least 0. The pairs are the
    clients 0 and 1, 1 and 2, and so on.
    """
    rises = []
    for (a, client), (b, neighbour) in pairwise(zip(ends, clients, strict=False)):
        losses = []
        for t in np.linspace(0, 1, POINTS):
            between = {n: (1 - t) * v.astype(np.float64) + t * b[n] for n, v in a.items()}
            losses.append(_loss(model, cast_like(between, a), [client.train, neighbour.train]))
        line = np.linspace(losses[0], losses[-1], POINTS)
        rises.append(max(0.0, float(np.max(np.array(losses) - line))))
    return float(np.mean(rises))


def _loss(model: nn.Module, arrays: Arrays, sets: Sequence[Samples]) -> float:
    evaluations = [ServerData(model, samples).evaluate(arrays) for samples in sets]
    losses = [evaluation["loss"] for evaluation in evaluations]
    sizes = [evaluation["num-examples"] for evaluation in evaluations]
    return float(np.average(losses, weights=sizes))


def probe(model: nn.Module, arrays: Arrays, clients: Sequence[ClientSamples]) -> float:
    """Return the test accuracy in percent of a linear probe on all clients' frozen features.

    Softmax regression on what enters the last linear layer, standardised over the training samples,
    fitted by L-BFGS.
    """
    load_arrays(model, arrays)
    train = _features(model, [client.train for client in clients])
    test = _features(model, [client.test for client in clients])
    mean, std = train[0].mean(dim=0), train[0].std(dim=0).clamp(min=1e-8)
    (z, labels), (z_test, labels_test) = (((f - mean) / std, y) for f, y in (train, test))
    classes = int(max(labels.max(), labels_test.max())) + 1
    layer = nn.Linear(z.shape[1], classes, dtype=torch.float64, device=z.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimiser: Any = torch.optim.LBFGS(
        layer.parameters(), max_iter=PROBE_STEPS, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimiser.zero_grad()
        penalty = PROBE_DECAY / 2 * layer.weight.square().sum()
        loss = cross_entropy(layer(z), labels) + penalty
        torch.autograd.backward(loss)
        return float(loss.detach())

    optimiser.step(closure)
    hits = layer(z_test).argmax(dim=1) == labels_test
    return 100 * float(hits.double().mean())


@torch.no_grad()
def _features(model: nn.Module, sets: Sequence[Samples]) -> tuple[Tensor, Tensor]:
    """Return z (n, d) in float64 and labels (n,) of all samples, in eval mode."""
    model.eval()
    pairs = [
        (outputs_and_representation(model, inputs)[1].double(), targets)
        for inputs, targets in _batches(model, sets)
    ]
    return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])


def _batches(model: nn.Module, sets: Sequence[Samples]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of all samples on the model's device."""
    device = next(model.parameters()).device
    for samples in sets:
        yield from samples.batches(EVALUATION_BATCH, device)
