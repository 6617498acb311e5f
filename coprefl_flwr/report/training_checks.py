"""Check by its loss whether a pre-training diverged or did not learn.

Random guessing among C classes has the cross-entropy ln C. A round's loss is the mean over its
clients' local training, so it is below ln C after a successful training:

- **did not learn**: the mean loss of the last tenth of the last phase's rounds (at least one round)
  is not at least 2 % below ln C;
- **diverged**: the loss of the last round is not finite, or above twice ln C.

In a chain, a client's loss is the loss of a model that another client has just trained. This loss
can be high although the model learnt much, and low although it learnt little. A chain did not
learn if its loss is within 2 % of ln C, and diverged if its loss is above ten times ln C. If the
loss of the start over all clients' data was measured, it is used instead of the rounds' losses.
"""

import math
from collections.abc import Sequence

DIVERGED, NOT_LEARNT = "diverged", "did not learn"
NOT_FINITE = f"{DIVERGED}: loss not finite"
"""The problem of a training whose loss cannot be compared with random guessing."""

Problem = str
"""A phrase that describes a problem of a start, or of a model that was trained from the start."""

CHAINED = "chained"
"""Column of rows of rounds: whether the model passes from client to client in the round."""

NEAR = 0.02  # fraction of ln C; a loss closer to ln C than this counts as random guessing
_FAR, _FAR_OF_CHAINS = 2.0, 10.0  # multiples of ln C above which a loss has diverged
_LAST = 0.1  # fraction of the rounds


def problem_of(
    losses: Sequence[float | None],
    classes: int,
    *,
    start_loss: float | None = None,
    chained: bool = False,
    comparable: bool = True,
) -> Problem | None:
    """Return the problem of a pre-training; None without a problem or without a known loss.

    Parameters
    ----------
    losses : sequence of float or None
        Losses of the rounds of the last phase. None means a loss that is not finite.
    start_loss : float, optional
        Loss of the start over all clients' data; nan if it is not finite.
    chained : bool
        Whether the model passes from client to client.
    comparable : bool
        Whether the losses can be compared with ln C. Further terms in a loss would raise it.
    """
    if start_loss is not None:
        losses = [start_loss]
    if not losses:
        return None
    known = [math.nan if loss is None else float(loss) for loss in losses]
    last, guessing = known[-1], math.log(classes)
    far = _FAR if comparable and not chained else _FAR_OF_CHAINS
    if guessing == 0 and math.isfinite(last):  # One class: the loss of guessing is 0.
        return None
    if not math.isfinite(last) or last > far * guessing:
        return _phrase(DIVERGED, last, guessing)
    some = known[-max(1, round(_LAST * len(known))) :]
    mean = math.fsum(some) / len(some)
    if not (comparable or start_loss is not None) or not mean >= (1 - NEAR) * guessing:
        return None
    if chained and mean > (1 + NEAR) * guessing:
        return None
    return _phrase(NOT_LEARNT, mean, guessing)


def _phrase(what: str, loss: float, guessing: float) -> Problem:
    """Return e.g. "did not learn: loss 4.376 (random guessing: 4.382)"."""
    shown = f"{loss:.3f}" if loss < 1000 else f"{loss:.3g}"
    text = f"{what}: loss {shown if math.isfinite(loss) else 'not finite'}"
    return f"{text} (random guessing: {guessing:.3f})" if guessing > 0 else text
