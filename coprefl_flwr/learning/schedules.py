"""Schedules of the local learning rate, over the rounds or over the local steps of a round."""

import functools
import math
from dataclasses import dataclass, replace

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.named import Choice
from coprefl_flwr.options import Checked, declared, option

ROUNDS, STEPS = "rounds", "steps"


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(Checked):
    """The options of all schedules. A number of rounds is a number of steps if over steps."""

    over: str = option(ROUNDS, "what the schedule counts", choices=(ROUNDS, STEPS))
    warm_up: int = option(0, "rounds in which the rate rises linearly", minimum=0)
    factor: float | None = option(None, "factor on the rate", above=0, maximum=1)
    every: int | None = option(None, "rounds until the next factor", minimum=1)
    length: int | None = option(None, "rounds until the last value; not set: all", minimum=1)
    last: float = option(0.0, "last value, as a fraction of the rate", minimum=0, maximum=1)


OPTIONS = {
    "constant": ("over", "warm-up"),
    "exponential": ("over", "warm-up", "factor"),
    "step": ("over", "warm-up", "factor", "every"),
    "cosine": ("over", "warm-up", "length", "last"),
    "linear": ("over", "warm-up", "length", "last"),
}
"""The keys of the options of each schedule."""


@dataclass(frozen=True)
class RateSchedule(Choice):
    """A schedule of the learning rate by its name, with options (see `ScheduleOptions`).

    It counts t = 0, 1, ... rounds, or local steps in each round, and the rate is `learning-rate`
    times a factor. In a warm-up of W rounds the factor is (t + 1) / W. After it, with s = t - W and
    a length of L rounds, the warm-up included, the factor is 1 (`constant`), factor^s
    (`exponential`), factor^floor(s / every) (`step`), or it goes from 1 to `last` by L, along half
    a cosine (`cosine`) or a line (`linear`). Rounds are counted over all phases of a method.

    A SettingsError for an unknown name or option, a wrong value, or a missing `factor` or `every`.
    """

    def __post_init__(self) -> None:
        if self.name not in OPTIONS:
            raise SettingsError(unknown("schedule", self.name, OPTIONS), "schedule")
        for key, _ in self.options:
            if key not in OPTIONS[self.name]:
                problem = unknown("option", key, OPTIONS[self.name])
                raise SettingsError(f"schedule = {self.name}: {problem}", "schedule")
        for key in {"factor", "every"} & {*OPTIONS[self.name]} - {*dict(self.options)}:
            example = f"write schedule = {self.name}:{key}=VALUE"
            raise SettingsError(f"schedule = {self.name}: needs {key}; {example}", "schedule")
        _ = self.values

    @functools.cached_property
    def values(self) -> ScheduleOptions:
        """The values of all options."""
        known = declared(ScheduleOptions)
        try:
            chosen = {known[key].name: known[key].read(value) for key, value in self.options}
        except SettingsError as error:
            raise SettingsError(f"schedule = {self.name}: {error}", "schedule") from error
        return ScheduleOptions(**chosen)

    @property
    def over_steps(self) -> bool:
        """Whether the schedule counts the local steps of each round, instead of rounds."""
        return self.values.over == STEPS

    def lasting(self, rounds: int) -> "RateSchedule":
        """Return the schedule over rounds with its length, which is `rounds` if it is not set."""
        open_ended = "length" in OPTIONS[self.name] and self.values.length is None
        if self.over_steps or not open_ended:
            return self
        return replace(self, options=(*self.options, ("length", rounds)))

    def factor(self, number: int, length: int | None = None) -> float:
        """Return the factor in a round, or in a local step, counted from 0.

        `length` is the length of a schedule that has none. Raises a SettingsError if it needs one.
        """
        own = self.values
        since = number - own.warm_up
        if since < 0:
            return (number + 1) / own.warm_up
        if self.name == "constant":
            return 1.0
        if self.name in ("exponential", "step"):
            assert own.factor is not None
            return own.factor ** (since // (own.every or 1))
        whole = own.length or length
        if whole is None:
            example = f"write schedule = {self.name}:length=ROUNDS"
            raise SettingsError(f"schedule = {self.name}: needs length; {example}", "schedule")
        done = min(since / max(whole - own.warm_up, 1), 1.0)
        left = 1 - done if self.name == "linear" else (1 + math.cos(math.pi * done)) / 2
        return own.last + (1 - own.last) * left


CONSTANT = RateSchedule("constant")
