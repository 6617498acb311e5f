"""What fits with what: `python -m tests.records.fits` runs every cell and writes the page's table.

A cell is a method with a kind of targets, a network that trains all or a part of its weights, and
an optimiser. Its outcome is "by hand" (the numbers are those of `tests.common.rounds_by_hand`),
"runs", or "no" with the sentence that refuses it.
"""

import itertools
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch.utils.data import ConcatDataset

import coprefl_flwr as cp
from coprefl_flwr.federation import RoundContext
from coprefl_flwr.methods import HEAD, PRETRAINING
from coprefl_flwr.studies.known_methods import METHODS as ALL
from coprefl_flwr.studies.known_methods import with_role
from tests.common.rounds_by_hand import (
    FULL,
    LOSSES,
    OPTIONS,
    ROUNDS,
    SIZES,
    Problem,
    assert_weights,
    by_hand,
)
from tests.common.simulation import ROOT

PAGE = ROOT / "docs" / "reference" / "what-fits.md"
HEADS = tuple(with_role(HEAD))
METHODS = (
    *(name for name in with_role(PRETRAINING) if not name.endswith(("-refined", "-sgd"))),
    *("fedavg-refined", "coprefl-sgd"),
    *HEADS,
)
CELLS = list(itertools.product(METHODS, LOSSES, (False, True), ("sgd", "adamw")))
BY_HAND, RUNS, NO = "by hand", "runs", "no"


@contextmanager
def recorded_chains():
    """A list that will hold the clients of each chain, in their order."""
    chains, chain = [], RoundContext.chain

    def watched(self, arrays, clients):
        chains.append(clients)
        return chain(self, arrays, clients)

    with mock.patch.object(RoundContext, "chain", watched):
        yield chains


def pretrained(method, problem):
    """Return the network of a problem after two rounds of a method."""
    clients, text = problem.clients(), f"{method}:{OPTIONS.get(method, '')}".rstrip(":")
    if ALL[method].uses_server_data:
        whole = ConcatDataset(clients)
        clients = cp.partition(whole, len(SIZES), "iid", server_reserve=0.2, min_samples=5)
    how = {**FULL, "optimiser": problem.optimiser, "loss": problem.loss}
    return cp.pretrain(text, problem.network(), clients, 2, quiet=True, **how)


def computed_head(head, problem):
    """Compute the last layer of a task of two clients."""
    groups = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES)).numpy() // 3
    samples = {"train_fraction": 0.5, "min_samples": 4, "groups": groups}
    number = 1 if problem.kind == "classes" else None
    tasks = cp.tasks(ConcatDataset(problem.clients()), number, 4, 2, "iid", **samples)
    how = {**FULL, "optimiser": problem.optimiser, "loss": problem.loss}
    starts = {"random": problem.network()}
    cp.evaluate_starts(starts, tasks, 1, head=head, quiet=True, **how)


def outcome(method, problem):
    """Run a cell; return its outcome and the sentence that refuses it, or "".

    Raises an AssertionError if the numbers are not those by hand, or if frozen weights or
    statistics changed.
    """
    try:
        if method in HEADS:
            computed_head(method, problem)
            return RUNS, ""
        with recorded_chains() as chains:
            start = pretrained(method, problem)
    except cp.SettingsError as error:
        return NO, str(error)
    if problem.frozen:
        before = problem.network().body.state_dict()
        assert all(torch.equal(start.body.state_dict()[name], before[name]) for name in before)
    if method not in ROUNDS:
        return RUNS, ""
    assert_weights(start, by_hand(method, problem, 2, chains))
    return BY_HAND, ""


def table(outcomes):
    """Return the table of {cell: (outcome, sentence)} in Markdown, with its footnotes."""
    columns = list(itertools.product(LOSSES, (False, True)))
    titles = [f"{kind}, {'frozen body' if frozen else 'whole'}" for kind, frozen in columns]
    lines = ["| method | " + " | ".join(titles) + " |", "| --- |" + " --- |" * len(titles)]
    reasons = []
    for method in METHODS:
        shown = []
        for kind, frozen in columns:
            both = []
            for optimiser in ("sgd", "adamw"):
                found, reason = outcomes[method, kind, frozen, optimiser]
                if reason and reason not in reasons:
                    reasons.append(reason)
                both.append(f"{found} {reasons.index(reason) + 1}" if reason else found)
            shown.append(both[0] if both[0] == both[1] else " / ".join(both))
        lines.append(f"| `{method}` | " + " | ".join(shown) + " |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes])


def all_outcomes(say=lambda line: None):
    """Run all cells; `say` is called with a line for each."""
    found = {}
    for cell in CELLS:
        method, *problem = cell
        found[cell] = outcome(method, Problem(*problem))
        say(f"{', '.join(map(str, cell))}: {found[cell][0]}")
    return found


def written(page, text):
    """Return the page's text with another table."""
    return re.sub(r"(?s)(<!-- begin -->\n).*(<!-- end -->)", rf"\1\n{text}\n\n\2", page)


if __name__ == "__main__":
    page = Path(PAGE)
    result = table(all_outcomes(lambda line: print(line, file=sys.stderr)))
    page.write_text(written(page.read_text(), result.replace("\\", "\\\\")))
