"""The settings `method` and `task-method`: what they say, and one line for what they cannot say."""

from dataclasses import replace

import pytest
from coprefl_flwr.studies.methods import (
    LOCAL_SETTINGS,
    METHODS,
    local_training,
    methods_table,
    task_training,
)

from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import CoPreFLClient, FedMetaClient, StatefulClient, TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.strategies import (
    Centralised,
    CoPreFL,
    Cyclic,
    FedAvg,
    FedProx,
    HybridCoPreFL,
    Schedule,
    ServerRefined,
)
from coprefl_flwr.studies.populations import PRETRAINING, ClientData
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.starts import own_settings, start, starts, task_phase, task_strategy
from tests.tiny import tiny_model


def refusal(text, **settings):
    with pytest.raises(SettingsError) as caught:
        starts(Settings(method=text, **settings))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def only(text, **settings):
    """Return the settings of a start of one phase."""
    (phase,) = start(Settings(**settings), text).phases
    return phase.settings


def test_starts_in_their_order_with_settings_of_their_own():
    settings = Settings(
        run_name="r", method="coprefl:gamma=0.25,rounds=7  random;fedavg:local-epochs=2", seed=5
    )
    coprefl, random, fedavg = starts(settings)
    assert [s.name for s in (coprefl, random, fedavg)] == [
        "coprefl:gamma=0.25,rounds=7",
        "random",
        "fedavg:local-epochs=2",
    ]
    assert [p.name for s in (coprefl, random, fedavg) for p in s.phases] == ["coprefl", "fedavg"]
    assert coprefl.phases[0].settings == replace(
        settings,
        gamma=0.25,
        rounds=7,
        meta_learning_rate=1e-3,
        support_fraction=0.8,
        resplit=True,
    )
    assert fedavg.phases[0].settings == replace(settings, local_epochs=2)
    assert (coprefl.rounds, random.rounds, fedavg.rounds) == (7, 0, 50)


def test_values_are_read_as_in_a_toml_file():
    own = only("coprefl:resplit=false,learning-rate=1,clip-norm=2e-1")
    assert (own.resplit, own.learning_rate, own.clip_norm) == (False, 1.0, 0.2)
    unset = only("fedavg:local-steps=,local-epochs=2", local_steps=3)
    assert (unset.local_steps, unset.local_epochs) == (None, 2)


def test_a_methods_own_default_and_what_takes_its_place():
    assert only("fedprox").mu == 0.01
    assert only("moon").mu == 0.1
    assert only("fedprox", mu=0.5).mu == 0.5
    assert only("fedprox:mu=2", mu=0.5).mu == 2
    assert only("fedavg", mu=0.5).mu is None
    centralised = only("centralised")
    assert (centralised.local_epochs, centralised.batch_size) == (1, 64)


def test_steps_or_epochs():
    def chosen(text, **settings):
        own = only(text, **settings)
        return own.local_steps, own.local_epochs, own.max_local_steps

    assert chosen("fedavg") == (None, None, None)
    assert chosen("cyclic") == (None, 5, 20)
    assert chosen("cyclic", local_epochs=1) == (None, 1, 20)
    # Steps that somebody set are taken, all of them.
    assert chosen("cyclic:local-steps=30") == chosen("cyclic", local_steps=30) == (30, None, None)
    # What a method says takes the place of what is said for all.
    assert chosen("cyclic:local-epochs=2", local_steps=5) == (None, 2, 20)
    assert chosen("fedavg:local-steps=7", local_epochs=1) == (7, None, None)


