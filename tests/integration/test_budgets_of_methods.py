"""What a round of every method costs, against numbers worked out by hand.

Four clients hold 10, 14, 23 and 31 samples (19.5 in the mean), two take part, and the server holds
33. Local training is five steps of eight samples at rate 0.1, so that epochs are batches of

    8 2,   8 6,   8 8 7,   8 8 8 7   and, at the server, where one sample joins the last,   8 8 8 9.

Five steps are on 28, 36, 39 and 39 samples: 35.5 in the mean, 71 for two. Support sets hold 8, 11,
18 and 24 (15.25), query sets 2, 3, 5 and 7 (4.25); five steps on support sets are on 40, 30, 34 and
40 samples (36).
"""

import itertools
import math
from dataclasses import replace

import pytest

from coprefl_flwr.federation import Budget, Exchange, Mean, RoundStrategy, Work
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.methods import METHODS, PERSONALISED, PRETRAINING
from coprefl_flwr.strategies import Cyclic, FedAvg, Schedule
from tests.common.federation import SIZES

TRAINING = LocalTraining(local_steps=5, batch_size=8, learning_rate=0.1)


class Held:
    """Stands for the server's data: only their number counts."""

    precision = "float32"

    def __len__(self):
        return 33


def work(training=TRAINING, **options):
    return Work(2, SIZES, training, {"support-fraction": 0.8, **options})


def budget(name, training=TRAINING, **options):
    """Return the budget of a built-in method with some of its own options."""
    method = METHODS[name]
    role = PRETRAINING if PRETRAINING in method.roles else PERSONALISED
    chosen = dict.fromkeys(method.options) | method.defaults(role) | options
    more = {"head": None} if "head" in method.roles else {}
    strategy = method.strategy(chosen, training, lambda whose: Held(), participants=2, **more)
    return strategy.budget(work(training))


def rounds(found, number=1, training=TRAINING, first=1):
    """Return the summed step sizes of some rounds."""
    return list(itertools.islice(found.step_sizes(training, first), number))


