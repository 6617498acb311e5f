"""Search by Optuna: its TPE sampler says which of the searched values are run, one after the other.

What comes next depends on the scores of those before, so the values that a row tries are found from
the store: the search is told anew, from its first trial on. A trial is the very run that would be
made without Optuna, under the same key. One that failed is told to it as failed.
"""

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.recipe import OPTUNA, Candidate, Entrant

AT_RANDOM = 4
"""The first one of so many trials is drawn at random."""

AGAIN = 100
"""So often in a row the sampler may name what was tried, before the first of the others is."""

Score = Callable[[Candidate], float]


def check_installed(search_by: str) -> None:
    """Raise a SettingsError if it is Optuna that is searched by, and that is not installed."""
    if search_by == OPTUNA and importlib.util.find_spec("optuna") is None:
        problem = "search-by: optuna needs the package: pip install 'coprefl-flwr[optuna]'"
        raise SettingsError(problem, "search-by")


def version() -> str:
    """Return the version of Optuna, on which the values that are tried depend."""
    import optuna

    return str(optuna.__version__)


def asked(entrant: Entrant, trials: int, seed: int, score: Score) -> Iterator[Candidate]:
    """Yield the candidates that are tried, at most so many, each once.

    `score` tells what a candidate came to, nan if it failed, before the next one is named.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=-(-trials // AT_RANDOM))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    ordered = {key: _ordered(values) for key, values in entrant.options.items()}
    space = {key: _distribution(values) for key, values in ordered.items()}
    combinations = itertools.product(*entrant.options.values())
    untried = dict(zip(combinations, entrant.candidates(), strict=True))
    scores: dict[tuple[Value, ...], float] = {}
    again = 0
    while untried and len(scores) < trials:
        trial = study.ask(space)
        values = tuple(ordered[key][at] for key, at in trial.params.items())
        if candidate := untried.pop(values, None):
            again = 0
            yield candidate
            scores[values] = score(candidate)
        elif (again := again + 1) == AGAIN:
            first = zip(ordered, next(iter(untried)), strict=True)
            study.enqueue_trial({key: ordered[key].index(value) for key, value in first})
        failed = math.isnan(scores[values])
        state = optuna.trial.TrialState.FAIL if failed else None
        study.tell(trial, None if failed else scores[values], state=state)


def _ordered(values: Sequence[Value]) -> list[Value]:
    """Return numbers by size, as the sampler takes near ones to be alike; others as they are."""
    return sorted(values) if _are_numbers(values) else list(values)


def _distribution(values: Sequence[Value]) -> Any:
    """Return what the sampler draws from: positions among the values."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if _are_numbers(values):
        return IntDistribution(0, len(values) - 1)
    return CategoricalDistribution(range(len(values)))


def _are_numbers(values: Sequence[Value]) -> bool:
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
