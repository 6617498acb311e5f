"""What the functions of the Python interface are given: what cannot be is told in one line."""

from typing import Any

from flwr.serverapp.strategy import Strategy
from torch import nn
from torch.nn.parameter import UninitializedParameter

from coprefl_flwr.errors import SettingsError, one_line, short
from coprefl_flwr.federation import of_flower
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.populations import Clients, Tasks


def named(given: Any) -> str:
    """Return what kind of thing was given, in words."""
    kind = type(given).__name__
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, nn.Module):
        return f"a network ({kind})"
    if isinstance(given, Clients | Tasks):
        return repr(given)
    if isinstance(given, RoundStrategy):
        return f"a method ({kind})"
    if isinstance(given, str):
        return short(repr(given))
    return f"a function ({given.__name__})" if hasattr(given, "__code__") else f"of type {kind}"


def checked_method(given: Any, usage: str) -> RoundStrategy | str:
    """Return a method: a text, a strategy, or one of Flower's own as a strategy of this package.

    Raises a SettingsError for anything else; `usage` shows the order of arguments.
    """
    if isinstance(given, RoundStrategy | str):
        return given
    if isinstance(given, Strategy):
        return of_flower(given)
    kind = given if isinstance(given, type) else type(given)
    if issubclass(kind, Strategy):
        example = (
            "cp.CoPreFL(gamma=0.5)" if issubclass(kind, RoundStrategy) else f"{kind.__name__}()"
        )
        raise SettingsError(f"method is the class {kind.__name__}: make one of it, as in {example}")
    if any(one.__module__.startswith("flwr.server.strategy") for one in kind.__mro__):
        problem = f"method is {kind.__name__}, a strategy of Flower's older kind"
        raise SettingsError(f"{problem}; take one of flwr.serverapp.strategy")
    wanted = "a method such as cp.CoPreFL(gamma=0.5), or a text such as 'fedavg'"
    raise SettingsError(f"method is {named(given)}; needed is {wanted}: {usage}")


def check_module(given: Any, what: str, more: str = "") -> None:
    """Raise a SettingsError unless what is called `what` is a network, and no class of such.

    `more` ends the line.
    """
    if isinstance(given, nn.Module):
        if any(isinstance(one, UninitializedParameter) for one in given.parameters()):
            problem = f"{what} has layers that do not know their size yet"
            raise SettingsError(f"{problem}: call it once with a batch of samples")
        return
    if isinstance(given, type) and issubclass(given, nn.Module):
        name = given.__name__
        raise SettingsError(f"{what} is the class {name}: make a network of it, as in {name}()")
    raise SettingsError(f"{what} is {named(given)}; needed is a network, an nn.Module{more}")


def check_tasks(given: Any, usage: str) -> None:
    """Raise a SettingsError unless tasks are those that `tasks` makes."""
    if not isinstance(given, Tasks):
        needed = "needed are those that cp.tasks(dataset) makes"
        raise SettingsError(f"tasks are {named(given)}; {needed}: {usage}")


def made_network(network: Any, classes: int) -> nn.Module:
    """Return the network that the caller's function makes for so many classes."""
    if isinstance(network, nn.Module) or not callable(network):
        needed = "needed is a function of the number of classes, which makes a network"
        raise SettingsError(f"network is {named(network)}; {needed}")
    try:
        made = network(classes)
    except Exception as error:  # Whatever the caller's own code raises.
        problem = f"network({classes}) failed: {one_line(error)}"
        raise SettingsError(f"{problem}; it is called with the number of classes") from error
    check_module(made, f"what network({classes}) returns")
    assert isinstance(made, nn.Module)
    return made
