"""Values that are not allowed for declared options of methods, local training and noise."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.options import checked_options, declared, same_option
from coprefl_flwr.strategies import (
    MOON,
    CoPreFL,
    FedAdam,
    FedAvg,
    FedMeta,
    FedProx,
    PerFedAvg,
)
from coprefl_flwr.studies.personal_data import PersonalOptions

OPTIONS = {
    "at least 0": [(LocalTraining, "local_steps", -1), (FedProx, "mu", -0.1)],
    "at least 1": [(FedAvg, "participants", 0)],
    "above 0": [(LocalTraining, "clip_norm", 0.0), (MOON, "temperature", 0.0)],
    "between 0 and": [(CoPreFL, "gamma", 1.5), (PersonalOptions, "noise_share", 1.5)],
    "above 0 and at most": [(FedAvg, "fraction_train", 1.5)],
    "a finite number": [(FedProx, "mu", math.inf), (LocalTraining, "learning_rate", math.nan)],
    "a whole number": [(FedAvg, "participants", 2.5)],
    "known are fo, hf": [(PerFedAvg, "variant", "so")],
    "'maml'": [(FedMeta, "variant", "MAML")],
}
"""By allowed values, or nearest name: a class, its option, and a value that is not allowed."""


@pytest.mark.parametrize(
    ("kind", "name", "value", "allowed"),
    [(*row, allowed) for allowed, rows in OPTIONS.items() for row in rows],
)
def test_option_out_of_range_is_refused(kind, name, value, allowed):
    with pytest.raises(SettingsError) as caught:
        kind(**{name: value})
    line = str(caught.value)
    assert line.startswith((f"{name} = {value}: ", f"{name}: unknown value '{value}': ")), line
    assert allowed in line


def test_keyword_arguments_are_checked_by_their_python_names():
    known = declared(LocalTraining)
    checked = checked_options({"max_local_steps": 3, "learning_rate": 1}, known)
    assert checked == {"max_local_steps": 3, "learning_rate": 1.0}
    for arguments, problem in (
        ({"max_steps": 3}, "unknown option 'max_steps': did you mean 'max_local_steps'"),
        ({"max_local_steps": 0}, "max_local_steps = 0: must be at least 1"),
    ):
        with pytest.raises(SettingsError, match=problem):
            checked_options(arguments, known)


def test_numpy_numbers_become_python_numbers():
    """Before, all rounds ran, and then the model's JSON file could not be written."""
    strategy = FedAvg(participants=np.int64(3), seed=np.int64(7), fraction_evaluate=np.float32(0.5))
    values = strategy.participants, strategy.seed, strategy.fraction_evaluate
    assert values == (3, 7, 0.5)
    assert [type(value) for value in values] == [int, int, float]
    with pytest.raises(SettingsError, match="participants = True: must be a whole number"):
        FedAvg(participants=True)


def test_same_option_has_the_declaration_of_another_class():
    @dataclass
    class Again:
        tau: float = same_option(FedAdam, "tau")
        beta: float = same_option(FedAdam, "beta2", default=0.5, maximum=0.9)

    first, again = declared(FedAdam), declared(Again)
    assert again["tau"] == first["tau"]
    assert (again["beta"].meaning, again["beta"].minimum) == (first["beta2"].meaning, 0)
    assert (Again().beta, again["beta"].limits) == (0.5, "between 0 and 0.9")
