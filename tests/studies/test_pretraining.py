"""The settings `method` and `task-method`: their meaning, and one-line errors for wrong values."""

from dataclasses import replace

import pytest

from coprefl_flwr.data import ClientData
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.methods import PRETRAINING
from coprefl_flwr.strategies import (
    Centralised,
    Cyclic,
    FedProx,
    Schedule,
    ServerRefined,
)
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import METHODS, with_role
from coprefl_flwr.studies.populations import Population
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.training_options import TrainingOptions
from tests.common.networks import tiny_model

TRAINED = with_role(PRETRAINING)

OF_THE_MEAN = {"aggregation": "mean", "tolerated-share": 0.2, "clip-factor": 1.0}


def start(text, **settings):
    """Return the only start of a study."""
    return build(Settings(method=text, tasks=0, **settings)).stages[0]


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


def test_starts_have_their_order_and_their_options():
    text = "coprefl:gamma=0.25,rounds=7  random fedavg:local-epochs=2"
    settings = Settings(run_name="r", method=text, seed=5)
    coprefl, random, fedavg = build(settings).stages[:3]
    names = ["coprefl:gamma=0.25,rounds=7", "random", "fedavg:local-epochs=2"]
    assert [stage.start for stage in (coprefl, random, fedavg)] == names
    assert [len(stage.phases) for stage in (coprefl, random, fedavg)] == [1, 0, 1]
    assert coprefl.phases[0].values == {
        "gamma": 0.25,
        "meta-learning-rate": 0.05,
        "support-fraction": 0.8,
        "resplit": True,
        "query-clip": 0.0,
        "query-noise": 0.0,
        "meta-reduction": "sum",
        **OF_THE_MEAN,
    }
    training = settings.part(TrainingOptions)
    assert coprefl.phases[0].training == replace(training, rounds=7)
    assert fedavg.phases[0].values == OF_THE_MEAN
    assert fedavg.phases[0].training == replace(training, local_epochs=2)
    assert (coprefl.rounds, random.rounds, fedavg.rounds) == (7, 0, 50)


def test_values_in_a_methods_text_have_the_types_of_toml():
    made = only("coprefl:resplit=false,learning-rate=1,clip-norm=2e-1")
    assert made.values["resplit"] is False
    assert (made.training.learning_rate, made.training.clip_norm) == (1.0, 0.2)
    unset = only("fedavg:local-steps=,local-epochs=2", local_steps=3).training
    assert (unset.local_steps, unset.local_epochs) == (None, 2)


def test_default_of_a_method_is_replaced_by_settings_and_options():
    assert only("fedprox").values["mu"] == 0.01
    assert only("moon").values["mu"] == 0.1
    assert only("fedprox:mu=2").values["mu"] == 2
    assert only("fedavg", learning_rate=0.3).training.learning_rate == 0.3
    assert only("fedavg:learning-rate=0.2", learning_rate=0.3).training.learning_rate == 0.2
    centralised = only("centralised").training
    assert (centralised.local_epochs, centralised.batch_size) == (1, 64)


def test_steps_replace_epochs_and_options_replace_settings():
    def chosen(text, **settings):
        made = only(text, **settings).training
        return made.local_steps, made.local_epochs, made.max_local_steps

    assert chosen("fedavg") == (None, None, None)
    assert chosen("cyclic") == (None, 5, 20)
    assert chosen("cyclic", local_epochs=1) == (None, 1, 20)
    # If a user sets the number of steps, max-steps does not limit it.
    assert chosen("cyclic:local-steps=30") == chosen("cyclic", local_steps=30) == (30, None, None)
    # An option of a method overrides the setting for all methods.
    assert chosen("cyclic:local-epochs=2", local_steps=5) == (None, 2, 20)
    assert chosen("fedavg:local-steps=7", local_epochs=1) == (7, None, None)


