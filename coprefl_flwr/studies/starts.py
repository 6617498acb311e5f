"""What the settings `method` and `task-method` name: methods with the settings of each."""

import difflib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.strategies import RoundStrategy, Schedule
from coprefl_flwr.studies.methods import LOCAL_SETTINGS, METHODS, MakeServer, Method
from coprefl_flwr.studies.populations import PRETRAINING
from coprefl_flwr.studies.settings import Settings, Value, field_of, unknown

RANDOM = "random"
STEPS_AND_EPOCHS = ("local-steps", "local-epochs")


@dataclass(frozen=True)
class Phase:
    """One method with its settings: the study's, the method's defaults, and its own options."""

    name: str
    settings: Settings
    method: Method

    def own_settings(self) -> dict[str, Value]:
        """Return the values of all settings that the method has."""
        config = self.settings.to_config()
        return {key: config[key] for key in self.method.settings}


@dataclass(frozen=True)
class Start:
    """A starting model of the comparison.

    Parameters
    ----------
    name : str
        As the user wrote it, e.g. "coprefl:gamma=0.25" or "cyclic:rounds=20+fedavg".
    phases : tuple[Phase, ...]
        The methods that make it, one after the other; none for "random".
    """

    name: str
    phases: tuple[Phase, ...] = ()

    @property
    def folder(self) -> str:
        """The name as part of a path."""
        return folder_of(self.name)

    @property
    def rounds(self) -> int:
        """Rounds of all phases."""
        return sum(phase.settings.rounds for phase in self.phases)

    def phase(self, server_round: int) -> Phase:
        """Return the phase that a round belongs to."""
        before = 0
        for phase in self.phases[:-1]:
            before += phase.settings.rounds
            if server_round <= before:
                return phase
        return self.phases[-1]

    def strategy(self, server: MakeServer) -> RoundStrategy:
        """Return the strategy that makes the model."""
        strategies = [
            (
                phase.method.strategy(
                    phase.settings,
                    server,
                    participants=phase.settings.participants,
                    **run_options(phase.settings, PRETRAINING),
                ),
                phase.settings.rounds,
            )
            for phase in self.phases
        ]
        return strategies[0][0] if len(strategies) == 1 else Schedule(strategies)


def run_options(settings: Settings, population: str) -> dict[str, Any]:
    """Return the options that all strategies take."""
    return {
        "seed": settings.seed,
        "run_name": settings.run_name or "run",
        "population": population,
        "min_nodes": settings.min_nodes,
        "min_replies": settings.min_replies,
        "max_failed_rounds": settings.max_failed_rounds,
    }


def task_strategy(settings: Settings, population: str) -> RoundStrategy:
    """Return the strategy of a downstream task, in which all clients take part every round."""

    def no_server(_: str) -> Any:
        raise AssertionError("tasks have no data at the server")

    # The comparison is paired: all clients answer, or the round is repeated.
    run = run_options(settings, population) | {"min_replies": settings.task_clients}
    every = settings.task_evaluate_every or settings.task_rounds
    phase = task_phase(settings)
    return phase.method.strategy(phase.settings, no_server, evaluate_every=every, **run)


def starts(settings: Settings) -> list[Start]:
    """Return the starting models of the setting `method`, in its order.

    Raises
    ------
    SettingsError
        For an unknown method or setting, a start named twice, or a method's setting that none of
        the methods has.
    """
    chosen = [start(settings, name) for name in named(settings, [RANDOM, *METHODS])]
    phases = [phase for one in chosen for phase in one.phases]
    check_all_used(settings, [*phases, task_phase(settings)])
    return chosen


