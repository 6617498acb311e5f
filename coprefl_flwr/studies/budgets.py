"""What a pre-training costs in all: from its settings and its clients' sizes, without training.

What a round of each method costs stands beside its round; see `rounds.budget`.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Work
from coprefl_flwr.learning import ServerData
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.phases import Phase
from coprefl_flwr.studies.pretraining import Pretraining

MOST_ROUNDS = 100_000
"""Rounds after which a step size counts as out of reach: those of a decaying rate end somewhere."""


class Cost(NamedTuple):
    """A summed step size, and how many gradients of one sample's loss; nan where not known."""

    step_size: float
    gradients: float


def works(made: Pretraining) -> list[tuple[Phase, RoundStrategy, Work]]:
    """Return each phase of a pre-training with its strategy, and what a round of it works on."""
    sizes = [len(client.train) for client in made.population.clients]

    def server(whose: str) -> ServerData:
        return ServerData(nn.Identity(), made.clients.samples_of(whose))  # Only its size counts.

    return [
        (phase, strategy, Work(phase.training.participants, sizes, phase.training, phase.options))
        for phase, strategy in zip(made.phases, made.strategies(server), strict=True)
    ]


def by_round(made: Pretraining) -> Iterator[Cost]:
    """Yield what each round costs, in order; the last phase goes on without end."""
    first = 1
    for phase, strategy, work in works(made):
        training, budget = phase.training, strategy.budget(work)
        last = phase is made.phases[-1]
        step_sizes = budget.step_sizes(training, first)
        for step_size in itertools.islice(step_sizes, None if last else training.rounds):
            yield Cost(step_size, budget.gradients)
        first += training.rounds


def cost(made: Pretraining, rounds: int | None = None) -> Cost:
    """Return what a pre-training costs, or its first `rounds`; nothing for random weights.

    What weights that were made elsewhere took is not known.
    """
    if made.from_elsewhere:
        return Cost(math.nan, math.nan)
    if not made.phases:
        return Cost(0.0, 0.0)
    each = list(itertools.islice(by_round(made), made.rounds if rounds is None else rounds))
    return Cost(math.fsum(one.step_size for one in each), math.fsum(one.gradients for one in each))


def rounds_for(made: Pretraining, step_size: float) -> int:
    """Return the rounds of the last phase after which the summed step size is nearest to this.

    Raises a SettingsError if there are none: the method's steps have no size, or these do not add
    up to as much.
    """
    before = made.rounds - made.phases[-1].training.rounds
    reached, problem = 0.0, f"the summed step size of {made.name}"
    for number, one in enumerate(itertools.islice(by_round(made), MOST_ROUNDS), 1):
        if number > 1 and one.step_size == 0:
            break  # Of a rate that has decayed.
        if not one.step_size > 0:
            raise SettingsError(f"{problem} is {one.step_size:g} a round: no rounds make it equal")
        farther = reached + one.step_size
        if farther >= step_size and number > before:
            nearest = number - (step_size - reached < farther - step_size)
            return max(nearest - before, 1)
        reached = farther
    raise SettingsError(f"{problem} never comes to {step_size:g}")
