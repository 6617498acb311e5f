"""The settings `method` and `task-method`: their meaning, and one-line errors for wrong values."""

from dataclasses import replace

import pytest

from coprefl_flwr.clients import CoPreFLClient, StatefulClient, TorchClient
from coprefl_flwr.data import ClientData
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.methods import METHODS, PERSONALISED, PRETRAINING, with_role
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
from coprefl_flwr.studies import populations as clients_of
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.method import Method, folder_of
from coprefl_flwr.studies.phases import TrainingOptions
from coprefl_flwr.studies.populations import Population
from coprefl_flwr.studies.settings import Settings
from tests.common.networks import tiny_model

TRAINED = with_role(PRETRAINING)

OF_THE_MEAN = {"aggregation": "mean", "tolerated-share": 0.2, "clip-factor": 1.0}


def start(text, **settings):
    """Return the only start of a study."""
    return build(Settings.of(method=text, tasks=0, **settings)).stages[0]


def only(text, **settings):
    """Return the phase of a start of one phase."""
    (phase,) = start(text, **settings).phases
    return phase


def strategy(text, server=None, **settings):
    """Return the strategy of the pre-training of a study of one start."""
    stage = start(text, **settings)
    stage.server_data = server or no_server
    return stage.strategy()


def no_server(_):
    raise AssertionError("scenario I needs no server data")


def test_starts_in_their_order_with_settings_of_their_own():
    settings = Settings(
        run_name="r", method="coprefl:gamma=0.25,rounds=7  random;fedavg:local-epochs=2", seed=5
    )
    study = build(settings)
    names = ["coprefl:gamma=0.25,rounds=7", "random", "fedavg:local-epochs=2"]
    coprefl, random, fedavg = study.stages[:3]
    assert [s.start for s in (coprefl, random, fedavg)] == names
    assert [p.name for s in (coprefl, random, fedavg) for p in s.phases] == ["coprefl", "fedavg"]
    assert coprefl.phases[0].options == {
        "gamma": 0.25,
        "meta-learning-rate": 0.05,
        "support-fraction": 0.8,
        "resplit": True,
        "query-clip": 0.0,
        "query-noise": 0.0,
        **OF_THE_MEAN,
    }
    training = settings.part(TrainingOptions)
    assert coprefl.phases[0].training == replace(training, rounds=7)
    assert fedavg.phases[0].options == OF_THE_MEAN
    assert fedavg.phases[0].training == replace(training, local_epochs=2)
    assert (coprefl.rounds, random.rounds, fedavg.rounds) == (7, 0, 50)
    assert [stage.rounds for stage in study.stages[:3]] == [7, 0, 50]


def test_values_are_read_as_in_a_toml_file():
    own = only("coprefl:resplit=false,learning-rate=1,clip-norm=2e-1")
    assert own.options["resplit"] is False
    assert (own.training.learning_rate, own.training.clip_norm) == (1.0, 0.2)
    unset = only("fedavg:local-steps=,local-epochs=2", local_steps=3).training
    assert (unset.local_steps, unset.local_epochs) == (None, 2)


def test_a_methods_own_default_and_what_takes_its_place():
    assert only("fedprox").options["mu"] == 0.01
    assert only("moon").options["mu"] == 0.1
    assert only("fedprox", mu=0.5).options["mu"] == 0.5
    assert only("fedprox:mu=2", mu=0.5).options["mu"] == 2
    assert "mu" not in only("fedavg", mu=0.5, task_method="fedprox").options
    centralised = only("centralised").training
    assert (centralised.local_epochs, centralised.batch_size) == (1, 64)


def test_steps_or_epochs():
    def chosen(text, **settings):
        own = only(text, **settings).training
        return own.local_steps, own.local_epochs, own.max_steps

    assert chosen("fedavg") == (None, None, None)
    assert chosen("cyclic") == (None, 5, 20)
    assert chosen("cyclic", local_epochs=1) == (None, 1, 20)
    # If a user sets the number of steps, max-steps does not limit it.
    assert chosen("cyclic:local-steps=30") == chosen("cyclic", local_steps=30) == (30, None, None)
    # An option of a method overrides the setting for all methods.
    assert chosen("cyclic:local-epochs=2", local_steps=5) == (None, 2, 20)
    assert chosen("fedavg:local-steps=7", local_epochs=1) == (7, None, None)


