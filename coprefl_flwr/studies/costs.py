"""The costs of pre-trainings, counted before a run: summed step sizes and gradients.

Each strategy states the computation of one round (see `federation.budget`).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Work
from coprefl_flwr.learning.server_data import ServerData

if TYPE_CHECKING:
    from coprefl_flwr.studies.pretraining import Pretraining

MOST_ROUNDS = 100_000
"""Maximum rounds in the search for a summed step size: with a decaying rate, the sum is bounded."""


class Cost(NamedTuple):
    """A sum of step sizes, and a number of gradients of one sample's loss; nan if not known."""

    step_size: float
    gradients: float


def by_round(pretraining: "Pretraining", sizes: Sequence[int] = ()) -> Iterator[Cost]:
    """Yield the cost of each round, in order. The last phase continues without end.

    `sizes` are the clients' numbers of samples; by default those of the pre-training's clients.
    """
    sizes = sizes or [len(client.train) for client in pretraining.population.clients]

    def server(whose: str) -> ServerData:  # Only its number of samples counts.
        return ServerData(nn.Identity(), pretraining.samples_of(whose))

    first = 1
    for phase in pretraining.phases:
        training, last = phase.training, phase is pretraining.phases[-1]
        strategy = phase.strategy(server, **pretraining.of_strategies())
        budget = strategy.budget(Work(training.participants, sizes, training, phase.values))
        step_sizes = budget.step_sizes(training, first)
        for step_size in itertools.islice(step_sizes, None if last else training.rounds):
            yield Cost(step_size, budget.gradients)
        first += training.rounds


def cost(pretraining: "Pretraining", rounds: int | None = None, sizes: Sequence[int] = ()) -> Cost:
    """Return the cost of a pre-training, or of its first `rounds` rounds.

    The cost is 0 for random weights. The cost of given weights is not known, so it is nan.
    `sizes` is as in `by_round`.
    """
    if pretraining.is_external:
        return Cost(math.nan, math.nan)
    last = pretraining.rounds if rounds is None else rounds
    counted = itertools.islice(by_round(pretraining, sizes), last)
    return Cost(*map(math.fsum, zip(Cost(0.0, 0.0), *counted, strict=True)))


def rounds_for(pretraining: "Pretraining", step_size: float) -> int:
    """Return the number of rounds of the last phase for a given sum of step sizes.

    The sum over all phases is then nearest to `step_size`.

    Raises a SettingsError if the method states no step size, or if its sum never reaches
    `step_size`.
    """
    before = pretraining.rounds - pretraining.phases[-1].training.rounds
    reached, problem = 0.0, f"the summed step size of {pretraining.name}"
    for number, round_cost in enumerate(itertools.islice(by_round(pretraining), MOST_ROUNDS), 1):
        if number > 1 and round_cost.step_size == 0:
            break  # The rate has decayed to 0.
        if not round_cost.step_size > 0:
            size = round_cost.step_size
            problem += " is not known" if math.isnan(size) else f" is {size:g} per round"
            raise SettingsError(f"{problem}, so no number of rounds reaches the reference's")
        farther = reached + round_cost.step_size
        if farther >= step_size and number > before:
            nearest = number - (step_size - reached < farther - step_size)
            return max(nearest - before, 1)
        reached = farther
    raise SettingsError(f"{problem} never reaches the reference's {step_size:g}")
