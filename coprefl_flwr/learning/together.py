"""Several clients that train the same network, computed as one batch of networks.

With small networks, most of a step's time is the overhead of its operations. Here an operation is
computed for K clients at once: their weights are stacked, (K, ...), and so are their batches. Each
client has its own order of samples, its own number of steps, and the same numbers as alone, up to
rounding.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from coprefl_flwr.data import Samples, pooled
from coprefl_flwr.data.dataset import Rows, batch_slices
from coprefl_flwr.data.inputs import Inputs, mapped
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.evaluation import EVALUATION_BATCH, NO_LOSS, are_classes
from coprefl_flwr.learning.optimisers import SGD
from coprefl_flwr.learning.training import LocalTraining, endless_batches
from coprefl_flwr.models.arrays import first_names
from coprefl_flwr.models.frozen import train_mode
from coprefl_flwr.models.outputs import outputs_of
from coprefl_flwr.models.precision import FLOAT32, HALF_TYPES
from coprefl_flwr.transfer import on_cpu, on_device

FEWEST, AT_ONCE = 8, 64
"""Smallest and largest number of clients that are computed together where nothing is set. Four
linear networks gain little together on a CPU, and take longer on a GPU."""

MEASURED: dict[str, tuple[int, tuple[type[nn.Module], ...]]] = {
    "cpu": (10_000, (nn.Linear,)),
    "cuda": (2_000_000, (nn.Linear, nn.Conv2d, nn.GroupNorm)),
}
"""{type of device: (largest number of weights, layers that have them)} of the networks whose
clients train together if nothing is set. docs/performance.md has the measurements."""

Weights = dict[str, Tensor]
"""{name of a trained parameter: the values of K clients, (K, *shape)}."""


def clients_at_once(
    training: LocalTraining, network: nn.Module, device: torch.device
) -> tuple[int, str]:
    """Return how many clients train as one computation, and why it is one, or "".

    `training.together` decides if it is set. Otherwise it depends on the device, on the kinds of
    layers and on the number of weights, and never on a measured time, so that each run of the same
    study computes the same numbers.
    """
    reason = _obstacle(training, network)
    if training.together or reason:
        return (1, reason) if reason else (training.together or 1, "")
    most, kinds = MEASURED.get(device.type, (0, ()))
    layers = [layer for layer in network.modules() if [*layer.parameters(recurse=False)]]
    weights = sum(p.numel() for p in network.parameters())
    if weights > most or not all(type(layer) in kinds for layer in layers):
        return 1, f"the network has other layers or more weights than pays on a {device.type}"
    return AT_ONCE, ""


def _obstacle(training: LocalTraining, network: nn.Module) -> str:
    """Return why the clients of a training cannot be one computation, or ""."""
    others = training.momentum, training.weight_decay, training.clip_norm, training.augment
    varies = training.accumulation > 1 or training.schedule.over_steps
    if training.chosen_optimiser != SGD or any(others) or varies:
        return "the steps are not those of plain SGD"
    if not training.loss.is_default or training.precision != FLOAT32:
        return "the loss is not the cross-entropy, computed in float32"
    if any(parameter.dtype in HALF_TYPES for parameter in network.parameters()):
        return "weights have 16 bits"
    for layer in network.modules():
        if isinstance(layer, _BatchNorm | _DropoutNd):
            return f"the network has a {type(layer).__name__}"
        hooks = [*layer._forward_hooks.values(), *layer._forward_pre_hooks.values()]
        if not all(getattr(hook, "__module__", "").startswith("coprefl_flwr") for hook in hooks):
            return "the network has hooks"
    return ""


def train_together(
    model: nn.Module,
    training: LocalTraining,
    samples: Sequence[Samples],
    generators: Sequence[Callable[[], np.random.Generator]],
    *,
    server_round: int,
    device: torch.device,
    proximal_mu: float = 0.0,
) -> tuple[Weights, list[float]]:
    """Train K clients from the weights of `model` by plain SGD (see `local_sgd`).

    Returns the trained weights, on the CPU, and the mean loss of each client's batches.
    `generators` make the generator of each client's order of samples. With `proximal_mu`, mu times
    (w - w^t) is added to the gradient (FedProx).
    """
    train_mode(model)
    stack, losses = _Stack(model, samples, device), list[Tensor]()
    rate = training.rate(server_round)
    start = {n: w.detach().clone() for n, w in stack.weights.items()} if proximal_mu else {}
    steps = [training.steps(len(of_client)) for of_client in samples]
    rows = [
        _order(len(of_client), training.samples_per_step, count, generator)
        for of_client, count, generator in zip(samples, steps, generators, strict=True)
    ]
    for loss, gradients, shares in stack.passes(rows):
        with torch.no_grad():
            for name, gradient in gradients.items():
                weights = stack.weights[name]
                if proximal_mu:
                    trains = shares.sum(dim=1) > 0  # A client may have fewer steps than others.
                    moved = (weights - start[name]) * _like(trains, weights)
                    gradient.add_(moved, alpha=proximal_mu)
                weights.add_(gradient, alpha=-rate)
        losses.append(loss)
    counts = _numbers(steps, device).clamp(min=1)
    means = torch.stack(losses).sum(0) / counts if losses else torch.zeros(len(samples))
    return _on_host(stack.weights, means)


def gradients_together(
    model: nn.Module, samples: Sequence[Samples], device: torch.device
) -> tuple[Weights, list[float]]:
    """Return each client's gradient of the mean loss, and the loss (see `loss_and_gradient`)."""
    model.eval()
    stack, sizes = _Stack(model, samples, device), [len(of_client) for of_client in samples]
    parts = [batch_slices(size, EVALUATION_BATCH) for size in sizes]
    rows = [[np.arange(part.start, part.stop) for part in of_client] for of_client in parts]
    gradients = {name: torch.zeros_like(tensor) for name, tensor in stack.weights.items()}
    total = _numbers([0.0] * len(samples), device)
    for loss, of_batch, _ in stack.passes(rows, np.array(sizes)):
        total = total + loss
        for name, gradient in of_batch.items():
            gradients[name] += gradient
    return _on_host(gradients, total)


