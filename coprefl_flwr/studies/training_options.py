"""The rounds, participants and local training of a method, and the wrapper of its clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coprefl_flwr import plugins, seeds
from coprefl_flwr.errors import SettingsError, about_settings
from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.named import parse
from coprefl_flwr.options import Value, declared, option, same_option
from coprefl_flwr.strategies import RoundStrategy


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(LocalTraining):
    """Rounds, participants and local training of a pre-training or of a personalised study."""

    rounds: int = option(
        50, "pre-training rounds T; for a method `A+B`, of each phase", unit="rounds", minimum=1
    )
    participants: int = option(20, "clients per pre-training round, |m|", minimum=1)
    average_window: int | None = same_option(RoundStrategy, "average_window")
    average_decay: float | None = same_option(RoundStrategy, "average_decay")
    client_wrapper: str | None = option(
        None,
        "module:NAME or file.py:NAME: a function or class that takes a client of the pre-training "
        "and returns its replacement, such as an attacker",
    )
    client_wrapper_share: float = option(
        0.0, "fraction of the clients that are wrapped, drawn by the seed", minimum=0, maximum=1
    )
    # The minimum is 1, because a study whose clients do not train would be meaningless.
    local_steps: int | None = same_option(LocalTraining, "local_steps", minimum=1)
    local_epochs: int | None = same_option(LocalTraining, "local_epochs", minimum=1)

    def __post_init__(self) -> None:
        """Check the options, and load the client wrapper."""
        super().__post_init__()
        place, share = self.client_wrapper, self.client_wrapper_share
        if (place is None) != (not share):
            both = f"client-wrapper = {place or 'not set'} and client-wrapper-share = {share}"
            raise SettingsError(f"{both}: set both or neither", *WRAPPER_KEYS)
        if place is not None:
            with about_settings(WRAPPER):
                plugins.check(WRAPPER, place)

    def of_method(
        self, chosen: Mapping[str, Value], defaults: Mapping[str, Value]
    ) -> "TrainingOptions":
        """Return the options of one method, if these are the options of the study.

        `chosen` are the values that are set for the method, by key. `defaults` are the values of
        the method for options that neither the method nor the study sets.
        """
        known = declared(TrainingOptions)
        changes = {known[key].name: known[key].read(value) for key, value in chosen.items()}
        # If the method sets local steps, the study's local epochs do not apply, and vice versa.
        for name, other in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
            if changes.get(name) is not None and other not in changes:
                changes[other] = None
        values = vars(self) | changes
        for key, default in defaults.items():
            by_steps = key in OF_EPOCHS and values["local_steps"] is not None
            if values[known[key].name] is None and not by_steps:
                values[known[key].name] = default
        return TrainingOptions(**values)

    def wrapped_clients(self, seed: int, clients: int) -> frozenset[int]:
        """Return the ids of the pre-training's clients that are wrapped.

        round(share x clients) clients are drawn. The ids for a smaller share are a subset of the
        ids for a larger share.
        """
        order = seeds.generator(seed, "attackers").permutation(clients)
        return frozenset(map(int, order[: round(self.client_wrapper_share * clients)]))

    def wrapped(self, client: NumPyClient) -> NumPyClient:
        """Return the client that the client wrapper returns for a client.

        Raises a SettingsError if the wrapper does not return a NumPyClient.
        """
        place = str(self.client_wrapper)
        replacement = plugins.call(place, plugins.find(WRAPPER, place), (client,))
        if not isinstance(replacement, NumPyClient):
            problem = f"{place} returned a {type(replacement).__name__}"
            raise SettingsError(f"{problem}; a client wrapper must return a NumPyClient", WRAPPER)
        return replacement


def as_stored(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a training by key, as they are in the keys of stored results.

    An exponential schedule without other options has the key of older results,
    `learning-rate-decay`, which is 1.0 for other schedules.
    """
    if "clip-norm" not in values:  # A method whose clients do not train.
        return values
    name, options = parse(values.get("schedule", "constant"))
    decays = name == "exponential" and options.keys() == {"factor"}
    kept = {key: value for key, value in values.items() if key != "schedule" or not decays}
    return kept | {"learning-rate-decay": options["factor"] if decays else 1.0}


TRAINING_KEYS = tuple(key for key in declared(TrainingOptions) if key != "loss")
"""Keys of the training settings that a method may also set, as in `coprefl:rounds=20`. All methods
of a study have one loss."""

WRAPPER = "client-wrapper"
WRAPPER_KEYS = (WRAPPER, f"{WRAPPER}-share")

OF_EPOCHS = ("local-epochs", "max-local-steps")
"""Settings of training by epochs. Their defaults do not apply if local steps are set."""
