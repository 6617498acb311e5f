"""The reply to a query, for ClientApps that are written with functions instead of classes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from coprefl_flwr import seeds
from coprefl_flwr.arrays import records_of
from coprefl_flwr.errors import SettingsError, excerpt
from coprefl_flwr.federation.hosting import name_arrays, sent_arrays
from coprefl_flwr.federation.messages import ARRAYS, plain_reply
from coprefl_flwr.learning.noise import clipped

if TYPE_CHECKING:
    from torch import nn

    from coprefl_flwr.learning.evaluation import BatchLoss


def query_reply(
    message: Message,
    model: "nn.Module",
    batches: Iterable[Any],
    loss: "BatchLoss | None" = None,
    *,
    size: Callable[[Any], float] | None = None,
    names: Callable[[str], str] | None = None,
    clip: float | None = None,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Message:
    """Return the reply to a query: the mean loss over all `batches`, and the gradient of the loss.

    Call `query_reply` in the function of your app that is registered as `@app.train("query")`.
    First load the message's arrays into `model`. `batches` are the batches of the query set.
    `loss(model, batch)` returns the mean loss of a batch, a scalar tensor, as your training
    computes it. It moves the batch to the model's device if necessary. A sum over the samples must
    be divided by their number. If `loss` is None, a batch is a pair (inputs, integer class labels),
    and the loss is the cross-entropy of at least two classes. What the model draws in eval mode is
    seeded by seed, population, round, attempt and node.

    `size(batch)` returns the number of samples of a batch, or for a loss with class weights their
    sum. If `size` is None, it is the length of the first tensor in the batch.

    The reply has the gradient of every trainable parameter that the message has. In the sums over
    clients, an array that a reply lacks, because it is frozen there, counts as 0. The names in the
    message may be shorter than those of the model: an app may send only a part of the model, such
    as its head, or peft's adapters. If they cannot be matched, pass `names`, a function from the
    name of a parameter in the model to its name in the message.

    With `clip`, the gradient is clipped to this l2 norm, and the loss to the range from 0 to
    `clip`. `rng` draws Gaussian noise on each element of the gradient and on the loss. The standard
    deviation of the noise is `noise` times `clip`. If `rng` is None, the noise is a function of
    seed, population, round, attempt and node, so that a run can be repeated. However, the server
    knows the seed, so the server could compute this noise and subtract it. No privacy budget is
    computed.

    Raises a SettingsError for `noise` without `clip`, for batches that need `loss` or `size`, and
    for names that need `names`.
    """
    # Imported here, so that an app whose clients do not use torch does not import torch.
    from coprefl_flwr.learning.evaluation import batch_size, class_loss, loss_and_gradient
    from coprefl_flwr.learning.training import torch_seeded
    from coprefl_flwr.models import first_names

    if noise and not clip:
        raise SettingsError(f"noise = {noise:g}: set clip, too; the noise is a multiple of it")
    sent = _sent_names(message, model, names)
    modes = [(module, module.training) for module in model.modules()]
    with torch_seeded(*_query_key(message, "query"), network=model):
        result = loss_and_gradient(model, batches, loss or class_loss, size or batch_size)
    for module, mode in modes:  # The app's next training expects the model as it left it.
        module.training = mode
    gradient = {sent[name]: array for name, array in result.gradient.items() if name in sent}
    first = {sent[n]: sent.get(of, of) for n, of in first_names(model).items() if n in sent}
    loss_of_query = result.loss
    if clip:
        rng = rng or seeds.generator(*_query_key(message, "query-noise"))
        gradient, loss_of_query = clipped(gradient, loss_of_query, clip, noise, rng, first)
    return gradient_reply(message, gradient, result.num_examples, loss_of_query)


def gradient_reply(
    message: Message,
    gradient: Mapping[str, np.ndarray[Any, Any]] | Sequence[np.ndarray[Any, Any]],
    num_examples: int,
    loss: float,
) -> Message:
    """Return the reply to a query, for an app that computes the gradient without PyTorch.

    `loss` is the mean loss of the message's arrays on the `num_examples` samples of the query set,
    and `gradient` its gradient: an array for each array of the message, in their order, or a
    mapping from the names of the trainable arrays to their gradients. Raises a ValueError if the
    list has another length than the message.
    """
    named = name_arrays(gradient, sent_arrays(message)[0])
    metrics = {"num-examples": num_examples, "loss": float(loss)}
    return Message(plain_reply(named, metrics), reply_to=message)


def _query_key(message: Message, purpose: str) -> tuple[str | int, ...]:
    """Return the seed key of the random numbers for a purpose in the reply to `message`."""
    config = records_of(message.content, ConfigRecord).get("config", ConfigRecord())
    named = (str(config.get(k, "")) for k in ("seed", "population", "server-round", "attempt"))
    return (*named, message.metadata.dst_node_id, purpose)


def _sent_names(
    message: Message, model: "nn.Module", names: Callable[[str], str] | None
) -> dict[str, str]:
    """Return {name of a trainable parameter of the model: its name in the message}.

    Without `names`, an array of the message is the parameter or buffer with its name. Otherwise it
    is the only one that has its shape and, in their order, all parts of its name, and perhaps
    others, such as `heads` before or peft's `default` in between. Arrays of a list, whose names are
    their numbers, have the order of the model's `state_dict`, or of its (trainable) parameters.
    """
    record = records_of(message.content, ArrayRecord)[ARRAYS]
    sent = {name: tuple(array.shape) for name, array in record.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    parameters = model.named_parameters(remove_duplicate=False)
    trainable = [name for name, p in parameters if p.requires_grad]
    if names is not None:
        return {name: names(name) for name in trainable if names(name) in sent}
    if list(sent) == list(map(str, range(len(sent)))):
        for listed in (list(shapes), [n for n, _ in model.named_parameters()], trainable):
            if [shapes[name] for name in listed] == list(sent.values()):
                return {n: place for n, place in zip(listed, sent, strict=True) if n in trainable}
    found = {}
    for name, shape in sent.items():
        among = [n for n in shapes if shapes[n] == shape and _has_parts(n, name)]
        among = [name] if name in shapes else [n for n in among if n in trainable] or among
        if len(among) != 1:
            near = f"{len(among)} parameters or buffers of the model, not one"
            raise SettingsError(f"array '{excerpt(name)}' of the message fits {near}: pass names=")
        found[among[0]] = name
    return {name: found[name] for name in trainable if name in found}


def _has_parts(name: str, parts: str) -> bool:
    """Return whether a name has all parts of another name, in their order."""
    rest = iter(name.split("."))
    return all(part in rest for part in parts.split("."))
