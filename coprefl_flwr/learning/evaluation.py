"""Loss, gradient, accuracy and class means over a whole set of samples, in eval mode."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.training import backward
from coprefl_flwr.models.arrays import as_array
from coprefl_flwr.models.precision import FLOAT32, HALF_TYPES, computing
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.transfer import on_cpu

LossFn = Callable[[Tensor, Tensor], Tensor]
"""A loss: the mean loss of a batch (outputs, targets), as `torch.nn.functional.cross_entropy`."""

EVALUATION_BATCH = 256
"""Number of samples per batch in eval mode."""


@dataclass(frozen=True)
class Metric:
    """A user's metric: `fn(logits (n, C), labels (n,)) -> float` over a client's test set.

    `title` is the heading of the metric's column. `better` is "higher" or "lower".
    """

    name: str
    title: str
    better: str
    fn: Callable[..., float]


@contextmanager
def differentiable(model: nn.Module, *, twice: bool = False) -> Iterator[None]:
    """Return a context in which a network has first derivatives in eval mode.

    With `twice` it also has second derivatives. The context disables cuDNN if the model has a
    recurrent layer: cuDNN has no gradients of recurrent layers in eval mode, and no second
    derivatives of them. The fused kernels of attention have no second derivatives either.
    """
    with ExitStack() as entered:
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            entered.enter_context(torch.backends.cudnn.flags(enabled=False))
        if twice:
            entered.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield


@dataclass(frozen=True)
class LossAndGradient:
    """The mean loss over a whole set of samples, and the gradient of the loss by parameter name.

    The gradient has the dtype of the model, or float32 if the model's dtype has 16 bits.
    """

    loss: float
    gradient: Arrays
    num_examples: int


def loss_and_gradient(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss_fn: LossFn = cross_entropy,
    precision: str = FLOAT32,
) -> LossAndGradient:
    """Return the mean loss L(w) = 1/n sum_i l_i over `batches` and its gradient, in eval mode.

    This is line 13 of CoPreFL's Algorithm 1. In train mode the loss and the gradient would depend
    on the batch size, and BatchNorm's buffers would change. Tied weights have the same gradient
    under each of their names. `batches` is any iterable of (inputs, targets) on the model's device,
    such as a DataLoader. `precision` is the number format of the network's computations (see
    `models.computing`). A weighted mean, such as the cross-entropy with class weights, is a mean
    over the whole set too. Raises a ValueError if `batches` has no samples, and a SettingsError if
    `loss_fn` is not a mean over samples.
    """
    model.eval()
    model.zero_grad(set_to_none=True)
    losses, count, total_weight, weigh = list[Tensor](), 0, 0.0, None
    sums: dict[nn.Parameter, Tensor] = {}
    halves = [p for p in model.parameters() if p.dtype in HALF_TYPES]
    with differentiable(model), computing(model, precision):
        for inputs, targets in batches:
            outputs, weight = model(inputs), float(len(targets))
            count += len(targets)
            if loss_fn is not cross_entropy and isinstance(outputs, Tensor):
                weigh = weigh or _weights(loss_fn, outputs, targets)
                exact = weigh(outputs, targets)
                # n, not nearly n, where all weights are equal, and where the loss cannot improve.
                weight = exact if abs(exact - weight) > 1e-4 * weight else weight
            batch_sum = loss_fn(outputs, targets) * weight
            backward(batch_sum, model.parameters())
            _add_up_in_float32(halves, sums)
            losses.append(batch_sum.detach())
            total_weight += weight
    if not losses:
        raise ValueError("no samples to compute a loss of")
    means: dict[nn.Parameter, Tensor] = {}
    for p in (p for p in model.parameters() if p.requires_grad):
        summed = sums.get(p, p.grad)
        # In place, because a copy would need the memory of another model.
        means[p] = torch.zeros_like(p) if summed is None else summed.div_(total_weight)
    named = model.named_parameters(remove_duplicate=False)
    gradients = {name: means[p] for name, p in named if p.requires_grad}
    on_host = on_cpu({"": torch.stack(losses), **gradients})  # Only here the CPU waits for the GPU.
    total = sum(on_host.pop("").tolist())
    gradient = {name: as_array(tensor, name) for name, tensor in on_host.items()}
    model.zero_grad(set_to_none=True)
    return LossAndGradient(total / total_weight, gradient, count)


def _weights(loss_fn: LossFn, *first: Tensor) -> Callable[[Tensor, Tensor], float]:
    """Return a function of a batch: what its loss divides by, in units of that of one sample.

    The loss of a batch is sum_i w_i l_i / sum_i w_i, where all w_i may be 1. The gradient by the
    output of a sample is w / sum_i w_i times that of this sample alone. This is measured with the
    sample of the first batch that has the largest gradient, as a further one of a batch.

    Raises a SettingsError if the loss is another one where each sample occurs twice.
    """

    def measured(*batches: Sequence[Tensor]) -> tuple[float, Tensor]:
        outputs, targets = (torch.cat(parts).detach() for parts in zip(*batches, strict=True))
        loss = loss_fn(outputs.requires_grad_(), targets)
        (gradient,) = torch.autograd.grad(loss, outputs)
        return float(loss.detach()), gradient.reshape(len(gradient), -1).norm(dim=1)

    (loss, lengths), (double, _) = measured(first), measured(first, first)
    if abs(double - loss) > 0.01 * abs(loss):
        twice = f"is {loss:.4g} for {len(lengths)} samples and {double:.4g} for the same ones twice"
        raise SettingsError(f"loss_fn {twice}; pass a mean, such as one with reduction='mean'")
    at = int(lengths.argmax())
    one = [part[at : at + 1] for part in first]
    _, alone = measured(one)
    return lambda *batch: float(alone / measured(batch, one)[1][-1]) - 1


def _add_up_in_float32(halves: list[nn.Parameter], sums: dict[nn.Parameter, Tensor]) -> None:
    """Add 16-bit gradients to the float32 `sums`: a 16-bit sum over batches would lose addends."""
    for p in halves:
        if p.grad is not None:
            sums[p] = sums[p] + p.grad if p in sums else p.grad.float()
            p.grad = None


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    own: Mapping[str, Callable[..., float]] | None = None,
    precision: str = FLOAT32,
) -> Mapping[str, float]:
    """Return {"num-examples": n, "correct": top-1 hits, "loss": mean loss} in eval mode.

    `own` has further metrics by name. Each metric is a function of all outputs (n, C) and targets
    (n,), on the CPU. Its value is returned under "metric:NAME", and left out if it is not finite.
    Raises a ValueError if `batches` has no samples.
    """
    model.eval()
    losses, hits, sizes = list[Tensor](), list[Tensor](), list[int]()
    predictions: list[tuple[Tensor, Tensor]] = []
    with computing(model, precision):
        for inputs, targets in batches:
            outputs = model(inputs)
            if own:
                predictions.append((outputs.cpu(), targets.cpu()))
            losses.append(cross_entropy(outputs, targets))
            hits.append((outputs.argmax(dim=1) == targets).sum())
            sizes.append(len(targets))
    if not sizes:
        raise ValueError("no samples to evaluate on")
    # Only here the CPU waits for the GPU.
    on_host = on_cpu({"losses": torch.stack(losses), "hits": torch.stack(hits)})
    total = sum(loss * n for loss, n in zip(on_host["losses"].tolist(), sizes, strict=True))
    correct, count = int(on_host["hits"].sum()), sum(sizes)
    metrics = {"num-examples": count, "correct": correct, "loss": total / count}
    if own:
        logits, labels = (torch.cat(parts) for parts in zip(*predictions, strict=True))
        values = {name: number_of(name, fn(logits, labels)) for name, fn in own.items()}
        # A metric may be undefined for a client, such as the recall without positive samples.
        metrics |= {f"{METRIC}{n}": value for n, value in values.items() if math.isfinite(value)}
    return metrics


def number_of(name: str, value: Any) -> float:
    """Return `value`, the result of a user's metric, as a float.

    Raises a SettingsError if the value is not a number.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise SettingsError(f"metric '{name}' returned {kind}; a number is needed") from error