def named(settings: Settings, allowed: Sequence[str]) -> list[str]:
    """Return the entries of the setting `method`: at least one, none twice, a folder for each."""
    names = settings.method.replace(";", " ").split()
    if not names:
        raise SettingsError(f"method is empty: name some of {', '.join(allowed)}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingsError(f"method names '{twice}' twice")
    folders = [folder_of(name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        if folders.count(folder) > 1:
            raise SettingsError(f"method: '{name}' and another would share {folder}/")
    return names


def folder_of(name: str) -> str:
    """Return an entry of `method` as part of a path."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name)


@functools.lru_cache(maxsize=64)
def start(settings: Settings, name: str) -> Start:
    """Read one entry of `method`: METHOD, METHOD:setting=value,..., or several joined by "+"."""
    if name == RANDOM:
        return Start(name)
    phases = [phase("method", settings, text, METHODS) for text in name.split("+")]
    return Start(name, tuple(phases))


@functools.lru_cache(maxsize=8)
def task_phase(settings: Settings) -> Phase:
    """Read the setting `task-method`."""
    allowed = {name: method for name, method in METHODS.items() if method.downstream}
    return phase("task-method", settings, settings.task_method.strip(), allowed)


def phase(what: str, settings: Settings, text: str, methods: Mapping[str, Method]) -> Phase:
    """Read METHOD or METHOD:setting=value,setting=value, of these methods."""
    name, _, options = text.partition(":")
    if name == RANDOM:
        raise SettingsError(f"{what}: '{text}': random is not trained and has no settings")
    if name not in methods:
        known = [*([RANDOM] if methods is METHODS else []), *methods]
        raise SettingsError(f"{what}: {unknown('method', name, known)}")
    method = methods[name]
    # In tasks, local training is what the settings task-... say, for every method alike.
    has = method.settings if what == "method" else list(method.own)
    given = _options(f"{what}, {text}: ", name, options, has)
    config: dict[str, object] = dict(settings.to_config())
    # A method's own settings hold for the methods that have them.
    config |= {key: "" for key in own_settings() if key not in method.own}
    for key, other in (STEPS_AND_EPOCHS, STEPS_AND_EPOCHS[::-1]):
        # Which of the two is its own takes the place of the other for all.
        if given.get(key, "") != "" and other not in given:
            config[other] = ""
    config |= given
    for key, default in method.own.items():
        of_epochs = key in ("local-epochs", "max-local-steps")
        if config[key] == "" and not (of_epochs and config["local-steps"] != ""):
            config[key] = default
    if method.variants and config["variant"] not in method.variants:
        wrong = unknown("variant", str(config["variant"]), list(method.variants))
        raise SettingsError(f"{what}, {text}: {wrong}")
    if name.startswith("scaffold") and config["variant"] == "II" and config["clip-norm"] != "":
        raise SettingsError(
            f"{what}, {text}: clip-norm = {config['clip-norm']}: cannot be set with variant II"
        )
    try:
        return Phase(name, Settings.from_config(config), method)
    except SettingsError as error:
        raise SettingsError(f"{what}, {text}: {error}") from error


def _options(where: str, name: str, text: str, has: Sequence[str]) -> dict[str, Value]:
    """Read setting=value,setting=value of the method `name`, which has the settings `has`."""
    given = {}
    for pair in text.split(",") if text else []:
        key, equals, value = pair.partition("=")
        if key not in has:
            near = difflib.get_close_matches(key, has, n=1)
            hint = f", did you mean '{near[0]}'?" if near else ""
            own = ", ".join(has) or "no settings"
            raise SettingsError(f"{where}{name} has no '{key}' here{hint}; it has {own}")
        if not equals:
            raise SettingsError(f"{where}'{key}' has no value; write {key}=VALUE")
        given[key] = _value(key, value)
    return given


def settings_of(names: str, methods: Mapping[str, Method] = METHODS) -> set[str]:
    """Return the settings that any phase of a start has: "cyclic:rounds=5+fedavg"."""
    phases = [phase.partition(":")[0] for phase in names.split("+")]
    return {key for name in phases if name in methods for key in methods[name].settings}


@functools.cache
def own_settings() -> tuple[str, ...]:
    """Return the settings that are some methods' own."""
    keys = dict.fromkeys(key for method in METHODS.values() for key in method.own)
    return tuple(key for key in keys if key not in LOCAL_SETTINGS)


def check_all_used(settings: Settings, phases: Sequence[Phase]) -> None:
    """Raise a SettingsError for a method's setting that was set and that no method here has."""
    for key in own_settings():
        value = getattr(settings, field_of(key))
        if value in (None, "") or any(key in phase.method.own for phase in phases):
            continue
        has = {phase.name: ", ".join(phase.method.own) or "none of its own" for phase in phases}
        own = [f"{name} has {settings}" for name, settings in has.items()]
        raise SettingsError(f"{key} = {value}: no method here has this setting; {'; '.join(own)}")


def _value(key: str, text: str) -> Value:
    """Read a setting's value as TOML would: true, a whole number, a number, or a text."""
    if text in ("true", "false"):
        return text == "true"
    kinds: tuple[Callable[[str], Value], ...] = () if key == "variant" else (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text