def test_phases_one_after_the_other():
    chosen = start(Settings(rounds=9, participants=4), "cyclic:rounds=3,participants=2+fedprox")
    assert [phase.name for phase in chosen.phases] == ["cyclic", "fedprox"]
    assert chosen.rounds == 12
    assert [chosen.phase(n).name for n in (1, 3, 4, 12)] == [
        "cyclic",
        "cyclic",
        "fedprox",
        "fedprox",
    ]
    assert chosen.folder == "cyclic-rounds-3-participants-2-fedprox"
    schedule = chosen.strategy(no_server)
    assert type(schedule) is Schedule
    (cyclic, first), (fedprox, second) = schedule.phases
    assert (type(cyclic), type(fedprox), first, second) == (Cyclic, FedProx, 3, 9)
    assert (cyclic.participants, fedprox.participants) == (2, 4)


def test_a_resumed_run_has_the_same_starts():
    settings = Settings(run_name="r", method="coprefl:gamma=0.25")
    (first,), (again,) = starts(settings), starts(replace(settings, resume=True))
    expected = replace(first.phases[0].settings, resume=True)
    assert again.phases[0].settings == expected


KNOWN = ", ".join(["random", *METHODS])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "method is empty: name some of " + KNOWN),
        (" ; ", "method is empty: name some of " + KNOWN),
        ("copref", "method: unknown method 'copref': did you mean 'coprefl'?"),
        ("random fedvg", "method: unknown method 'fedvg': did you mean 'fedavg'?"),
        ("zzz", "method: unknown method 'zzz': known are " + KNOWN),
        ("cyclic+", "method: unknown method '': known are " + KNOWN),
        ("random:seed=3", "method: 'random:seed=3': random is not trained and has no settings"),
        ("random+fedavg", "method: 'random': random is not trained and has no settings"),
        (
            "coprefl:gama=0.5",
            "method, coprefl:gama=0.5: coprefl has no 'gama' here, did you mean 'gamma'?; it has "
            "gamma, meta-learning-rate, support-fraction, resplit, " + ", ".join(LOCAL_SETTINGS),
        ),
        (
            "fedavg:gamma=0.5",
            "method, fedavg:gamma=0.5: fedavg has no 'gamma' here; it has "
            + ", ".join(LOCAL_SETTINGS),
        ),
        (
            "fedmeta:learning-rate=0.1",
            "method, fedmeta:learning-rate=0.1: fedmeta has no 'learning-rate' here, did you mean "
            "'meta-learning-rate'?; it has variant, inner-learning-rate, inner-steps, "
            "meta-learning-rate, support-fraction, resplit, rounds, participants",
        ),
        (
            "scaffold:clip-norm=1",
            "method, scaffold:clip-norm=1: clip-norm = 1: cannot be set with variant II",
        ),
        ("coprefl:gamma=2", "method, coprefl:gamma=2: gamma = 2.0: must be between 0 and 1"),
        ("coprefl:gamma=low", "method, coprefl:gamma=low: gamma = 'low': must be a number"),
        ("coprefl:gamma", "method, coprefl:gamma: 'gamma' has no value; write gamma=VALUE"),
        ("coprefl:resplit=1", "method, coprefl:resplit=1: resplit = 1: must be true or false"),
        (
            "scaffold:variant=III",
            "method, scaffold:variant=III: unknown variant 'III': did you mean 'II'?",
        ),
        (
            "fedavg:participants=101",
            "method, fedavg:participants=101: participants = 101: must be at most clients = 100",
        ),
        (
            "fedavg:local-steps=2,local-epochs=1",
            "method, fedavg:local-steps=2,local-epochs=1: local-steps = 2 and local-epochs = 1: "
            "set one of them, not both",
        ),
        ("fedavg random fedavg", "method names 'fedavg' twice"),
    ],
)
def test_what_cannot_be_started_is_named(text, line):
    assert refusal(text) == line


def test_a_setting_that_no_method_here_has():
    line = refusal("random fedavg coprefl", mu=0.1)
    assert line == (
        "mu = 0.1: no method here has this setting; fedavg has none of its own; coprefl has gamma, "
        "meta-learning-rate, support-fraction, resplit"
    )
    # A task's method counts too.
    assert starts(Settings(method="fedavg", mu=0.1, task_method="fedprox"))


