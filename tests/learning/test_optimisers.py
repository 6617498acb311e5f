"""Optimisers, schedules of the rate and accumulated gradients, compared with formulas by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.clients.qffl import QFFLClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.optimisers import Optimiser, RateSchedule
from coprefl_flwr.learning.training import LocalTraining, local_sgd
from coprefl_flwr.models import model_arrays
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.strategies import QFFL, SCAFFOLD
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.training_options import TrainingOptions
from tests.common.clients import CONFIG
from tests.common.federation import CPU
from tests.common.networks import CLASSES, tiny_model
from tests.common.recipes import write_recipe


class Linear(nn.Module):
    """A float64 model of images, which starts at zero."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(CLASSES, 16, dtype=torch.float64))

    def forward(self, images):
        return images.flatten(1).double() @ self.weight.T


def gradient(weight, samples):
    """Return the gradient of the mean cross-entropy on all samples, in NumPy."""
    inputs, targets = samples.batch(slice(None), CPU)
    inputs, targets = inputs.flatten(1).double().numpy(), targets.numpy()
    share = np.exp(inputs @ weight.T)
    share /= share.sum(axis=1, keepdims=True)
    return (share - np.eye(CLASSES)[targets]).T @ inputs / len(targets)


def trained(samples, training, server_round=1, start=None):
    """Return the weights of `Linear` after one round of local training."""
    model = Linear()
    if start is not None:
        model.weight.data = torch.tensor(start)
    rng = seeds.generator("key")
    local_sgd(model, samples, training, server_round=server_round, rng=rng, device=CPU)
    return model.weight.detach().numpy()


def test_adamw_at_clients_by_hand(federation):
    """Three full batches a round. In the second round both moments begin at zero again."""
    samples, rate, decay = federation.samples[1], 0.05, 0.1
    training = LocalTraining(
        local_steps=3,
        batch_size=1000,
        learning_rate=rate,
        optimiser="AdamW:weight-decay=0.1,betas=0.8&0.9",
    )
    client = TorchClient(Linear(), samples, training=training, device=CPU)
    w = found = np.zeros((CLASSES, 16))
    for server_round in (1, 2):
        m = v = 0
        for step in (1, 2, 3):
            g = gradient(w, samples)
            m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
            moved = (m / (1 - 0.8**step)) / (np.sqrt(v / (1 - 0.9**step)) + 1e-8)
            w = w * (1 - rate * decay) - rate * moved
        (found,), *_ = client.fit([found], {**CONFIG, "server-round": server_round})
        np.testing.assert_allclose(found, w, rtol=1e-9, atol=1e-12)


SCHEDULES = {
    "constant": [1, 1, 1, 1],
    "constant:warm-up=2": [1 / 2, 1, 1, 1],
    "exponential:factor=0.5": [1, 0.5, 0.25, 0.125],
    "step:factor=0.1,every=2": [1, 1, 0.1, 0.1],
    "cosine:length=2": [1, 0.5, 0, 0],
    "cosine:length=4,last=0.2": [1, 0.2 + 0.4 * (1 + math.sqrt(0.5)), 0.6, 0.6 - 0.4 * 0.5**0.5],
    "linear:length=2": [1, 0.5, 0, 0],
    "linear:length=4,last=0.2": [1, 0.8, 0.6, 0.4],
    "cosine:length=4,warm-up=4": [1 / 4, 0.25 * (1 + math.sqrt(0.5)), 3 / 8, 0.5 - 0.5**1.5],
}


@pytest.mark.parametrize("text", SCHEDULES)
def test_rates_of_rounds_by_hand(text):
    training = LocalTraining(learning_rate=0.2, schedule=text)
    found = [training.rate(server_round) for server_round in (1, 2, 3, 4)]
    assert found == pytest.approx([0.2 * factor for factor in SCHEDULES[text]], abs=1e-15)


