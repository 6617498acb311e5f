"""The setting `starts`: what it says, and one line for whatever it cannot say."""

from dataclasses import replace

import pytest
import torch

from coprefl_flwr.clients import CoPreFLClient, TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.experiments.methods import (
    LOCAL_OPTIONS,
    METHODS,
    local_training,
    start,
    starts,
    task_training,
)
from coprefl_flwr.experiments.populations import PRETRAINING, ClientData
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.server_data import ServerData
from coprefl_flwr.settings import Settings
from coprefl_flwr.strategies import CoPreFL, FedAvg, HybridCoPreFL, ServerRefined
from tests.tiny import tiny_model


def refusal(text):
    with pytest.raises(SettingsError) as caught:
        starts(Settings(starts=text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_starts_in_their_order_with_options_of_their_own():
    settings = Settings(
        run_name="r", starts="coprefl:gamma=0.25,rounds=7  random;fedavg:local-epochs=2", seed=5
    )
    coprefl, random, fedavg = starts(settings)
    assert [s.name for s in (coprefl, random, fedavg)] == [
        "coprefl:gamma=0.25,rounds=7",
        "random",
        "fedavg:local-epochs=2",
    ]
    assert [s.method for s in (coprefl, random, fedavg)] == ["coprefl", "random", "fedavg"]
    assert coprefl.settings == replace(settings, gamma=0.25, rounds=7)
    assert fedavg.settings == replace(settings, local_epochs=2)
    assert random.settings == settings


def test_values_are_read_as_in_a_toml_file():
    own = start(Settings(), "coprefl:resplit=false,learning-rate=1,clip-norm=2e-1").settings
    assert (own.resplit, own.learning_rate, own.clip_norm) == (False, 1.0, 0.2)
    unset = start(Settings(local_steps=3), "fedavg:local-steps=,local-epochs=2").settings
    assert (unset.local_steps, unset.local_epochs) == (None, 2)


def test_a_resumed_run_has_the_same_starts():
    settings = Settings(run_name="r", starts="coprefl:gamma=0.25")
    (first,), (again,) = starts(settings), starts(replace(settings, resume=True))
    assert again.settings == replace(first.settings, resume=True)


KNOWN = "random, fedavg, coprefl, fedavg-refined, coprefl-sgd, coprefl-hybrid"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "",
            "starts is empty: name some of " + KNOWN,
        ),
        (
            " ; ",
            "starts is empty: name some of " + KNOWN,
        ),
        ("copref", "starts: unknown method 'copref': did you mean 'coprefl'?"),
        ("random fedvg", "starts: unknown method 'fedvg': did you mean 'fedavg'?"),
        (
            "zzz",
            "starts: unknown method 'zzz': known are " + KNOWN,
        ),
        ("random:seed=3", "starts: 'random:seed=3': random is not trained and takes no options"),
        (
            "coprefl:gama=0.5",
            "starts, coprefl:gama=0.5: unknown option 'gama': did you mean 'gamma'?",
        ),
        (
            "fedavg:gamma=0.5",
            "starts, fedavg:gamma=0.5: unknown option 'gamma': known are "
            + ", ".join(LOCAL_OPTIONS),
        ),
        ("coprefl:gamma=2", "starts, coprefl:gamma=2: gamma = 2.0: must be between 0 and 1"),
        ("coprefl:gamma=low", "starts, coprefl:gamma=low: gamma = 'low': must be a number"),
        ("coprefl:gamma", "starts, coprefl:gamma: gamma = '': must be a number"),
        ("coprefl:resplit=1", "starts, coprefl:resplit=1: resplit = 1: must be true or false"),
        (
            "fedavg:participants=101",
            "starts, fedavg:participants=101: participants = 101: must be at most clients = 100",
        ),
        (
            "fedavg:local-steps=2,local-epochs=1",
            "starts, fedavg:local-steps=2,local-epochs=1: local-steps = 2 and local-epochs = 1: "
            "set one of them, not both",
        ),
        ("fedavg random fedavg", "starts names 'fedavg' twice"),
    ],
)
def test_what_cannot_be_started_is_named(text, line):
    assert refusal(text) == line


