"""The answer to the query exchange, for apps that are written with functions."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Message

from coprefl_flwr import seeds
from coprefl_flwr.arrays import records_of
from coprefl_flwr.federation.messages import plain_reply, with_norm

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
    """Answer the query exchange from an app written with functions.

    Register it as `@app.train("query")`, load the message's arrays into `model`, and pass the
    batches of the query set; the reply holds the mean loss over all of them and its gradient. The
    loss is the cross-entropy unless `loss_fn` is given.
    `batch` returns (inputs, labels) of a batch that is something else, such as a dict:
    `batch=lambda b: (b["img"], b["label"])`.

    With `clip` the gradient has at most this l2 norm, and the loss is kept between 0 and `clip`.
    `noise` times `clip` is the standard deviation of Gaussian noise on each of their numbers, which
    `rng` draws. Not given, `rng` is a function of seed, population, round, attempt and node, so
    that a run can be repeated; but the server knows the seed, and could take that noise away again.
    No privacy is accounted.

    Raises a SettingsError for noise without `clip` and for numbers out of range.
    """
    # Here, as an app whose clients need no torch does without it.
    from torch.nn.functional import cross_entropy

    from coprefl_flwr.learning import loss_and_gradient
    from coprefl_flwr.learning.noise import check_clip, clipped
    from coprefl_flwr.models import first_names

    check_clip(clip, noise)
    pairs = map(batch, batches) if batch else batches
    result = loss_and_gradient(model, pairs, loss_fn or cross_entropy)
    gradient, loss = result.gradient, result.loss
    if clip is not None:
        rng = rng or seeds.generator(*_query_key(message))
        gradient, loss = clipped(gradient, loss, clip, noise, rng, first_names(model))
    metrics = {"num-examples": result.num_examples, "loss": loss}
    content = plain_reply(gradient, metrics)
    return Message(with_norm(content), reply_to=message)


def _query_key(message: Message) -> tuple[str | int, ...]:
    """Return the seed key of the noise on the answer to a message."""
    config = records_of(message.content, ConfigRecord).get("config", ConfigRecord())
    named = (str(config.get(k, "")) for k in ("seed", "population", "server-round", "attempt"))
    return (*named, message.metadata.dst_node_id, "query-noise")