def test_a_task_has_local_training_of_its_own_settings():
    assert refusal("fedavg", task_method="fedprox:learning-rate=0.1") == (
        "task-method, fedprox:learning-rate=0.1: fedprox has no 'learning-rate' here; it has mu"
    )


def test_a_task_cannot_be_every_method():
    assert refusal("fedavg", task_method="coprefl").startswith(
        "task-method: unknown method 'coprefl': known are fedavg, fedprox, qffl, scaffold, "
    )


def test_folders_are_plain_and_apart():
    texts = ["coprefl", "coprefl:gamma=0.5", "coprefl:gamma=0.25,rounds=3", "fedavg:momentum=0.5"]
    folders = [start(Settings(), text).folder for text in texts]
    assert folders == [
        "coprefl",
        "coprefl-gamma-0.5",
        "coprefl-gamma-0.25-rounds-3",
        "fedavg-momentum-0.5",
    ]


def no_server(_):
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
    fedavg = start(settings, "fedavg").strategy(no_server)
    coprefl = start(settings, "coprefl").strategy(no_server)
    assert type(fedavg) is FedAvg
    assert type(coprefl) is CoPreFL
    assert vars(fedavg).items() >= base.items()
    assert vars(coprefl).items() >= (base | {"gamma": 0.1, "meta_learning_rate": 0.2}).items()


OTHER = {
    "variant": {"scaffold": "I", "fedmeta": "meta-sgd", "per-fedavg": "hf"},
    "resplit": False,
    "inner-steps": 3,
    "local-epochs": 7,
    "max-local-steps": 9,
    "batch-size": 11,
    "server-steps": 13,
}
"""Values that are no default; of settings not here, 0.321."""
FOUND_AS = {
    "feddyn-alpha": "alpha",
    "max-local-steps": "max_steps",
    "server-steps": "local_steps",
    "server-learning-rate": "learning_rate",
}


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_a_method_arrives(name, federation, tmp_path):
    method = METHODS[name]
    values = {key: OTHER.get(key, 0.321) for key in method.own}
    if "variant" in values:
        values["variant"] = OTHER["variant"][name.removesuffix("-refined")]
    text = ",".join(
        f"{key}={'false' if value is False else value}" for key, value in values.items()
    )
    chosen = start(Settings(), f"{name}:{text}")
    (phase,) = chosen.phases
    server = ServerData(tiny_model(), federation.samples[3])
    strategy = chosen.strategy(lambda _: server)
    inner = strategy.inner if isinstance(strategy, ServerRefined) else strategy
    assert type(inner) is method.strategy_class
    assert isinstance(strategy, ServerRefined) == method.refined
    training, data = local_training(phase.settings), ClientData(federation.samples[0])
    state = ClientState(tmp_path)
    client = method.client(phase.settings, tiny_model(), data, training, state)
    assert type(client) is method.client_class
    for key, value in values.items():
        field = FOUND_AS.get(key, key.replace("-", "_"))
        holders = [strategy.training] if key.startswith("server-") else [inner, client, training]
        arrived = [getattr(holder, field) for holder in holders if hasattr(holder, field)]
        assert arrived, key
        assert all(one == value for one in arrived), key


def test_both_sides_of_a_schedule_agree_on_the_phase():
    chosen = start(Settings(rounds=4), "cyclic:rounds=1+fedprox:rounds=2+fedavg")
    schedule = chosen.strategy(no_server)
    for number in range(1, 9):
        strategy, _ = schedule.phase(number)
        assert type(strategy) is chosen.phase(number).method.strategy_class


