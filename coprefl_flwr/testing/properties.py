"""The properties that a method must keep, each a function of a method in one of its roles."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from coprefl_flwr import plugins, simulation
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.federation import RoundStrategy
from coprefl_flwr.methods import HEAD
from coprefl_flwr.named import Named, parsed
from coprefl_flwr.options import Option, declared
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.stage import read_result
from coprefl_flwr.studies.store import Layout, Store
from coprefl_flwr.testing.small_study import (
    INTERRUPTED_IN,
    RUN_NAME,
    Broken,
    Case,
    Run,
    training_stage,
)

ROUNDING = 1e-5
"""The largest relative difference of two runs that add the same numbers in another order."""

ROUNDING_OF_PROCESSES = 1e-4
"""The same where two processes share the clients and each rounds in its own way."""


class NotApplicable(Exception):  # noqa: N818
    """A check cannot be made."""


def options_are_declared(case: Case) -> str:
    """Check that options are declared, and that each refuses bad values before any work."""
    problems = list(_undeclared(case.method.strategy_class))
    for key, option in case.method.options.items():
        if not option.meaning:
            problems.append(f"{key} has no meaning; say it in option(default, meaning)")
        for value in bad_values(option):
            problems += _accepted(key, value, functools.partial(_build, case, {key: parsed(value)}))
    problems += _accepted(
        "no-such-option", "1", functools.partial(_build, case, {"no-such-option": 1})
    )
    if case.role == case.method.roles[0]:
        problems += _accepted_by_the_class(case)
    if problems:
        raise Broken("; ".join(problems[:3]) + (" ..." if len(problems) > 3 else ""))
    return f"{len(case.method.options)} declared"


def every_client_answers(case: Case) -> str:
    """Check that the method runs, and that no client is left out."""
    run = case.undisturbed
    if run.warnings:
        raise Broken(f"{run.warnings[0]}: all clients must answer")
    if run.uncommitted:
        raise Broken("its clients write a state that no exchange commits: set stateful=True")
    return f"{len(run.metrics)} rounds"


def dtypes_are_kept(case: Case) -> str:
    """Check that clients return arrays in the dtypes that they were sent."""
    for problem in _that_runs(case).dtypes:
        raise Broken(f"{problem}; return array.astype(sent.dtype)")
    return "as they were sent"


def hosting_changes_nothing(case: Case) -> str:
    """Check that arrays and figures are the same whichever node hosts which client."""
    first, largest = _that_runs(case).numbers(), 0.0
    for nodes in (2, 4):
        difference, name = furthest(first, case.run(f"{nodes} nodes", nodes).numbers())
        if difference > ROUNDING:
            raise Broken(
                f"on {nodes} nodes {name} is {difference:.2g} apart from its value on one: a "
                "result may depend on what a client holds, not on which others are on its node, "
                "how many nodes there are, or what ran before in the process"
            )
        largest = max(largest, difference)
    return f"1, 2 and 4 nodes are at most {largest:.2g} apart"


def resuming_changes_nothing(case: Case) -> str:
    """Check that a run that is interrupted and resumed ends with the same bytes."""
    if case.role == HEAD:
        raise NotApplicable("its one round is run anew")
    first = _that_runs(case).numbers()
    case.run("interrupted", interrupted=True)
    again = case.run("interrupted").numbers()
    names = first.keys() | again.keys()
    other = [name for name in sorted(names) if _bytes(first, name) != _bytes(again, name)]
    if other:
        raise Broken(
            f"interrupted in round {INTERRUPTED_IN} and resumed, {other[0]} differs: keep what "
            "rounds carry in ctx.state, and what clients carry by self.state.write"
        )
    return f"interrupted in round {INTERRUPTED_IN}: the same bytes"


PROPERTIES: Mapping[str, Callable[[Case], str]] = {
    "options": options_are_declared,
    "runs": every_client_answers,
    "dtypes": dtypes_are_kept,
    "hosting": hosting_changes_nothing,
    "resume": resuming_changes_nothing,
}
"""Each property by its name: a check returns a remark, or raises Broken or NotApplicable."""


def same_under_flower(case: Case) -> str:
    """Check that `flwr run` with two nodes ends with the numbers of a run in one process."""
    if ("method", case.method.name) in plugins.REGISTERED:
        raise NotApplicable("other processes do not know a registered name")
    first = _that_runs(case).rows
    settings = case.settings("flower")
    problem = simulation.run_study(settings.to_config(), case.folder, nodes=2)
    if problem:
        raise Broken(f"`flwr run`: {problem}")
    stage = build(settings).stages[-1]
    rows = read_result(Store(case.folder / "flower" / RUN_NAME, Layout.PATH).folder(stage))["rows"]
    difference, name = furthest(Run(rows=first).numbers(), Run(rows=rows).numbers())
    if difference > ROUNDING_OF_PROCESSES:
        raise Broken(
            f"`flwr run` and one process are {difference:.2g} apart ({name}): does it keep "
            "something in memory, or draw random numbers that are no function of seed, round and "
            "client?"
        )
    return f"`flwr run` and one process are {difference:.2g} apart"


def _that_runs(case: Case) -> Run:
    try:
        return case.undisturbed
    except Broken:
        raise NotApplicable("it does not run") from None


_WRITTEN = {str: "many", bool: "true", int: "7", float: "0.5"}


def bad_values(option: Option) -> list[str]:
    """Return texts of values that an option must refuse: of wrong types, then beyond its limits."""
    kinds = {*option.kinds} | ({int} if float in option.kinds else set())
    kinds |= {str} if Named in kinds else set()
    bad = [text for kind, text in _WRITTEN.items() if kind not in kinds]
    if option.choices:
        bad.append("no-such-choice")
    if {int, float} & kinds:
        below = [] if option.minimum is None else [option.minimum - 1]
        beyond = [] if option.maximum is None else [option.maximum + 1]
        at = [] if option.above is None else [option.above]
        bad += [str(value) for value in (*below, *beyond, *at)]
        bad += ["nan"] if float in kinds else []
    return bad


def _undeclared(strategy_class: type[RoundStrategy]) -> Iterator[str]:
    shared = {one.name for one in dataclasses.fields(RoundStrategy)}
    for one in dataclasses.fields(strategy_class):
        given = (
            one.name in shared
            or one.metadata.get("option") is False
            or one.name in ("server", "training", "head")
            or not one.init
        )
        if not given and "meaning" not in one.metadata:
            yield f"{one.name} is not declared; write {one.name}: ... = option(default, meaning)"


def _build(case: Case, options: Mapping[str, Any]) -> object:
    return build(case.settings("built", options))


def _accepted(key: str, value: str, make: Callable[[], object]) -> Iterator[str]:
    """Yield a sentence if making something with a bad value gives no line that names the option."""
    try:
        make()
    except SettingsError as error:
        if key not in str(error):
            yield f"{key}={value} is refused by a line that does not name it: {error}"
    except Exception as error:
        yield f"{key}={value} raises no SettingsError but {one_line(error)}"
    else:
        yield f"{key}={value} is accepted"


def _accepted_by_the_class(case: Case) -> Iterator[str]:
    """Yield which bad values the constructor accepts: a `__post_init__` must call super's."""
    strategy = training_stage(build(case.settings("built"))).strategy()
    strategy = getattr(strategy, "inner", strategy)
    for key, option in declared(type(strategy)).items():
        for value in bad_values(option) if key in case.method.options else []:
            changes: dict[str, Any] = {option.name: parsed(value)}
            make = functools.partial(dataclasses.replace, strategy, **changes)
            for problem in _accepted(option.name, value, make):
                yield f"{type(strategy).__name__}: {problem}; call super().__post_init__() first"


def furthest(one: Mapping[str, Any], two: Mapping[str, Any]) -> tuple[float, str]:
    """Return the largest difference and its name; infinity where one of the two has no such name.

    Differences are relative to the largest number of an array, if that is above 1.
    """
    found = 0.0, ""
    for name in sorted(one.keys() | two.keys()):
        both = name in one and name in two
        found = max(found, (_difference(one[name], two[name]) if both else np.inf, name))
    return found


def _difference(one: Any, two: Any) -> float:
    a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
    if a.shape != b.shape:
        return np.inf
    if not a.size or np.array_equal(a, b, equal_nan=True):
        return 0.0
    off, largest = float(np.max(np.abs(a - b))), float(np.max(np.abs(a)))
    return off / max(1.0, largest) if np.isfinite(off) else np.inf


def _bytes(numbers: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    if name not in numbers:
        return ()
    array = np.asarray(numbers[name])
    return array.dtype.str, array.shape, array.tobytes()
