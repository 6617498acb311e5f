"""Loss, gradient, accuracy and class means over a whole set of samples, in eval mode."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.data import Samples
from coprefl_flwr.data.inputs import Inputs
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models.arrays import as_array
from coprefl_flwr.models.outputs import outputs_of
from coprefl_flwr.models.precision import FLOAT32, HALF_TYPES, computing
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.transfer import on_cpu

BatchLoss = Callable[[nn.Module, Any], Tensor]
"""A loss of a model and a batch: a scalar, the mean over the samples of the batch."""

EVALUATION_BATCH = 256
"""Number of samples per batch in eval mode."""


@dataclass(frozen=True)
class Metric:
    """A user's metric: `fn(outputs (n, ...), targets (n, ...)) -> float` over a client's test set.

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


def are_classes(targets: Tensor) -> bool:
    """Return whether the targets of a batch are the integer classes of single samples, (b,)."""
    return targets.ndim == 1 and not targets.is_floating_point()


NO_LOSS = (
    "without loss=, a batch is (inputs, integer classes), and the model has two or more outputs: "
    "pass loss="
)


def cross_entropy_of_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of outputs (n, C, ...) and integer classes (n, ...).

    The outputs of a sequence may be (n, L, C) too, as those of transformers are. Targets of -100 do
    not count. The outputs are the logits of at least two classes. Raises a SettingsError for
    others, because their cross-entropy would be another loss than the user's, and 0 if there is
    only one output; and for (n, L, L), because it is not clear which dimension has the classes.
    """
    if targets.ndim == 2 and isinstance(outputs, Tensor) and outputs.shape[:-1] == targets.shape:
        if outputs.shape[1] == outputs.shape[2]:
            raise SettingsError(f"outputs {tuple(outputs.shape)}: are classes last? pass loss=")
        outputs, targets = outputs.flatten(0, 1), targets.flatten()
    logits = isinstance(outputs, Tensor) and outputs.ndim > 1 and outputs.shape[1] > 1
    if not logits or targets.is_floating_point() or targets.is_complex():
        raise SettingsError(NO_LOSS)
    return cross_entropy(outputs, targets)


def next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token: the loss of a causal language model.

    Parameters
    ----------
    outputs : Tensor
        Logits (n, L, V). Those of a place are for the target of the next place.
    targets : Tensor
        The tokens of the input, int64 (n, L); -100 where they do not count, such as for padding.
    """
    return cross_entropy(outputs[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def class_loss(model: Callable[[Any], Any], batch: Any) -> Tensor:
    """Return the mean cross-entropy of a batch (inputs, targets); a SettingsError for another."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor)):
        raise SettingsError(NO_LOSS)
    inputs, targets = batch
    return cross_entropy_of_classes(outputs_of(model, inputs), targets)


def batch_size(batch: Any) -> int:
    """Return the number of samples of a batch, which is the length of its first tensor.

    A batch is a tensor, or a tuple, list or mapping that holds one, such as `(inputs, targets)` or
    the dict of a tokenizer. Raises a SettingsError for a batch without a tensor.
    """
    waiting = [batch]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, Tensor) and part.ndim:
            return len(part)
        if isinstance(part, Mapping | tuple | list):
            waiting[:0] = part.values() if isinstance(part, Mapping) else part
    raise SettingsError(f"a batch is a {type(batch).__name__}: pass size=, a function of a batch")


def loss_and_gradient(
    model: nn.Module,
    batches: Iterable[Any],
    loss: BatchLoss = class_loss,
    size: Callable[[Any], float] = batch_size,
    precision: str = FLOAT32,
) -> LossAndGradient:
    """Return the mean loss L(w) = 1/n sum_i l_i over `batches` and its gradient, in eval mode.

    This is line 13 of CoPreFL's Algorithm 1. In train mode the loss and the gradient would depend
    on the batch size, and BatchNorm's buffers would change. Tied weights have the same gradient
    under each of their names. `batches` is any iterable of batches, such as a DataLoader. `loss`
    returns the mean loss of a batch, a scalar, and `size` the weight of the batch in the mean over
    all batches: its number of samples, or for a weighted mean the sum of the samples' weights.
    `precision` is the number format of the network's computations (see `models.computing`). Raises
    a ValueError if `batches` has no samples.
    """
    model.eval()
    model.zero_grad(set_to_none=True)
    losses, total_weight = list[Tensor](), 0.0
    sums: dict[nn.Parameter, Tensor] = {}
    halves = [p for p in model.parameters() if p.dtype in HALF_TYPES]
    with differentiable(model), computing(model, precision):
        for batch in batches:
            if not (weight := float(size(batch))):
                continue  # No sample or token counts, so the loss is not a number.
            batch_sum = loss(model, batch) * weight
            torch.autograd.backward(batch_sum)
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
    gradient = {name: as_array(tensor) for name, tensor in on_host.items()}
    model.zero_grad(set_to_none=True)
    return LossAndGradient(total / total_weight, gradient, max(1, round(total_weight)))


def _add_up_in_float32(halves: list[nn.Parameter], sums: dict[nn.Parameter, Tensor]) -> None:
    """Add 16-bit gradients to the float32 `sums`: a 16-bit sum over batches would lose addends."""
    for p in halves:
        if p.grad is not None:
            sums[p] = sums[p] + p.grad if p in sums else p.grad.float()
            p.grad = None


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Inputs, Tensor]],
    own: Mapping[str, Callable[..., float]] | None = None,
    precision: str = FLOAT32,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> Mapping[str, float]:
    """Return {"num-examples": n, "correct": top-1 hits, "loss": mean loss} in eval mode.

    "correct" is left out if the targets are not integer classes (b,) of outputs (b, C). `loss` is a
    function of outputs and targets, the mean over a batch. `own` has further metrics by name. Each
    metric is a function of all outputs (n, ...) and targets (n, ...), on the CPU. Its value is
    returned under "metric:NAME", and left out if it is not finite.
    Raises a ValueError if `batches` has no samples.
    """
    model.eval()
    losses, hits, sizes = list[Tensor](), list[Tensor](), list[int]()
    predictions: list[tuple[Tensor, Tensor]] = []
    with computing(model, precision):
        for inputs, targets in batches:
            outputs = outputs_of(model, inputs)
            if own:
                predictions.append((outputs.cpu(), targets.cpu()))
            losses.append(loss(outputs, targets))
            if are_classes(targets) and outputs.ndim == 2:
                hits.append((outputs.argmax(dim=1) == targets).sum())
            sizes.append(len(targets))
    if not sizes:
        raise ValueError("no samples to evaluate on")
    # Only here the CPU waits for the GPU.
    on_host = on_cpu(
        {"losses": torch.stack(losses), **({"hits": torch.stack(hits)} if hits else {})}
    )
    total = sum(mean * n for mean, n in zip(on_host["losses"].tolist(), sizes, strict=True))
    correct = {"correct": int(on_host["hits"].sum())} if hits else {}
    metrics = {"num-examples": sum(sizes), **correct, "loss": total / sum(sizes)}
    if own:
        logits, labels = (torch.cat(parts) for parts in zip(*predictions, strict=True))
        values = {name: float(fn(logits, labels)) for name, fn in own.items()}
        # A metric may be undefined for a client, such as the recall without positive samples.
        metrics |= {f"{METRIC}{n}": value for n, value in values.items() if math.isfinite(value)}
    return metrics


@torch.no_grad()
def class_means(
    represent: Callable[[Inputs], Tensor], samples: Samples, like: Arrays, device: torch.device
) -> Arrays:
    """Return a client's prototypes: the mean of z(x) over each class's samples (FedPCL, eq. 5).

    `represent` returns the representations z, (b, d), of a batch. The network of `represent` must
    be in eval mode, or else z would depend on the batch. `like` is a set of prototypes (see
    `learning.prototypes`) with the shapes and dtypes to return. A class without samples has a
    prototype of zeros.
    """
    classes, size = like["prototypes"].shape
    sums = torch.zeros(classes, size, dtype=torch.float64, device=device)
    counts = torch.zeros(classes, dtype=torch.float64, device=device)
    for inputs, targets in samples.batches(EVALUATION_BATCH, device):
        z = represent(inputs)
        sums.index_add_(0, targets, z.double())
        counts.index_add_(0, targets, torch.ones_like(targets, dtype=torch.float64))
    means = sums / counts.clamp(min=1)[:, None]
    return {
        "prototypes": means.cpu().numpy().astype(like["prototypes"].dtype),
        "counts": counts.cpu().numpy().astype(like["counts"].dtype),
    }
