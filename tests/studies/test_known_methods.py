"""The built-in methods, and the check of a method that a user chose for a role."""

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, TASK
from coprefl_flwr.studies.known_methods import in_role
from coprefl_flwr.studies.method import FRESH, START, Method
from coprefl_flwr.studies.training_options import TrainingOptions


def chosen(text, role, **training):
    return in_role("method", Method.parse(text), role, TrainingOptions(**training))


def test_method_in_its_role_has_the_training_of_each_phase():
    method = chosen("cyclic:rounds=3+fedavg", PRETRAINING, rounds=9, local_steps=2)
    assert str(method) == "cyclic:rounds=3+fedavg"
    assert [phase.role for phase in method.phases] == [PRETRAINING] * 2
    assert [phase.training.rounds for phase in method.trained] == [3, 9]


def test_what_is_not_trained_stays_without_a_role():
    assert chosen("random", PRETRAINING) == START
    assert chosen("fresh", HEAD) == FRESH
    assert chosen("file:weights.pt", PRETRAINING).role == ""
    assert chosen("hub:name/start@v1", PRETRAINING).role == ""
    assert chosen("ncm", HEAD).role == HEAD


@pytest.mark.parametrize(
    ("text", "role", "line"),
    [
        ("fedavg+fedprox", TASK, "method: 'fedavg+fedprox': must be one method, without '+'"),
        ("random:seed=3", PRETRAINING, "method: 'random:seed=3': random has no settings"),
        ("cyclic+random", PRETRAINING, "method: 'random': random has no settings"),
        ("coprfl", PRETRAINING, "method, coprfl: unknown method 'coprfl': did you mean 'coprefl'?"),
        ("coprefl", TASK, "method, coprefl: 'coprefl' is a pretraining method; a task method is "),
        ("fedprox:muu=1", TASK, "method, fedprox:muu=1: fedprox: unknown setting 'muu': did"),
    ],
)
def test_wrong_choice_is_refused_in_one_line(text, role, line):
    with pytest.raises(SettingsError) as caught:
        chosen(text, role)
    assert str(caught.value).startswith(line)


def test_options_in_the_wrong_role_are_refused():
    """Tasks and personalised studies set the training, or a part of it, for every method."""
    with pytest.raises(SettingsError, match="fedprox: unknown setting 'learning-rate'"):
        chosen("fedprox:learning-rate=1", TASK)
    with pytest.raises(SettingsError, match="fedavg: unknown setting 'participants'"):
        chosen("fedavg:participants=2", PERSONALISED)