def test_phases_one_after_the_other():
    text = "cyclic:rounds=3,participants=2+fedprox"
    chosen = start(text, rounds=9, participants=4)
    assert [phase.name for phase in chosen.phases] == ["cyclic", "fedprox"]
    assert (chosen.rounds, chosen.phase_switch) == (12, 3)
    assert [chosen.phase_of(n).name for n in (1, 3, 4, 12)] == [
        "cyclic",
        "cyclic",
        "fedprox",
        "fedprox",
    ]
    schedule = strategy(text, rounds=9, participants=4)
    assert type(schedule) is Schedule
    (cyclic, first), (fedprox, second) = schedule.phases
    assert (type(cyclic), type(fedprox), first, second) == (Cyclic, FedProx, 3, 9)
    assert (cyclic.participants, fedprox.participants) == (2, 4)


def test_folders_are_plain_and_apart():
    texts = {
        "coprefl": "coprefl",
        "coprefl:gamma=0.5": "coprefl-gamma-0.5",
        "coprefl:gamma=0.25,rounds=3": "coprefl-gamma-0.25-rounds-3",
        "fedavg:momentum=0.5": "fedavg-momentum-0.5",
        "cyclic:rounds=3,participants=2+fedprox": "cyclic-rounds-3-participants-2-fedprox",
    }
    assert {text: folder_of(Method.parse(text).without_folders) for text in texts} == texts
    stages = build(Settings(method=" ".join(texts), tasks=1)).stages
    assert [stage.path for stage in stages] == [
        *(f"starts/{folder}" for folder in texts.values()),
        *(f"tasks/0/{folder}" for folder in texts.values()),
    ]


def test_strategies_get_their_settings():
    settings = {
        "seed": 3, "participants": 7, "min_available_nodes": 2, "min_replies": 4,
        "max_failed_rounds": 5,
    }  # fmt: skip
    base = {
        "participants": 7, "seed": 3, "population": clients_of.PRETRAIN,
        "min_available_nodes": 2, "min_replies": 4, "max_failed_rounds": 5, "evaluate_every": 0,
    }  # fmt: skip
    fedavg = strategy("fedavg", **settings)
    coprefl = strategy("coprefl", **settings, gamma=0.1, meta_learning_rate=0.2)
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
    "local-steps": 4,
    "aggregation": "krum",
}
"""Values that differ from the defaults; a setting that is not in this dict gets 0.321."""
FOUND_AS = {
    "feddyn-alpha": "alpha",
    "max-local-steps": "max_steps",
    "server-steps": "local_steps",
    "server-learning-rate": "learning_rate",
}


@pytest.mark.parametrize("name", TRAINED)
def test_every_option_of_a_method_arrives(name, federation, tmp_path):
    method = METHODS[name]
    keys = dict.fromkeys([*method.options, *method.strategy_class.training_defaults])
    values = {key: OTHER.get(key, 0.321) for key in keys}
    if "variant" in values:
        values["variant"] = OTHER["variant"][name.removesuffix("-refined")]
    text = ",".join(
        f"{key}={'false' if value is False else value}" for key, value in values.items()
    )
    server = ServerData(tiny_model(), federation.samples[3])
    refined = strategy(f"{name}:{text}", lambda _: server)
    inner = refined.inner if isinstance(refined, ServerRefined) else refined
    assert type(inner) is method.strategy_class
    assert isinstance(refined, ServerRefined) == method.refined
    phase = only(f"{name}:{text}")
    training, state = phase.training, ClientState(tmp_path)
    client = method.client(
        phase.options, tiny_model(), federation.samples[0], {"state": state}, training=training
    )
    assert type(client) is method.client_class
    for key, value in values.items():
        field = FOUND_AS.get(key, key.replace("-", "_"))
        refining = key in ("server-steps", "server-learning-rate")
        heeded = [training] if method.trains_locally else []
        holders = [refined.training] if refining else [inner, client, *heeded]
        arrived = [getattr(holder, field) for holder in holders if hasattr(holder, field)]
        assert arrived, key
        assert all(option_value == value for option_value in arrived), key


def test_both_sides_of_a_schedule_agree_on_the_phase():
    text = "cyclic:rounds=1+fedprox:rounds=2+fedavg"
    schedule = strategy(text, rounds=4)
    for number in range(1, 9):
        phase_strategy, _ = schedule.phase(number)
        assert (
            type(phase_strategy) is start(text, rounds=4).phase_of(number).algorithm.strategy_class
        )


