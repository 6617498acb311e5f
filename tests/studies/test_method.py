"""Methods as a user chooses them: their texts, their phases, and the objects that they make."""

import pickle

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import PRETRAINING
from coprefl_flwr.strategies import CoPreFL
from coprefl_flwr.studies.method import START, Method
from coprefl_flwr.studies.training_options import TrainingOptions

FLOWER = "flwr.serverapp.strategy"
WRAPPED = f"{FLOWER}:FedTrimmedAvg:beta=0.1,weighted-by-key=num-examples"
PRIVATE = f"{FLOWER}:DifferentialPrivacyServerSideFixedClipping"

METHOD = Method("coprefl", (("gamma", 0.25), ("resplit", False)), Method("fedavg"))


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("random", START),
        ("coprefl:gamma=0.25,resplit=false+fedavg", METHOD),
        ("mine.py:Mine:rounds=3", Method("mine.py:Mine", (("rounds", 3),))),
        ("fedprox:mu=1e16", Method("fedprox", (("mu", 1e16),))),
        (
            f"{PRIVATE}:strategy={WRAPPED.replace(',', '&')},noise-multiplier=1",
            Method(PRIVATE, (("strategy", WRAPPED), ("noise-multiplier", 1))),
        ),
    ],
)
def test_text_of_a_method_is_read_as_the_same_method(text, method):
    assert Method.parse(text) == Method.read(f" {text} ") == method
    assert str(method) == text


def test_phases_are_the_methods_one_after_another():
    first, second = METHOD.phases
    assert (str(first), str(second)) == ("coprefl:gamma=0.25,resplit=false", "fedavg")
    assert str(METHOD.with_rounds(4)) == f"{first}+fedavg:rounds=4"
    more = METHOD.changed(lambda phase: phase.having({"participants": 2}))
    assert str(more) == f"{first},participants=2+fedavg:participants=2"
    assert (START.trained, Method("fresh").trained) == ((), ())
    assert METHOD.trained == METHOD.phases


def test_method_that_is_only_read_loads_no_code(tmp_path):
    method = Method.parse("nowhere.py:Mine:rate=2").resolved(tmp_path)
    assert str(method) == f"{tmp_path}/nowhere.py:Mine:rate=2"
    assert method.without_folders == "nowhere.py:Mine:rate=2"
    assert method.keys(PRETRAINING) == set()
    with pytest.raises(SettingsError, match=r"nowhere\.py"):
        _ = method.strategy_class


def test_pickled_method_has_no_class():
    method = Method("coprefl", (("gamma", 0.5),))
    assert method.strategy_class is CoPreFL
    copy = pickle.loads(pickle.dumps(method))
    assert vars(copy).keys() == set(Method.__match_args__)
    assert copy == method
    assert copy.strategy_class is CoPreFL


def test_values_are_those_of_the_method_and_defaults_of_its_role():
    method = Method("fedproto", (("mu", 2),))
    assert method.values["mu"] == 2.0
    chosen = Method("coprefl", (("gamma", 1), ("rounds", 7)))
    phase = chosen.with_training(PRETRAINING, TrainingOptions(rounds=5, learning_rate=0.3))
    assert (phase.values["gamma"], phase.values["support-fraction"]) == (1.0, 0.8)
    assert (phase.training.rounds, phase.training.learning_rate) == (7, 0.3)
    with pytest.raises(SettingsError, match=r"gamma = 2: must be between 0 and 1"):
        chosen.having({"gamma": 2}).with_training(PRETRAINING, TrainingOptions())


def test_strategy_object_is_copied():
    given = CoPreFL(gamma=0.25, participants=2)
    method = Method("coprefl", instance=given).with_training(PRETRAINING, TrainingOptions())
    made = method.strategy(population="people", clients=9)
    assert made is not given
    assert (made.gamma, made.population, made.clients) == (0.25, "people", 9)
    assert (given.population, given.clients) != (made.population, made.clients)