@torch.no_grad()
def outputs_together(
    model: nn.Module, samples: Sequence[Samples], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the model's outputs and the targets of each client, from batches over all clients.

    Raises a SettingsError if the model draws random numbers: each client has its own.
    """
    model.eval()
    batches, before = pooled(samples).batches(EVALUATION_BATCH, device), _states(device)
    parts = [(outputs_of(model, inputs), targets) for inputs, targets in batches]
    if not all(map(torch.equal, before, _states(device))):
        raise SettingsError("the network draws random numbers")
    outputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
    sizes = [len(of_client) for of_client in samples]
    yield from zip(torch.split(outputs, sizes), torch.split(targets, sizes), strict=True)


def _states(device: torch.device) -> list[Tensor]:
    """Return the states of torch's generators of the CPU and of a device."""
    of_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *of_gpu]


def _order(
    n: int, batch_size: int, steps: int, generator: Callable[[], np.random.Generator]
) -> list[Rows]:
    """Return the positions, among n samples, of the batches of a client's steps."""
    if len(batch_slices(n, batch_size)) == 1:  # A batch of all samples needs no random order.
        return [np.arange(n)] * steps
    return list(itertools.islice(endless_batches(n, batch_size, generator()), steps))


class _Stack:
    """K clients' weights, which are those of `model` at first, and their samples."""

    def __init__(self, model: nn.Module, samples: Sequence[Samples], device: torch.device) -> None:
        trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        self.weights: Weights = {
            name: p.expand(len(samples), *p.shape).clone().requires_grad_()
            for name, p in trained.items()
        }
        self.pool, self.device = pooled(samples), device
        self.first = np.cumsum([0, *map(len, samples)])
        tied = any(name != first for name, first in first_names(model).items())
        self.forward = vmap(lambda own, inputs: outputs_of(model, inputs, own, tied=tied))

    def passes(
        self, rows: Sequence[Sequence[Rows]], divisors: Rows | None = None
    ) -> Iterator[tuple[Tensor, Weights, Tensor]]:
        """Yield the losses (K,) of one batch of each client after another, and their gradients.

        `rows` has the positions of each client's batches among its samples. A loss is the sum over
        the batch divided by the client's divisor, or else by the number of samples in the batch.
        The third value are the shares of the samples in the loss, (K, B). They are 0 where a client
        has fewer samples, or fewer batches, than another.
        """
        sizes = np.zeros((max(map(len, rows)), len(rows)), np.int64)
        for client, of_client in enumerate(rows):
            sizes[: len(of_client), client] = [len(batch) for batch in of_client]
        counted = np.arange(sizes.max(initial=0)) < sizes[:, :, None]
        positions = np.zeros(counted.shape, np.int64)
        for client, of_client in enumerate(rows):
            if len(of_client):
                of_each = self.first[client] + np.concatenate(of_client)
                positions[:, client][counted[:, client]] = of_each
        of_sums = np.maximum(sizes if divisors is None else divisors, 1)
        shares = torch.from_numpy(counted / np.broadcast_to(of_sums, sizes.shape)[:, :, None])
        dtype = next(iter(self.weights.values())).dtype
        for place, of_batch in zip(
            positions, on_device(shares.to(dtype), self.device), strict=True
        ):
            losses = self._losses(self.pool.batch(place.ravel(), self.device), of_batch)
            tensors = self.weights.values()
            ones = torch.ones_like(losses)
            gradients = torch.autograd.grad(losses, [*tensors], ones, allow_unused=True)
            named = zip(self.weights, gradients, strict=True)
            yield losses.detach(), {n: g for n, g in named if g is not None}, of_batch

    def _losses(self, batch: tuple[Inputs, Tensor], shares: Tensor) -> Tensor:
        inputs, targets = batch
        stacked = mapped(lambda tensor: tensor.view(*shares.shape, *tensor.shape[1:]), inputs)
        outputs = self.forward(self.weights, stacked)
        if outputs.ndim != 3 or outputs.shape[2] < 2 or not are_classes(targets):
            raise SettingsError(NO_LOSS)
        each = cross_entropy(outputs.flatten(0, 1), targets, reduction="none")
        return (each.view(shares.shape) * shares).sum(dim=1)


def _numbers(values: Sequence[float], device: torch.device) -> Tensor:
    """Return numbers of the K clients as a tensor on a device, without waiting for the device."""
    return on_device(torch.tensor(values), device)


def _on_host(tensors: Weights, losses: Tensor) -> tuple[Weights, list[float]]:
    """Return tensors and losses in the memory of the CPU, after the only wait for the device."""
    copies = on_cpu({**tensors, "": losses})
    return copies, copies.pop("").tolist()


def _like(of_clients: Tensor, tensor: Tensor) -> Tensor:
    """Return numbers of clients (K,) in a shape that multiplies a tensor (K, ...)."""
    return of_clients.view(-1, *[1] * (tensor.ndim - 1))