def test_scenario_two_gets_the_server_and_its_settings(federation):
    settings = Settings(participants=4, gamma=0.1, server_steps=2, server_learning_rate=0.3)
    server = ServerData(tiny_model(), federation.samples[3])

    def make(pool):
        assert pool == "server"
        return server

    hybrid = start(settings, "coprefl-hybrid").strategy(make)
    assert type(hybrid) is HybridCoPreFL
    assert (hybrid.server, hybrid.gamma, hybrid.participants) == (server, 0.1, 4)
    for name, inner in (("fedavg-refined", FedAvg), ("coprefl-sgd", CoPreFL)):
        refined = start(settings, name).strategy(make)
        assert type(refined) is ServerRefined
        assert type(refined.inner) is inner
        assert refined.server is server
        assert (refined.training.local_steps, refined.training.learning_rate) == (2, 0.3)
    # Scenario II's CoPreFL trains on all of a client's samples, scenario I's on its support set.
    assert METHODS["coprefl-hybrid"].client_class is TorchClient
    assert METHODS["coprefl-sgd"].client_class is CoPreFLClient


def test_centralised_training_is_on_what_the_clients_hold(federation):
    pools = {
        name: ServerData(tiny_model(), federation.samples[n])
        for n, name in enumerate(("server", "clients", "both"))
    }
    for name, pool in (("centralised", "clients"), ("centralised-hybrid", "both")):
        strategy = start(Settings(local_epochs=1), name).strategy(pools.__getitem__)
        assert type(strategy) is Centralised
        assert (strategy.server, strategy.training.local_epochs) == (pools[pool], 1)
        assert METHODS[name].uses_server_data == (pool == "both")


def test_a_task_is_run_by_its_own_method():
    settings = Settings(
        seed=4, run_name="r", task_clients=3, task_evaluate_every=0, task_rounds=7, participants=20,
        task_method="fedprox:mu=1",
    )  # fmt: skip
    strategy = task_strategy(settings, "task-2")
    assert (type(strategy), strategy.mu) == (FedProx, 1)
    assert (strategy.participants, strategy.min_replies, strategy.evaluate_every) == (None, 3, 7)
    assert (strategy.population, strategy.seed, strategy.run_name) == ("task-2", 4, "r")
    assert task_phase(Settings()).name == "fedavg"


def test_clients_get_their_settings(federation, tmp_path):
    settings = only("coprefl", support_fraction=0.6, resplit=False, local_epochs=2, momentum=0.5)
    data = ClientData(federation.samples[0], federation.samples[1])
    training, state = local_training(settings), ClientState(tmp_path)
    for name in ("fedavg", "coprefl", "fedmeta", "scaffold"):
        client = METHODS[name].client(settings, tiny_model(), data, training, state)
        assert (client.train, client.test, client.training) == (data.train, data.test, training)
        if isinstance(client, CoPreFLClient | FedMetaClient):
            assert (client.support_fraction, client.resplit) == (0.6, False)
        if isinstance(client, StatefulClient):
            assert client.state is state


def test_local_training():
    settings = Settings(
        local_epochs=2, max_local_steps=9, batch_size=4, learning_rate=0.3, learning_rate_decay=0.9,
        momentum=0.5, weight_decay=0.1, clip_norm=3.0, task_local_steps=8, task_learning_rate=0.7,
    )  # fmt: skip
    assert local_training(settings) == LocalTraining(
        local_epochs=2, max_steps=9, batch_size=4, learning_rate=0.3, learning_rate_decay=0.9,
        momentum=0.5, weight_decay=0.1, clip_norm=3.0,
    )  # fmt: skip
    assert task_training(settings) == LocalTraining(local_steps=8, batch_size=4, learning_rate=0.7)


def test_every_setting_of_a_method_is_a_setting_and_not_set_by_itself():
    config = Settings().to_config()
    for method in METHODS.values():
        assert set(method.settings) <= config.keys()
    assert {config[key] for key in own_settings()} == {""}


def test_the_table_of_methods_has_every_method_and_default():
    table = methods_table()
    assert "| `fedprox` | `mu` 0.01 | I | yes |" in table
    assert "| `fedmeta` | `variant` maml (maml, fomaml, meta-sgd), " in table
    named = [line.split("`")[1] for line in table.splitlines()[2:]]
    assert named == [name for name in METHODS if not name.endswith("-refined")]
