"""The reply to a query, for ClientApps that are written with functions instead of classes."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Message

from coprefl_flwr import seeds
from coprefl_flwr.arrays import records_of
from coprefl_flwr.federation.messages import plain_reply

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from coprefl_flwr.learning import LossFn


def query_reply(
    message: Message,
    model: "nn.Module",
    batches: Iterable[Any],
    loss_fn: "LossFn | None" = None,
    *,
    batch: "Callable[[Any], tuple[Tensor, Tensor]] | None" = None,
    clip: float | None = None,
    noise: float = 0.0,
    rng: "np.random.Generator | None" = None,
) -> Message:
    """Return the reply to a query: the mean loss over all `batches`, and the gradient of the loss.

    Call `query_reply` in the function of your app that is registered as `@app.train("query")`.
    First load the message's arrays into `model`. `batches` are the batches of the query set. The
    loss is the cross-entropy if `loss_fn` is None; otherwise it is a mean over a batch, as with
    PyTorch's `reduction="mean"`, with or without class weights. If a batch is not a pair (inputs,
    labels), pass `batch`, a function that returns this pair. For a dict, for example:
    `batch=lambda b: (b["img"], b["label"])`.

    With `clip`, the gradient is clipped to this l2 norm, and the loss to the range from 0 to
    `clip`. `rng` draws Gaussian noise on each element of the gradient and on the loss. The standard
    deviation of the noise is `noise` times `clip`. If `rng` is None, the noise is a function of
    seed, population, round, attempt and node, so that a run can be repeated. However, the server
    knows the seed, so the server could compute this noise and subtract it. No privacy budget is
    computed.

    Raises a SettingsError for `noise` without `clip`, if `clip` or `noise` is out of range, and if
    `loss_fn` is not a mean.
    """
    # Imported here, so that an app whose clients do not use torch does not import torch.
    from torch.nn.functional import cross_entropy

    from coprefl_flwr.learning import loss_and_gradient
    from coprefl_flwr.learning.device import in_eval_mode
    from coprefl_flwr.learning.noise import check_clip, clipped
    from coprefl_flwr.models import first_names

    check_clip(clip, noise)
    pairs = map(batch, batches) if batch else batches
    with in_eval_mode(model):  # The app's next training expects the model as it left it.
        result = loss_and_gradient(model, pairs, loss_fn or cross_entropy)
    gradient, loss = result.gradient, result.loss
    if clip is not None:
        rng = rng or seeds.generator(*_query_key(message))
        gradient, loss = clipped(gradient, loss, clip, noise, rng, first_names(model))
    metrics = {"num-examples": result.num_examples, "loss": loss}
    return Message(plain_reply(gradient, metrics), reply_to=message)


def _query_key(message: Message) -> tuple[str | int, ...]:
    """Return the seed key of the noise on the reply to `message`."""
    config = records_of(message.content, ConfigRecord).get("config", ConfigRecord())
    named = (str(config.get(k, "")) for k in ("seed", "population", "server-round", "attempt"))
    return (*named, message.metadata.dst_node_id, "query-noise")