def test_schedule_has_its_phases_one_after_the_other():
    text = "cyclic:rounds=3,participants=2+fedprox"
    chosen = start(text, rounds=9, participants=4)
    assert [phase.label for phase in chosen.phases] == ["cyclic", "fedprox"]
    assert (chosen.rounds, chosen.phase_switch) == (12, 3)
    schedule = strategy(text, rounds=9, participants=4)
    assert type(schedule) is Schedule
    (cyclic, first), (fedprox, second) = schedule.phases
    assert (type(cyclic), type(fedprox), first, second) == (Cyclic, FedProx, 3, 9)
    assert (cyclic.participants, fedprox.participants) == (2, 4)
    # The client's side and the server's side agree on the phase of a round.
    for number, name in ((1, "cyclic"), (3, "cyclic"), (4, "fedprox"), (12, "fedprox")):
        phase_strategy, _ = schedule.phase(number)
        assert (phase_strategy.name, chosen.phase_of(number).label) == (name, name)


OTHER = {
    "variant": {"scaffold": "I", "fedmeta": "meta-sgd", "per-fedavg": "hf"},
    "resplit": False,
    **dict.fromkeys(("inner-steps", "episode-rounds"), 2),
    "local-epochs": 7,
    "max-local-steps": 9,
    "batch-size": 11,
    "server-steps": 13,
    "local-steps": 4,
    "aggregation": "krum",
    "meta-reduction": "mean",
}
"""Values that differ from the defaults; a setting that is not in this dict gets 0.321."""
FOUND_AS = {
    "feddyn-alpha": "alpha",
    "server-steps": "local_steps",
    "server-learning-rate": "learning_rate",
}


@pytest.mark.parametrize("name", TRAINED)
def test_every_option_of_a_method_reaches_its_strategy_or_client(name, federation, tmp_path):
    method = METHODS[name]
    keys = dict.fromkeys([*method.declared_options, *method.strategy_class.training_defaults])
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
    client = phase.client(tiny_model(), ClientData(federation.samples[0], None), state=state)
    assert type(client) is method.client_class
    for key, value in values.items():
        field = FOUND_AS.get(key, key.replace("-", "_"))
        refining = key in ("server-steps", "server-learning-rate")
        heeded = [training] if method.trains_locally else []
        holders = [refined.training] if refining else [inner, client, *heeded]
        arrived = [getattr(holder, field) for holder in holders if hasattr(holder, field)]
        assert arrived, key
        assert all(option_value == value for option_value in arrived), key


def test_centralised_training_uses_the_samples_of_the_clients(federation):
    pools = {
        name: ServerData(tiny_model(), federation.samples[n])
        for n, name in enumerate(("server", "clients", "both"))
    }
    for name, pool in (("centralised", "clients"), ("centralised-hybrid", "both")):
        centralised = strategy(name, pools.__getitem__, local_epochs=1)
        assert issubclass(type(centralised), Centralised)
        assert (centralised.server, centralised.training.local_epochs) == (pools[pool], 1)
        assert METHODS[name].uses_server_data == (pool == "both")


def test_task_is_run_by_the_task_method():
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
    assert build(Settings()).stages[-1].how.trained.label == "fedavg"


def client(settings, data, **config):
    """Return the first client of a study; every population has one client, with `data`."""
    study = build(settings)
    only = Population((0, 1, 2), (data,))
    vars(study.stages[0].clients)["population"] = only
    for stage in study.stages[1:]:
        stage.tasks._made[stage.number] = only
    return study.client(None, 0, {"server-round": 1, "folder": "run/starts/a", **config})


def test_tasks_have_a_separate_local_training(federation):
    training = {
        "local_epochs": 2, "max_local_steps": 9, "batch_size": 4, "learning_rate": 0.3,
        "schedule": "exponential:factor=0.9", "momentum": 0.5, "weight_decay": 0.1,
        "clip_norm": 3.0,
    }  # fmt: skip
    settings = Settings(task_local_steps=8, task_learning_rate=0.7, method="fedavg", **training)
    data = ClientData(federation.samples[0], federation.samples[1])
    of_pretraining = client(settings, data, population="pretrain", stage="starts/fedavg")
    assert of_pretraining.training == TrainingOptions(**training)
    of_task = client(settings, data, population="task-0", stage="tasks/0/fedavg")
    assert of_task.training == TrainingOptions(
        rounds=50, participants=10, local_steps=8, batch_size=4, learning_rate=0.7
    )
