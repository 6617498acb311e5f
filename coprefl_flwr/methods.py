"""The strategy classes of methods, by the names of the methods.

A built-in method consists of a file with its strategy, possibly a file with its client, and a line
in `coprefl_flwr.strategies`. This module reads the built-in methods from that module. A user's
method is a strategy class with a place: `module:NAME`, `path/file.py:NAME`, or a registered name.
Flower's strategies have places too: `flwr.serverapp.strategy:NAME`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any

from coprefl_flwr import plugins, strategies
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.federation.flower_strategies import as_method
from coprefl_flwr.strategies import RoundStrategy

RANDOM = "random"
"""The value of the setting `method` for an untrained starting model."""

PRETRAINING, TASK, PERSONALISED, HEAD = "pretraining", "task", "personalised", "head"
ROLES = (PRETRAINING, TASK, PERSONALISED, HEAD)
"""The roles of methods. A role is a kind of stage of a study that a method can run."""

CLASSES: Mapping[str, type[RoundStrategy]] = {
    kind.name: kind
    for kind in vars(strategies).values()
    if isinstance(kind, type) and issubclass(kind, RoundStrategy) and kind.name
}
"""{built-in method: its strategy class}, without refined methods."""

_REFINED_NAMES = {"coprefl": "coprefl-sgd", "coprefl-std": "coprefl-std-sgd"}

REFINED: Mapping[str, str] = {
    _REFINED_NAMES.get(name, f"{name}-refined"): name
    for name, kind in CLASSES.items()
    if PRETRAINING in kind.roles and not kind.server_data
}
"""{refined method: the method that it refines}. SGD on the server's data follows every round of a
refined method, as in scenario II."""

VERSIONS = {"fedpcl": 2}
"""{method: version}; all other methods have version 1. Results are stored under the version, so it
is raised when the results of a method change. In version 2 of fedpcl, the head has the BatchNorm of
Table 7 by default."""


def is_built_in(name: str) -> bool:
    """Return whether a name is that of a built-in method."""
    return name in CLASSES or name in REFINED


def find_class(name: str, role: str = "", known: Sequence[str] = ()) -> type[RoundStrategy]:
    """Return the strategy class of a built-in method, or the user's class at a place.

    For a refined method it is the class that is refined.

    Raises a SettingsError if there is no such method, if the method does not have the role `role`,
    or if the object at the place is not a strategy class that studies can use. The error suggests
    names out of `known`, by default out of all built-in methods.
    """
    found = CLASSES.get(REFINED.get(name, name))
    names = known or [*CLASSES, *REFINED]
    if not found and not plugins.is_place("method", name):
        raise SettingsError(unknown("method", name, [*names, *plugins.brought("method")]))
    found = found or _checked(name, as_method(plugins.find("method", name)))
    if role:
        check_role(name, roles_of(name, found), role, names)
    return found


def check_role(name: str, roles: Sequence[str], role: str, known: Iterable[str]) -> None:
    """Raise a SettingsError, which lists `known`, if a method's roles do not contain `role`."""
    if role not in roles:
        problem = f"'{name}' is a {' and '.join(roles)} method"
        raise SettingsError(f"{problem}; a {role} method is needed, such as {', '.join(known)}")


def roles_of(name: str, strategy_class: type[RoundStrategy]) -> tuple[str, ...]:
    """Return the roles of a method, out of ROLES. A refined method only pre-trains."""
    return (PRETRAINING,) if name in REFINED else strategy_class.roles


def _checked(place: str, strategy_class: Any) -> type[RoundStrategy]:
    """Return the class of a place, or raise a SettingsError if studies cannot use the class."""
    if not (isinstance(strategy_class, type) and issubclass(strategy_class, RoundStrategy)):
        raise SettingsError(f"{place}: must be a subclass of coprefl_flwr.strategies.RoundStrategy")
    if any(isinstance(value, Field) for value in vars(strategy_class).values()):
        raise SettingsError(f"{place}: has options, so needs @dataclass(kw_only=True, eq=False)")
    return strategy_class