def test_scenario_two_gets_the_server_and_its_settings(federation):
    shared = {"participants": 4, "gamma": 0.1}
    refining = {"server_steps": 2, "server_learning_rate": 0.3}
    server = ServerData(tiny_model(), federation.samples[3])

    def make(pool):
        assert pool == "server"
        return server

    hybrid = strategy("coprefl-hybrid", make, **shared)
    assert type(hybrid) is HybridCoPreFL
    assert (hybrid.server, hybrid.gamma, hybrid.participants) == (server, 0.1, 4)
    for name, inner in (("fedavg-refined", FedAvg), ("coprefl-sgd", CoPreFL)):
        own = refining if inner is FedAvg else shared | refining
        refined = strategy(name, make, **own)
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
        centralised = strategy(name, pools.__getitem__, local_epochs=1)
        assert issubclass(type(centralised), Centralised)
        assert (centralised.server, centralised.training.local_epochs) == (pools[pool], 1)
        assert METHODS[name].uses_server_data == (pool == "both")


def test_a_task_is_run_by_its_own_method():
    study = build(Settings(
        seed=4, task_clients=3, task_evaluate_every=0, task_rounds=7, participants=20,
        task_method="fedprox:mu=1", method="random",
    ))  # fmt: skip
    stage = study.stages[3]
    assert (stage.title, stage.rounds) == ("task 2 from random", 7)
    fedprox = stage.strategy()
    assert (type(fedprox), fedprox.mu) == (FedProx, 1)
    assert (fedprox.participants, fedprox.min_replies, fedprox.evaluate_every) == (None, 3, 7)
    assert (fedprox.population, fedprox.seed) == ("task-2", 4)
    assert build(Settings()).stages[-1].how.trained.name == "fedavg"


def client(settings, data, **config):
    """Return the first client of a study; every population has one client, with `data`."""
    study = build(settings)

    only = Population("one client", (0, 1, 2), (data,))
    vars(study.stages[0].clients)["population"] = only
    for stage in study.stages[1:]:
        stage.tasks._made[stage.number] = only
    return study.client(None, 0, {"server-round": 1, "folder": "run/starts/a", **config})


def test_clients_get_their_settings(federation, tmp_path):
    data = ClientData(federation.samples[0], federation.samples[1])
    for name in ("fedavg", "coprefl", "fedmeta", "scaffold"):
        own = {"support_fraction": 0.6, "resplit": False} if name in ("coprefl", "fedmeta") else {}
        settings = Settings.of(
            method=name, local_epochs=2, momentum=0.5, batch_size=4, output_dir=str(tmp_path), **own
        )
        about = {
            "population": "pretrain",
            "stage": f"starts/{folder_of(name)}",
            "folder": "run/starts/a",
        }
        own = client(settings, data, **about)
        assert type(own) is METHODS[name].client_class
        assert (own.train, own.test) == (data.train, data.test)
        assert own.training == TrainingOptions(local_epochs=2, batch_size=4, momentum=0.5)
        if isinstance(own, CoPreFLClient):
            assert (own.support_fraction, own.resplit) == (0.6, False)
        if isinstance(own, StatefulClient):
            assert own.state.folder == tmp_path / "run" / "starts" / "a" / "client-state"


def test_local_training(federation):
    settings = Settings(
        local_epochs=2, max_steps=9, batch_size=4, learning_rate=0.3, learning_rate_decay=0.9,
        momentum=0.5, weight_decay=0.1, clip_norm=3.0, task_local_steps=8, task_learning_rate=0.7,
        method="fedavg",
    )  # fmt: skip
    data = ClientData(federation.samples[0], federation.samples[1])
    of_pretraining = client(settings, data, population="pretrain", stage="starts/fedavg")
    assert of_pretraining.training == TrainingOptions(
        local_epochs=2, max_steps=9, batch_size=4, learning_rate=0.3, learning_rate_decay=0.9,
        momentum=0.5, weight_decay=0.1, clip_norm=3.0,
    )  # fmt: skip
    of_task = client(settings, data, population="task-0", stage="tasks/0/fedavg")
    assert of_task.training == TrainingOptions(
        rounds=50, participants=10, local_steps=8, batch_size=4, learning_rate=0.7
    )


# --- the setting for the kind of a study


@pytest.mark.parametrize("name", sorted(with_role(PERSONALISED).keys() - TRAINED.keys()))
def test_a_method_of_personalised_studies_is_told_what_to_set(name):
    with pytest.raises(SettingsError, match=f"{name} .* set study = personalised"):
        build(Settings(method=name))
    assert build(Settings(study="personalised", method=name))