def test_folders_are_plain_and_apart():
    texts = ["coprefl", "coprefl:gamma=0.5", "coprefl:gamma=0.25,rounds=3", "fedavg:momentum=0.5"]
    folders = [start(Settings(), text).folder for text in texts]
    assert folders == [
        "coprefl",
        "coprefl-gamma-0.5",
        "coprefl-gamma-0.25-rounds-3",
        "fedavg-momentum-0.5",
    ]


def no_server():
    raise AssertionError("scenario I needs no server data")


def test_strategies_get_their_settings():
    settings = Settings(
        run_name="r", seed=3, participants=7, gamma=0.1, meta_learning_rate=0.2, min_nodes=2,
        min_replies=4, max_failed_rounds=5,
    )  # fmt: skip
    base = {
        "participants": 7, "seed": 3, "run_name": "r", "population": PRETRAINING, "min_nodes": 2,
        "min_replies": 4, "max_failed_rounds": 5, "evaluate_every": 0,
    }  # fmt: skip
    fedavg = METHODS["fedavg"].strategy(settings, no_server)
    coprefl = METHODS["coprefl"].strategy(settings, no_server)
    assert type(fedavg) is FedAvg
    assert type(coprefl) is CoPreFL
    assert vars(fedavg).items() >= base.items()
    assert vars(coprefl).items() >= (base | {"gamma": 0.1, "meta_learning_rate": 0.2}).items()


def test_scenario_two_gets_the_server_and_its_settings(federation):
    settings = Settings(participants=4, gamma=0.1, server_steps=2, server_learning_rate=0.3)
    server = ServerData(tiny_model(), federation.samples[3])
    hybrid = METHODS["coprefl-hybrid"].strategy(settings, lambda: server)
    assert type(hybrid) is HybridCoPreFL
    assert (hybrid.server, hybrid.gamma, hybrid.participants) == (server, 0.1, 4)
    for name, inner in (("fedavg-refined", FedAvg), ("coprefl-sgd", CoPreFL)):
        refined = METHODS[name].strategy(settings, lambda: server)
        assert type(refined) is ServerRefined
        assert type(refined.inner) is inner
        assert refined.server is server
        assert (refined.training.local_steps, refined.training.learning_rate) == (2, 0.3)
    # Scenario II trains on all of a client's samples, scenario I on its support set.
    data = ClientData(federation.samples[0])
    assert type(METHODS["coprefl-hybrid"].client(settings, tiny_model(), data)) is TorchClient
    assert type(METHODS["coprefl-sgd"].client(settings, tiny_model(), data)) is CoPreFLClient


def test_clients_get_their_settings(federation):
    settings = Settings(support_fraction=0.6, resplit=False, local_epochs=2, momentum=0.5)
    data = ClientData(federation.samples[0], federation.samples[1])
    fedavg = METHODS["fedavg"].client(settings, tiny_model(), data)
    coprefl = METHODS["coprefl"].client(settings, tiny_model(), data)
    assert type(fedavg) is TorchClient
    assert type(coprefl) is CoPreFLClient
    assert (coprefl.support_fraction, coprefl.resplit) == (0.6, False)
    for client in (fedavg, coprefl):
        assert client.train is data.train
        assert client.training == local_training(settings)
        assert isinstance(client.model, torch.nn.Module)


def test_local_training():
    settings = Settings(
        local_epochs=2, batch_size=4, learning_rate=0.3, learning_rate_decay=0.9, momentum=0.5,
        weight_decay=0.1, clip_norm=3.0, task_local_steps=8, task_learning_rate=0.7,
    )  # fmt: skip
    assert local_training(settings) == LocalTraining(
        local_epochs=2, batch_size=4, learning_rate=0.3, learning_rate_decay=0.9, momentum=0.5,
        weight_decay=0.1, clip_norm=3.0,
    )  # fmt: skip
    assert task_training(settings) == LocalTraining(local_steps=8, batch_size=4, learning_rate=0.7)


def test_every_option_of_a_method_is_a_setting():
    keys = Settings().to_config().keys()
    for method in METHODS.values():
        assert set(method.options) <= keys