BY_HAND = {
    # FedAvg: 5 x 0.1.
    "fedavg": ({}, 0.5, 71),
    "fedprox": ({}, 0.5, 71),
    "feddyn": ({}, 0.5, 71),
    "moon": ({}, 0.5, 71),
    "qffl": ({"q": 3.0}, 0.5, 71),
    # The first of its rounds: behind it the velocity goes on, see below.
    "fedavgm": ({"global-learning-rate": 2.0}, 1.0, 71),
    "fedadam": ({}, math.nan, 71),
    "fedyogi": ({}, math.nan, 71),
    # 2 x 5 x 0.1.
    "scaffold": ({"global-learning-rate": 2.0}, 1.0, 71),
    # 5 x 0.1 + zeta gamma |m| = 0.02 x 0.25 x 2; 2 x (36 + 4.25).
    "coprefl": ({"gamma": 0.25, "meta-learning-rate": 0.02}, 0.51, 80.5),
    # 5 x 0.1 + zeta gamma = 0.02 x 0.25: the mean of the losses, not their sum.
    "coprefl-std": ({"gamma": 0.25, "meta-learning-rate": 0.02}, 0.505, 80.5),
    # The same meta step as coprefl's; 71 + 33.
    "coprefl-hybrid": ({"gamma": 0.25, "meta-learning-rate": 0.02}, 0.51, 104),
    # Two clients one after the other.
    "cyclic": ({}, 1.0, 71),
    # Here the five steps are on 8 + 8 + 8 + 9 + 8 samples.
    "centralised": ({}, 0.5, 41),
    "centralised-hybrid": ({}, 0.5, 41),
    # beta; 2 x (3 x 2 x 15.25 + 4.25).
    "fedmeta": ({"inner-steps": 2, "meta-learning-rate": 0.03}, 0.03, 191.5),
    # Ten batches are on 50, 70, 77 and 78 samples.
    "per-fedavg": ({}, 0.5, 137.5),
    # eta of w on each of five batches; 2 x 5 x 35.5.
    "pfedme": ({"inner-steps": 5, "meta-learning-rate": 0.005}, 0.025, 355),
    # Head and body.
    "fedrep": ({}, 0.5, 142),
    "fedpcl": ({}, 0.0, 71),
    "fedproto": ({}, 0.0, 71),
    "solo": ({}, 0.0, 71),
    "ncm": ({}, 0.0, 0),
    "ridge": ({}, 0.0, 0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_round_of_every_method_by_hand(name):
    options, step_size, gradients = BY_HAND[name]
    found = budget(name, **options)
    assert rounds(found) == pytest.approx([step_size], nan_ok=True)
    assert found.gradients == pytest.approx(gradients)


@pytest.mark.parametrize(
    ("name", "forwards"),
    # 2 x 19.5, all that two clients hold; MOON's two other models see every step's 71.
    [("qffl", 39), ("fedproto", 39), ("fedpcl", 39), ("ncm", 39), ("ridge", 39), ("moon", 142)],
)
def test_losses_features_and_prototypes_are_counted_apart(name, forwards):
    assert budget(name).forwards == forwards
    others = BY_HAND.keys() - {"qffl", "fedproto", "fedpcl", "ncm", "ridge", "moon"}
    assert {budget(other, **BY_HAND[other][0]).forwards for other in others} == {0}


def test_no_method_is_left_out():
    plain = {name for name, method in METHODS.items() if not method.refined}
    assert plain == BY_HAND.keys()


@pytest.mark.parametrize(
    ("name", "options", "step_size", "gradients"),
    [
        # Each has five steps of 0.01 on 41 of the server's samples besides.
        ("fedavg-refined", {}, 0.55, 112),
        ("coprefl-sgd", {"gamma": 0.25, "meta-learning-rate": 0.02}, 0.56, 121.5),
        ("cyclic-refined", {}, 1.05, 112),
        ("fedmeta-refined", {"inner-steps": 2, "meta-learning-rate": 0.03}, 0.08, 232.5),
    ],
)
def test_refinement_on_the_servers_data_comes_on_top(name, options, step_size, gradients):
    found = budget(name, **{"server-steps": 5, "server-learning-rate": 0.01, **options})
    assert rounds(found) == pytest.approx([step_size])
    assert found.gradients == pytest.approx(gradients)


def test_variants_compute_more_or_fewer_gradients():
    # The full gradient on 19.5 samples of each: 71 + 39.
    assert budget("scaffold", variant="I").gradients == 110
    # Without the second order: 2 x (2 x 15.25 + 4.25).
    assert budget("fedmeta", variant="fomaml", **{"inner-steps": 2}).gradients == 69.5
    thrice = budget("fedmeta", **{"local-steps": 3, "inner-steps": 2, "meta-learning-rate": 0.03})
    assert rounds(thrice) == pytest.approx([0.09])
    assert thrice.gradients == 574.5
    assert budget("fedmeta", variant="meta-sgd", **{"inner-steps": 2}).gradients == 191.5
    # 15 batches are on 78, 106, 115 and 117 samples; every third, on 28, 36, 35 and 39, twice.
    assert budget("per-fedavg", variant="hf").gradients == 277


def test_epochs_are_as_long_as_a_clients_data():
    two = replace(TRAINING, local_steps=None, local_epochs=2)
    found = budget("fedavg", two)  # 4, 4, 6 and 8 steps.
    assert (rounds(found, training=two), found.gradients) == ([pytest.approx(0.55)], 78)
    # Of support sets: 2, 4, 6 and 6 steps, and 2 x (2 x 15.25 + 4.25).
    found = budget("coprefl", two, gamma=0.0)
    assert (rounds(found, training=two), found.gradients) == ([pytest.approx(0.45)], 69.5)
    at_most = replace(two, max_steps=5)  # 4, 4, 5 and 5 of them.
    assert rounds(budget("fedavg", at_most), training=at_most) == [pytest.approx(0.45)]


def test_the_meta_step_has_the_printed_ratio():
    """At eta = zeta = 1e-3 and 20 participants it is 4 gamma times five local steps."""
    training = LocalTraining(local_steps=5, learning_rate=1e-3)
    local = training.step_sum(100) * 1e-3
    method = METHODS["coprefl"]
    for gamma in (0.0, 0.25, 1.0):
        options = {**method.defaults(PRETRAINING), "gamma": gamma, "meta-learning-rate": 1e-3}
        strategy = method.strategy(options, training, participants=20)
        found = strategy.budget(Work(20, [100] * 50, training, {"support-fraction": 0.8}))
        assert found.at_server / local == pytest.approx(4 * gamma)


def test_rates_decay_and_velocities_go_on():
    half = replace(TRAINING, learning_rate_decay=0.5)
    assert rounds(budget("fedavg"), 3, half) == pytest.approx([0.5, 0.25, 0.125])
    assert rounds(budget("fedavg"), 2, half, first=2) == pytest.approx([0.25, 0.125])
    # The meta step does not decay: 0.5 gamma 0.02 x 2 = 0.02.
    meta = budget("coprefl", **{"meta-learning-rate": 0.02, "gamma": 0.5})
    assert rounds(meta, 2, half) == pytest.approx([0.52, 0.27])
    velocity = budget("fedavgm", **{"server-momentum": 0.5})
    assert rounds(velocity, 3) == pytest.approx([0.5, 0.75, 0.875])
    assert rounds(velocity, 3, half) == pytest.approx([0.5, 0.5, 0.375])


def test_momentum_makes_local_steps_longer():
    """Five steps of momentum 0.5 are 1 + 1.5 + 1.75 + 1.875 + 1.9375."""
    training = replace(TRAINING, momentum=0.5)
    assert rounds(budget("fedavg", training), training=training) == pytest.approx([0.80625])


class Mine(RoundStrategy):
    """A method of a user's own, which says nothing of its budget."""

    def round(self, ctx, arrays):
        replies = yield Exchange("train", arrays, ctx.sample(), Mean("num-examples"))
        return replies.arrays, {}


def test_a_users_own_method_has_that_of_fedavg_where_it_trains_as_set():
    assert Mine().budget(work()) == FedAvg().budget(work()) == Budget(5, 71)


def test_what_trains_otherwise_and_says_nothing_is_not_known():
    class Other(Mine):
        actions = ("train.query",)

    for strategy in (Other(), Schedule([(Cyclic(), 1), (FedAvg(), 1)])):
        found = strategy.budget(work())
        assert math.isnan(found.step_sum)
        assert math.isnan(found.gradients)
