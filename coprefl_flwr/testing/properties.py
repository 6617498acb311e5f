"""The checks of properties: each is a function of a Case, which is a method in one of its roles."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coprefl_flwr import simulation
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.store import Layout, Store, read_result
from coprefl_flwr.testing.small_study import INTERRUPTED_IN, RUN_NAME, Broken, Case, numbers_of

ROUNDING = 1e-5
"""The largest allowed relative difference of two runs with sums in different orders."""

ROUNDING_OF_PROCESSES = 1e-4
"""The largest allowed relative difference of two runs of which one has two processes."""


def every_client_answers(case: Case) -> str:
    """Check that the method runs without an error, and that every client replies."""
    run = case.undisturbed
    if run.warnings:
        raise Broken(f"{run.warnings[0]}: all clients must reply")
    if run.uncommitted:
        raise Broken("its clients write a state that no exchange commits: set stateful=True")
    return "all clients in every round"


def hosting_changes_nothing(case: Case) -> str:
    """Check that arrays and metrics are the same on 1, 2 and 4 nodes, except for rounding."""
    first, largest = case.undisturbed.numbers, 0.0
    for nodes in (2, 4):
        difference, name = furthest(first, case.run(f"{nodes} nodes", nodes).numbers)
        if difference > ROUNDING:
            differs = f"on {nodes} nodes {name} differs by {difference:.2g} from its value on one"
            raise Broken(f"{differs}: it must not depend on a node's other clients or earlier work")
        largest = max(largest, difference)
    return f"results on 1, 2 and 4 nodes differ by at most {largest:.2g}"


def resuming_changes_nothing(case: Case) -> str:
    """Check that a run that is interrupted and resumed ends with the same numbers."""
    case.run("interrupted", interrupted=True)
    difference, name = furthest(case.undisturbed.numbers, case.run("interrupted").numbers)
    if difference:
        differs = f"interrupted in round {INTERRUPTED_IN} and resumed, {name} differs"
        raise Broken(f"{differs}: store values in ctx.state, and by a client's self.state.write")
    return f"interrupted in round {INTERRUPTED_IN}: the same numbers"


PROPERTIES: Mapping[str, Callable[[Case], str]] = {
    "runs": every_client_answers,
    "hosting": hosting_changes_nothing,
    "resume": resuming_changes_nothing,
}
"""{property: its check}. A check returns a remark, or raises Broken."""


def same_under_flower(case: Case) -> str:
    """Check that `flwr run` with two nodes has the same results as a run in one process."""
    first = case.undisturbed.rows
    settings = case.settings("flower")
    problem = simulation.simulate_study(settings.to_config(), case.folder, nodes=2)
    if problem:
        raise Broken(f"`flwr run`: {problem}")
    stage = build(settings).stages[-1]
    rows = read_result(Store(case.folder / "flower" / RUN_NAME, Layout.PATH).folder(stage))["rows"]
    difference, name = furthest(numbers_of(first), numbers_of(rows))
    if difference > ROUNDING_OF_PROCESSES:
        differ = f"`flwr run` and one process differ by {difference:.2g} ({name})"
        raise Broken(f"{differ}: are values kept in memory, or is something drawn without a seed?")
    return f"`flwr run` and one process differ by {difference:.2g}"


def furthest(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[float, str]:
    """Return the largest difference between arrays of the same name, and this name.

    The difference is infinite if a name is missing in one of the two. A difference is relative to
    the largest absolute value in the first array, if this value is above 1.
    """
    if missing := first.keys() ^ second.keys():
        return np.inf, max(missing)
    return max(((_difference(first[name], second[name]), name) for name in first), default=(0, ""))


def _difference(first: Any, second: Any) -> float:
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape:
        return np.inf
    if not a.size or np.array_equal(a, b, equal_nan=True):
        return 0.0
    off, largest = float(np.max(np.abs(a - b))), float(np.max(np.abs(a)))
    return off / max(1.0, largest) if np.isfinite(off) else np.inf