@pytest.mark.parametrize("text", SCHEDULES)
def test_rates_of_local_steps_by_hand(federation, text):
    """Each of the four steps of a later round has its own rate."""
    own = dict(RateSchedule.read(text).options)
    schedule = {"name": text.partition(":")[0], **own, "over": "steps"}
    training = LocalTraining(
        local_steps=4, batch_size=1000, learning_rate=0.2, schedule=RateSchedule.read(schedule)
    )
    assert training.rate(7) == 0.2
    w, samples = np.zeros((CLASSES, 16)), federation.samples[2]
    for factor in SCHEDULES[text]:
        w = w - 0.2 * factor * gradient(w, samples)
    np.testing.assert_allclose(trained(samples, training, 7), w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_schedule_over_steps_has_the_length_of_the_round(name):
    schedule = RateSchedule.read(f"{name}:over=steps")
    assert [schedule.factor(t, 4) for t in (0, 2, 4)] == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ({"batch_size": 3, "accumulation": 4, "local_steps": 5}, {"batch_size": 12}),
        ({"batch_size": 3, "accumulation": 4, "local_epochs": 5}, {"batch_size": 12}),
        # Batches of 9, 9 and 6 samples.
        ({"batch_size": 9, "accumulation": 3, "local_steps": 5}, {"batch_size": 24}),
    ],
)
def test_accumulated_batches_are_one_larger_batch(federation, small, large):
    samples = federation.samples[3].take(np.arange(24))
    steps = {"local_steps": 5} if "local_steps" in small else {"local_epochs": 5}
    accumulated = LocalTraining(learning_rate=0.3, momentum=0.5, **small)
    whole = LocalTraining(learning_rate=0.3, momentum=0.5, **large, **steps)
    assert accumulated.steps(24) == whole.steps(24)
    expected = trained(samples, whole)
    np.testing.assert_allclose(trained(samples, accumulated), expected, rtol=1e-12, atol=1e-14)
    assert abs(expected).max() > 0.1


def test_accumulation_counts_all_batches_of_a_budget():
    training = LocalTraining(local_steps=2, batch_size=4, accumulation=3)
    assert training.batch_sizes(10, 6) == [4, 4, 2, 4, 4, 2]
    assert training.step_sum(10) == 2


def test_other_optimisers_begin_at_the_rate_of_torch():
    assert LocalTraining().rate(1) == 0.05
    assert LocalTraining(optimiser="sgd").rate(1) == 0.05
    assert LocalTraining(optimiser="RMSprop").rate(1) == 0.01
    assert LocalTraining(optimiser="adadelta").rate(1) == 1.0


REFUSED = {
    "adamv": "unknown optimiser 'adamv': did you mean 'adam",
    "lbfgs": "unknown optimiser 'lbfgs': ",
    "sparseadam": "unknown optimiser 'sparseadam'",
}


@pytest.mark.parametrize("text", REFUSED)
def test_unknown_optimisers_are_refused(text):
    with pytest.raises(SettingsError, match=f"^{REFUSED[text]}"):
        LocalTraining(optimiser=text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimiser": "adamw:betas=1&2"}, "optimiser = adamw:betas=1&2: Invalid beta"),
        ({"optimiser": "adam:lr=0.1"}, "optimiser = adam:lr=0.1: .*multiple values .*'lr'"),
        (
            {"optimiser": "adam:weight-decay=0.1", "weight_decay": 0.2},
            "optimiser = adam:weight-decay=0.1: .*multiple values .*'weight_decay'",
        ),
        ({"optimiser": "adamw:weigth-decay=0.1"}, "unexpected keyword argument 'weigth_decay'"),
        ({"optimiser": "muon"}, "optimiser = muon: Muon only supports 2D parameters"),
        ({"optimiser": "adam", "momentum": 0.5}, "optimiser = adam: .*argument 'momentum'"),
    ],
)
def test_values_that_torch_refuses_are_refused_before_any_work(federation, options, message):
    with pytest.raises(SettingsError, match=message) as caught:
        LocalTraining(**options).check(tiny_model(), federation.samples[0])
    assert "\n" not in str(caught.value)


