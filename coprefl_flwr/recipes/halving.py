"""Search by halving: every value is tried for a quarter of the rounds, the best quarter goes on.

A trial has a quarter of the rounds of the pre-training and of its tasks, or of a personalised
method. Its tasks are cut as well: trials are compared with each other alone, a start shows its
worth early in a task, and tasks of all rounds would cost more than the pre-training that was cut. A
trial is a run of its own, and what goes on begins anew: results are those of a search that tries
every value to the end, for the values that both run to the end.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from coprefl_flwr.named import Named
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.studies.method import Methods

PART = 4
"""One of so many rounds is run in a trial, and one of so many values goes on."""

One = TypeVar("One")


def quarter(rounds: int) -> int:
    """Return the rounds of a trial, rounded up."""
    return math.ceil(rounds / PART)


def shortened(run: Run) -> Run:
    """Return the trial of a run: rounds that a method has for itself are cut like the others."""

    def cut_own(phase: Named) -> Named:
        own = dict(phase.options).get("rounds")
        return phase.having({"rounds": quarter(own)}) if isinstance(own, int) else phase

    own = Methods(one.changed(cut_own) for one in run.settings.method)
    rounds, of_tasks = run.settings.rounds, run.settings.task_rounds
    cut = replace(run.settings, method=own, rounds=quarter(rounds), task_rounds=quarter(of_tasks))
    return replace(run, settings=cut)


def best(candidates: Sequence[One], scores: Sequence[float]) -> list[One]:
    """Return the best quarter, rounded down and at least one, in their order.

    Of equals the first are taken; one without a score, nan, is never among them.
    """
    there = [at for at, score in enumerate(scores) if not math.isnan(score)]
    first = sorted(there, key=lambda at: -scores[at])[: max(1, len(candidates) // PART)]
    return [candidates[at] for at in sorted(first)]
