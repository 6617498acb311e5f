"""Check that a method has the properties that studies rely on.

Call `check_method` in a test, with a strategy class or the name of a method,

    from coprefl_flwr.testing import check_method

    def test_my_method():
        check_method(MyMethod)

or run `coprefl check-method file.py:MyMethod` in a shell. For each of its roles and each property,
the method trains for about a second on 240 images that are part of this package. The properties are

    runs       every client replies, and the new global model has the names and shapes of the old
    hosting    the result is the same on 1, 2 and 4 nodes
    resume     a run that is interrupted and resumed ends with the same numbers
    flower     `flwr run` ends with the same result; only on request, as it takes half a minute

Clients get copies of arrays and rounds get read-only arrays, so neither can change the originals.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coprefl_flwr import plugins
from coprefl_flwr.errors import say
from coprefl_flwr.federation import RoundStrategy
from coprefl_flwr.methods import HEAD
from coprefl_flwr.studies.method import Method
from coprefl_flwr.testing.properties import PROPERTIES, same_under_flower
from coprefl_flwr.testing.small_study import Broken, Case, quiet_log


@dataclass(frozen=True)
class Finding:
    """The result of one check: the property, the role of the method, and the problem, if any.

    `problem` is "" if the method has the property. `remark` describes the result.
    """

    property: str
    role: str
    problem: str = ""
    remark: str = ""

    def __str__(self) -> str:
        status = "FAILS" if self.problem else "ok"
        return f"{self.property:<9}{self.role:<14}{status:<9}{self.problem or self.remark}".rstrip()


def check_method(method: str | type[RoundStrategy], *, flower: bool = False) -> None:
    """Raise an AssertionError that lists the properties that a method does not have.

    `method` is a strategy class, the name of a built-in method, or the place of a strategy class,
    such as "file.py:Mine". With `flower`, the method is also run by `flwr run`, if it is given by
    its name or place. Raises a SettingsError if there is no such method.
    """
    if not isinstance(method, str):
        plugins.register("method", method.__name__, method)
        method = method.__name__
    wrong = [finding for finding in findings(method, flower=flower) if finding.problem]
    assert not wrong, "\n".join([f"{method}:", *map(str, wrong)])


def check_methods(places: Sequence[str], flower: bool = True) -> int:
    """Print the findings about the methods at these places; return 1 if a check fails, or else 0.

    Raises a SettingsError if there is no method at one of the places.
    """
    failed = False
    for place in places:
        say(place)
        for finding in findings(place, flower=flower):
            say(f"  {finding}")
            failed |= bool(finding.problem)
    return int(failed)


def findings(place: str, *, flower: bool = False) -> Iterator[Finding]:
    """Check the method at a place, and yield the result of each check as soon as it is known.

    The checks of a role end if the method does not run in this role.
    """
    place = plugins.resolved(place, Path.cwd())  # Other processes may have another current folder.
    method = Method.parse(place)
    # The log is off, as findings already describe all problems.
    with tempfile.TemporaryDirectory() as folder, quiet_log():
        for role in method.roles:
            case, checks = Case(method, role, Path(folder) / role), dict(PROPERTIES)
            if role == HEAD:
                del checks["resume"]  # A head has one round, which is run again.
            # Other processes do not know a registered class.
            registered = ("method", method.name) in plugins.REGISTERED
            if flower and role == method.roles[0] and not registered:
                checks["flower"] = same_under_flower
            for name, check in checks.items():
                try:
                    yield Finding(name, role, remark=check(case))
                except Broken as problem:
                    yield Finding(name, role, problem=str(problem))
                    if name == "runs":
                        break