@torch.no_grad()
def class_means(
    represent: Callable[[Tensor], Tensor], samples: Samples, like: Arrays, device: torch.device
) -> Arrays:
    """Return a client's prototypes: the mean of z(x) over each class's samples (FedPCL, eq. 5).

    `represent` returns the representations z, (b, d), of a batch. The network of `represent` must
    be in eval mode, or else z would depend on the batch. `like` is a set of prototypes (see
    `learning.prototypes`) with the shapes and dtypes to return. A class without samples has a
    prototype of zeros. Raises a SettingsError if z has another size than the prototypes.
    """
    classes, size = like["prototypes"].shape
    sums = torch.zeros(classes, size, dtype=torch.float64, device=device)
    counts = torch.zeros(classes, dtype=torch.float64, device=device)
    for inputs, targets in samples.batches(EVALUATION_BATCH, device):
        z = represent(inputs)
        if z.shape[1] != size:
            raise SettingsError(f"z has {z.shape[1]} dimensions, but a prototype has {size}")
        sums.index_add_(0, targets, z.double())
        counts.index_add_(0, targets, torch.ones_like(targets, dtype=torch.float64))
    means = sums / counts.clamp(min=1)[:, None]
    return {
        "prototypes": means.cpu().numpy().astype(like["prototypes"].dtype),
        "counts": counts.cpu().numpy().astype(like["counts"].dtype),
    }
