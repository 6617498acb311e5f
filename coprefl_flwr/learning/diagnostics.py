"""Measures of a starting model on the clients' data, to explain the results of training from it.

Nguyen et al. 2023 (Where to Begin?) study the similarity of the clients' gradients and the
sharpness of the loss at the starting model. Chen et al. 2023 (On the Importance and Applicability
of Pre-Training for FL) study how far the clients' models diverge. All losses are those of the
local training, in eval mode.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.data import ClientData, Samples
from coprefl_flwr.data.inputs import Inputs
from coprefl_flwr.learning.device import default_device, placed
from coprefl_flwr.learning.evaluation import EVALUATION_BATCH, are_classes, differentiable
from coprefl_flwr.learning.loss import CROSS_ENTROPY, Loss
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import computing, load_arrays, outputs_and_representation, outputs_of
from coprefl_flwr.models.precision import HALF_TYPES
from coprefl_flwr.seeds import generator

POINTS = 11
"""Number of points on the line between two clients' models, including both ends."""

HESSIAN_SAMPLES = 512
"""Number of samples of the Hessian, at most: each Hessian-vector product passes them twice."""

PROBE_STEPS, PROBE_DECAY = 200, 1e-3
"""Number of L-BFGS steps of the linear probe, at most, and the weight decay of the probe."""


def diagnose(
    model: nn.Module,
    arrays: Arrays,
    clients: Sequence[ClientData],
    training: LocalTraining,
    key: tuple[str | int, ...],
) -> Mapping[str, float]:
    """Return gradient diversity, top Hessian eigenvalue, barrier and probe accuracy of `arrays`.

    There is no probe accuracy where there are no classes.

    Parameters
    ----------
    model : nn.Module
        The network. Its weights are overwritten.
    arrays : Arrays
        The starting model.
    clients : Sequence[ClientData]
        The clients of a task, at least two.
    training : LocalTraining
        The local training of the clients in their first round, used for the barrier. All numbers
        are of its loss.
    key : tuple[str | int, ...]
        The seed key of the random numbers: they draw the batches, the samples of the Hessian and
        the first vector of the Lanczos iteration.
    """
    # In a 16-bit dtype the second derivatives would be lost in rounding.
    if next(model.parameters()).dtype in HALF_TYPES:
        model = model.float()
    model = placed(model, default_device(), clients[0].train)
    loss = training.loss
    # Each client's model after its local training in the first round.
    ends = [
        ServerData(model, client.train).refine(arrays, training, 1, *key, number)[0]
        for number, client in enumerate(clients)
    ]
    numbers = {
        "gradient-diversity": gradient_diversity(model, arrays, clients, loss),
        "hessian": top_eigenvalue(model, arrays, clients, key, loss),
        "barrier": barrier(model, ends, clients, loss),
    }
    _, targets = clients[0].train.batch(slice(1), torch.device("cpu"))
    has_probe = are_classes(targets)
    return numbers | ({"probe": probe(model, arrays, clients)} if has_probe else {})


def gradient_diversity(
    model: nn.Module, arrays: Arrays, clients: Sequence[ClientData], loss: Loss = CROSS_ENTROPY
) -> float:
    """Return the gradient diversity sum_i |g_i|^2 / |sum_i g_i|^2 (Yin et al. 2018).

    g_i is the gradient of client i's mean loss over its training samples. The diversity is 1 / n
    if the gradients of n clients are equal, and grows as their directions differ.
    """
    gradients = []
    for client in clients:
        data = ServerData(model, client.train, loss=loss)
        gradient = data.loss_and_gradient(arrays).gradient
        gradients.append(np.concatenate([g.astype(np.float64).ravel() for g in gradient.values()]))
    return float(sum(g @ g for g in gradients) / np.square(np.sum(gradients, axis=0)).sum())


