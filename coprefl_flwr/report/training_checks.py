"""Whether a pre-training has learnt anything, judged by its loss.

Guessing among C classes has the cross-entropy ln C. A round's loss is the mean over its clients'
local training, so one that has learnt is below that:

- **did not learn**: the mean loss of the last tenth of the rounds (of the last phase's, at least
  one round) is not at least 2 % below ln C;
- **diverged**: that of the last round is not finite, or above twice ln C.

Where a model travels from client to client, its loss is that of one which has just been fitted to
another client's data: it can be high although much was learnt, and low although little was. It did
not learn where its loss is within 2 % of ln C, and diverged above ten times that. Where the loss of
the start itself, over all clients' data, was measured, it is used instead of the last rounds'.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

DIVERGED, NOT_LEARNT = "diverged", "did not learn"

CHAINED = "chained"
"""The column of rows of rounds that says whether the model travels from client to client."""

NEAR = 0.02  # of ln C: closer to it than this is guessing
_FAR, _FAR_OF_CHAINS = 2.0, 10.0  # times ln C: above it, a loss has diverged
_LAST = 0.1  # of the rounds


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a start, or with a model that was trained from it."""

    what: str  # "diverged", "did not learn", or a sentence about it
    loss: float = math.nan  # not finite where it overflowed
    guessing: float = math.nan  # ln C; nan where that says nothing

    def __str__(self) -> str:
        """Return e.g. "did not learn: loss 4.376 (random guessing: 4.382)"."""
        if self.what not in (DIVERGED, NOT_LEARNT):
            return self.what
        loss = f"{self.loss:.3f}" if self.loss < 1000 else f"{self.loss:.3g}"
        text = f"{self.what}: loss {loss if math.isfinite(self.loss) else 'not finite'}"
        return f"{text} (random guessing: {self.guessing:.3f})" if self.guessing > 0 else text


def trouble_of(
    losses: Sequence[float | None],
    classes: int,
    *,
    start_loss: float | None = None,
    chained: bool = False,
    comparable: bool = True,
) -> Trouble | None:
    """Return what is wrong with a pre-training, None for nothing, or where no loss is known.

    Parameters
    ----------
    losses : sequence of float or None
        Of the rounds of its last phase; None for one that is not finite, as results have it.
    start_loss : float, optional
        That of the start itself over all clients' data; nan if it is not finite.
    chained : bool
        Whether its model travels from client to client.
    comparable : bool
        Whether its losses can be compared with ln C, which other terms in them would raise.
    """
    if start_loss is not None:
        losses = [start_loss]
    if not losses:
        return None
    known = [math.nan if loss is None else float(loss) for loss in losses]
    last, guessing = known[-1], math.log(classes)
    far = _FAR if comparable and not chained else _FAR_OF_CHAINS
    if not math.isfinite(last) or last > far * guessing:
        return Trouble(DIVERGED, last, guessing)
    some = known[-max(1, round(_LAST * len(known))) :]
    mean = math.fsum(some) / len(some)
    if not (comparable or start_loss is not None) or not mean >= (1 - NEAR) * guessing:
        return None
    if chained and mean > (1 + NEAR) * guessing:
        return None
    return Trouble(NOT_LEARNT, mean, guessing)