def test_momentum_is_an_argument_of_every_optimiser_that_has_one():
    training = LocalTraining(optimiser="rmsprop", momentum=0.5)
    (group,) = training.new_optimiser(tiny_model(), 1).param_groups
    assert group["momentum"] == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "unknown schedule 'cosin': did you mean 'cosine'"),
        ("cosine:lenght=3", "schedule = cosine:lenght=3: .*unexpected keyword argument 'lenght'"),
        ("cosine", r"schedule = cosine: .*missing 1 required positional argument: 'length'"),
        ("step:factor=0.5", r"schedule = step:factor=0.5: .*argument: 'every'"),
        ("step:factor=0.5,every=0", "schedule = step:factor=0.5,every=0: .*zero"),
        ("exponential:factor=2", "schedule = exponential:factor=2: .*"),
        ("exponential:factor=fast", "schedule = exponential:factor=fast: TypeError"),
        ("cosine:length=5,last=2", "last=2: factors between 0 and 1 are needed"),
        ("constant:over=epochs", "over=epochs: .* over rounds or steps"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(text, message):
    with pytest.raises(SettingsError, match=message) as caught:
        RateSchedule.read(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"optimiser": "adam"},
        {"optimiser": "sgd:nesterov=true,momentum=0.9"},
        {"schedule": "cosine:over=steps"},
    ],
)
def test_algebra_of_sgd_refuses_other_steps(federation, options):
    training = LocalTraining(local_steps=2, **options)
    assert math.isnan(training.step_sum(10)) == ("optimiser" in options)
    for strategy, own in ((SCAFFOLD, {"variant": "II"}), (QFFL, {"q": 1.0})):
        with pytest.raises(SettingsError, match="from the steps; use sgd, at one rate in a round"):
            strategy.check_training(own, training)
    SCAFFOLD.check_training({"variant": "I"}, training)
    QFFL.check_training({"q": 0.0}, training)
    client = QFFLClient(tiny_model(), federation.samples[0], training=training, device=CPU)
    with pytest.raises(SettingsError, match="qffl computes gradients from the steps"):
        client.fit(list(model_arrays(client.model).values()), {**CONFIG, "q": 1.0})


def test_settings_are_mappings_in_a_recipe_and_texts_in_run_config(tmp_path):
    settings = {
        "optimiser": {"name": "adamw", "weight-decay": 0.01, "betas": [0.8, 0.9], "eps": "1e-6"},
        "schedule": {"name": "cosine", "length": 50, "warm-up": 5},
        "task-optimiser": {"name": "RAdam"},
    }
    slow = {"method": "fedavg", "optimiser": {"name": "sgd"}, "schedule": "exponential:factor=0.5"}
    content = {"title": "T", "settings": settings, "methods": ["fedavg", {"slow": slow}]}
    recipe = read_recipe(write_recipe(tmp_path / "recipe.yaml", content))
    (first, second) = table_rows(recipe)
    run = Run.of(first.combination, first.trials()[0].method, 0)
    texts = {
        "optimiser": "adamw:weight-decay=0.01,betas=0.8&0.9,eps=1e-06",
        "schedule": "cosine:length=50,warm-up=5",
        "task-optimiser": "radam",
    }
    written = run.settings.to_config()
    assert {key: written[key] for key in texts} == texts
    assert Settings.from_config(written) == run.settings
    adamw = run.study.stages[0].phases[0].training.chosen_optimiser
    assert adamw.arguments == {"weight_decay": 0.01, "betas": (0.8, 0.9), "eps": 1e-6}
    run = Run.of(second.combination, second.trials()[0].method, 0)
    slow = run.study.stages[0].phases[0].training
    assert (slow.optimiser, slow.rate(3)) == (Optimiser("sgd"), 0.0125)


def test_new_options_leave_stored_keys_at_their_defaults():
    """An exponential schedule alone is stored as the decay that was a setting before."""

    def identity(**options):
        method = Method.parse("fedavg").with_training("pretraining", TrainingOptions(**options))
        return method.identity()

    default = identity()
    assert default["learning-rate-decay"] == 1.0
    new = {"optimiser", "schedule", "accumulation", "augment"}
    assert not new & default.keys()
    decayed = identity(schedule="exponential:factor=0.998")
    assert decayed == {**default, "learning-rate-decay": 0.998}
    changed = identity(schedule="exponential:factor=0.998,warm-up=2", optimiser="adam")
    assert changed["schedule"] == "exponential:factor=0.998,warm-up=2"
    assert (changed["optimiser"], changed["learning-rate"]) == ("adam", 0.001)
    assert replace(TrainingOptions(), accumulation=2) != TrainingOptions()