def top_eigenvalue(
    model: nn.Module,
    arrays: Arrays,
    clients: Sequence[ClientData],
    key: tuple[str | int, ...],
    loss: Loss = CROSS_ENTROPY,
) -> float:
    """Return the largest eigenvalue of the Hessian of the mean training loss, to 1 %.

    The mean is over the training samples of all clients. If the clients have more than
    HESSIAN_SAMPLES samples, about HESSIAN_SAMPLES of them are drawn, with the seed key `key`. The
    eigenvalue is computed by Lanczos iteration on Hessian-vector products.
    """
    load_arrays(model, arrays)
    sets = _sampled([client.train for client in clients], key)
    model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)

    def product(vector: np.ndarray) -> np.ndarray:
        """Return the Hessian-vector product H v, float64 (parameters,)."""
        flat = torch.from_numpy(vector.reshape(-1)).to(parameters[0])
        parts = torch.split(flat, [p.numel() for p in parameters])
        along = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
        total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        for inputs, targets in _batches(model, sets):
            total_loss = loss.summed(outputs_of(model, inputs), targets)
            first = torch.autograd.grad(
                total_loss, parameters, create_graph=True, allow_unused=True
            )
            pairs = [(g, v) for g, v in zip(first, along, strict=True) if g is not None]
            slope = torch.stack([(g * v).sum() for g, v in pairs]).sum()
            second = torch.autograd.grad(slope, parameters, allow_unused=True)
            for whole, part in zip(total, second, strict=True):
                whole += 0 if part is None else part.double()
        flat = torch.cat([whole.reshape(-1) for whole in total])
        return flat.cpu().numpy() / sum(map(len, sets))

    # Imported here, because the import takes time and few runs need it.
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    start = generator(*key, "eigenvalue").standard_normal(size)
    with differentiable(model, twice=True), computing(model):
        value = eigsh(
            operator, k=1, which="LA", v0=start, ncv=8, tol=1e-2, return_eigenvectors=False
        )
    return float(value[0])


def _sampled(sets: Sequence[Samples], key: tuple[str | int, ...]) -> list[Samples]:
    """Return each client's samples, or the same fraction of each, HESSIAN_SAMPLES in total."""
    share = min(1.0, HESSIAN_SAMPLES / sum(map(len, sets)))
    rng = generator(*key, "hessian-samples")
    sampled = []
    for samples in sets:
        drawn = rng.permutation(len(samples))[: round(share * len(samples))]
        sampled.append(samples.take(np.sort(drawn)))
    return sampled


def barrier(
    model: nn.Module,
    ends: Sequence[Arrays],
    clients: Sequence[ClientData],
    loss: Loss = CROSS_ENTROPY,
) -> float:
    """Return the loss barrier between two clients' models, the mean over pairs of clients.

    The barrier of the models a and b is the maximum over t in [0, 1] of
    L((1 - t) a + t b) - (1 - t) L(a) - t L(b), and at least 0 (Frankle et al. 2020). L is the mean
    loss over the training samples of both clients. The pairs are the clients 0 and 1, 1 and 2, and
    so on; with one client the barrier is nan. `ends` holds each client's model after its local
    training.
    """
    rises = []
    for (a, client), (b, neighbour) in pairwise(zip(ends, clients, strict=False)):
        losses = []
        for t in np.linspace(0, 1, POINTS):
            between = {n: (1 - t) * v.astype(np.float64) + t * b[n] for n, v in a.items()}
            losses.append(
                _loss(model, cast_like(between, a), [client.train, neighbour.train], loss)
            )
        line = np.linspace(losses[0], losses[-1], POINTS)
        rises.append(max(0.0, float(np.max(np.array(losses) - line))))
    return float(np.mean(rises)) if rises else math.nan


def _loss(model: nn.Module, arrays: Arrays, sets: Sequence[Samples], loss: Loss) -> float:
    evaluations = [ServerData(model, samples, loss=loss).evaluate(arrays) for samples in sets]
    losses = [evaluation["loss"] for evaluation in evaluations]
    sizes = [evaluation["num-examples"] for evaluation in evaluations]
    return float(np.average(losses, weights=sizes))


def probe(model: nn.Module, arrays: Arrays, clients: Sequence[ClientData]) -> float:
    """Return the test accuracy in percent of a linear probe on the frozen features of all clients.

    The features are the inputs of the last linear layer, standardised over the training samples.
    The probe is a softmax regression that is fitted by L-BFGS.
    """
    load_arrays(model, arrays)
    train = _features(model, [client.train for client in clients])
    test = _features(model, [client.test for client in clients if client.test])
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
        objective = cross_entropy(layer(z), labels) + penalty
        torch.autograd.backward(objective)
        return float(objective.detach())

    optimiser.step(closure)
    hits = layer(z_test).argmax(dim=1) == labels_test
    return 100 * float(hits.double().mean())


@torch.no_grad()
def _features(model: nn.Module, sets: Sequence[Samples]) -> tuple[Tensor, Tensor]:
    """Return the features z (n, d), float64, and the labels (n,) of all samples, in eval mode."""
    model.eval()
    pairs = [
        (outputs_and_representation(model, inputs)[1].double(), targets)
        for inputs, targets in _batches(model, sets)
    ]
    return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])


def _batches(model: nn.Module, sets: Sequence[Samples]) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield the batches of all samples on the model's device."""
    device = next(model.parameters()).device
    for samples in sets:
        yield from samples.batches(EVALUATION_BATCH, device)
