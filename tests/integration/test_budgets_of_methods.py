"""The costs of a round of every method, compared with numbers computed by hand.

Four clients have 10, 14, 23 and 31 samples (mean 19.5). Two clients take part in a round. The
server has 33 samples. Local training is five steps with batches of eight samples at learning rate
0.1. The batches of an epoch have these sizes at the four clients and at the server:

    8 2,   8 6,   8 8 7,   8 8 8 7   and   8 8 8 9.

At the server, the one remaining sample is added to the last batch.

Five steps process 28, 36, 39 and 39 samples at the clients: the mean is 35.5, and the sum for two
clients is 71. Support sets have 8, 11, 18 and 24 samples (mean 15.25), and query sets have 2, 3, 5
and 7 samples (mean 4.25). Five steps on support sets process 40, 30, 34 and 40 samples (mean 36).
"""

import itertools
import math
from dataclasses import replace

import pytest

from coprefl_flwr.federation import Budget, Exchange, Mean, RoundStrategy, Work
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.methods import PERSONALISED, PRETRAINING
from coprefl_flwr.strategies import Cyclic, FedAvg, Schedule
from coprefl_flwr.studies.known_methods import METHODS
from tests.common.federation import SIZES

TRAINING = LocalTraining(local_steps=5, batch_size=8, learning_rate=0.1)


class ServerSamples:
    """A replacement for the server's data, of which only the number of samples matters."""

    precision, loss = "float32", TRAINING.loss

    def __len__(self):
        return 33


def work(training=TRAINING, **options):
    return Work(2, SIZES, training, {"support-fraction": 0.8, **options})


def budget(name, training=TRAINING, **options):
    """Return the budget of a built-in method with these values of its options."""
    method = METHODS[name]
    if PRETRAINING not in method.roles:
        method = replace(method, role=PERSONALISED)
    more = {"head": None} if "head" in method.roles else {}
    strategy = method.having(options).strategy(
        lambda whose: ServerSamples(), training, participants=2, **more
    )
    return strategy.budget(work(training))


def rounds(found, number=1, training=TRAINING, first=1):
    """Return the summed step sizes of `number` rounds, from round `first` on."""
    return list(itertools.islice(found.step_sizes(training, first), number))


BY_HAND = {
    # FedAvg: 5 x 0.1.
    "fedavg": ({}, 0.5, 71),
    "fedprox": ({}, 0.5, 71),
    "fedbabu": ({}, 0.5, 71),
    "fedetf": ({}, 0.5, 71),
    # The term h / alpha repeats steps of earlier rounds.
    "feddyn": ({}, math.nan, 71),
    "moon": ({}, 0.5, 71),
    # The size of the step depends on the losses; q = 0 is FedAvg.
    "qffl": ({"q": 3.0}, math.nan, 71),
    # The first round; in later rounds the velocity adds to the step, see below.
    "fedavgm": ({"global-learning-rate": 2.0}, 1.0, 71),
    "fedadam": ({}, math.nan, 71),
    "fedyogi": ({}, math.nan, 71),
    # 2 x 5 x 0.1.
    "scaffold": ({"global-learning-rate": 2.0}, 1.0, 71),
    # 5 x 0.1 + zeta gamma |m|, with zeta gamma |m| = 0.02 x 0.25 x 2; 2 x (36 + 4.25).
    "coprefl": ({"gamma": 0.25, "meta-learning-rate": 0.02}, 0.51, 80.5),
    # 5 x 0.1 + zeta gamma, with zeta gamma = 0.02 x 0.25: the mean of the losses, not their sum.
    "coprefl-std": ({"gamma": 0.25, "meta-learning-rate": 0.02}, 0.505, 80.5),
    # The same meta step as in coprefl; 71 + 33.
    "coprefl-hybrid": ({"gamma": 0.25, "meta-learning-rate": 0.02}, 0.51, 104),
    # Two clients in sequence: 2 x 0.5.
    "cyclic": ({}, 1.0, 71),
    # The five steps process 8 + 8 + 8 + 9 + 8 samples of the server.
    "centralised": ({}, 0.5, 41),
    "centralised-hybrid": ({}, 0.5, 41),
    # beta = 0.03; 2 x (3 x 2 x 15.25 + 4.25).
    "fedmeta": ({"inner-steps": 2, "meta-learning-rate": 0.03}, 0.03, 191.5),
    # Query sets of 2, 3, 5 and 7 samples, each one batch: beta x 5 = 0.15. Two simulated rounds,
    # with coprefl's batches: 2 x (2 x 36 + 5 x 4.25).
    "frl": ({"episode-rounds": 2, "meta-learning-rate": 0.03}, 0.15, 186.5),
    # Ten batches have 50, 70, 77 and 78 samples in all: 2 x 68.75.
    "per-fedavg": ({}, 0.5, 137.5),
    # w takes a step of eta = 0.005 on each of five batches; 2 x 5 x 35.5.
    "pfedme": ({"inner-steps": 5, "meta-learning-rate": 0.005}, 0.025, 355),
    # The head and the body are trained one after the other: 2 x 71.
    "fedrep": ({}, 0.5, 142),
    "fedpcl": ({}, 0.0, 71),
    "fedproto": ({}, 0.0, 71),
    "solo": ({}, 0.0, 71),
    "fedcgs": ({}, 0.0, 0),
    "fedcof": ({}, 0.0, 0),
    "ncm": ({}, 0.0, 0),
    "ridge": ({}, 0.0, 0),
}


FORWARDS = ("qffl", "fedproto", "fedpcl", "fedcgs", "fedcof", "ncm", "ridge")
"""The methods whose clients process their samples once more than for the steps."""


@pytest.mark.parametrize("name", BY_HAND)
def test_budget_of_a_round_of_every_method_by_hand(name):
    options, step_size, gradients = BY_HAND[name]
    found = budget(name, **options)
    assert rounds(found) == pytest.approx([step_size], nan_ok=True)
    assert found.gradients == pytest.approx(gradients)


@pytest.mark.parametrize(
    ("name", "forwards"),
    # 2 x 19.5 is the mean number of samples of two clients. In MOON, two other models process the
    # 71 samples of the steps. FRL computes prototypes of both support sets in three rounds.
    [("moon", 142), ("frl", 3 * 2 * 15.25), *((name, 39) for name in FORWARDS)],
)
def test_forward_passes_without_gradients_are_counted_separately(name, forwards):
    assert budget(name).forwards == forwards
    others = BY_HAND.keys() - {"moon", "frl", *FORWARDS}
    assert {budget(other, **BY_HAND[other][0]).forwards for other in others} == {0}


def test_every_method_has_a_budget_by_hand():
    plain = {name for name, method in METHODS.items() if not method.refined}
    assert plain == BY_HAND.keys()


@pytest.mark.parametrize(
    ("name", "options", "step_size", "gradients"),
    [
        # Each method also takes five steps of 0.01 on 41 samples of the server.
        ("fedavg-refined", {}, 0.55, 112),
        ("coprefl-sgd", {"gamma": 0.25, "meta-learning-rate": 0.02}, 0.56, 121.5),
        ("cyclic-refined", {}, 1.05, 112),
        ("fedmeta-refined", {"inner-steps": 2, "meta-learning-rate": 0.03}, 0.08, 232.5),
    ],
)
def test_refinement_adds_the_steps_of_the_server(name, options, step_size, gradients):
    found = budget(name, **{"server-steps": 5, "server-learning-rate": 0.01, **options})
    assert rounds(found) == pytest.approx([step_size])
    assert found.gradients == pytest.approx(gradients)


def test_variants_have_their_numbers_of_gradients():
    # Each client also computes a full gradient, on 19.5 samples: 71 + 39.
    assert budget("scaffold", variant="I").gradients == 110
    # Without second-order terms: 2 x (2 x 15.25 + 4.25).
    assert budget("fedmeta", variant="fomaml", **{"inner-steps": 2}).gradients == 69.5
    thrice = budget("fedmeta", **{"local-steps": 3, "inner-steps": 2, "meta-learning-rate": 0.03})
    assert rounds(thrice) == pytest.approx([0.09])
    assert thrice.gradients == 574.5
    assert budget("fedmeta", variant="meta-sgd", **{"inner-steps": 2}).gradients == 191.5
    # 15 batches have 78, 106, 115 and 117 samples in all. Every third batch counts twice: these
    # batches have 28, 36, 35 and 39 samples.
    assert budget("per-fedavg", variant="hf").gradients == 277


def test_budget_of_epochs_depends_on_the_sizes_of_clients():
    two = replace(TRAINING, local_steps=None, local_epochs=2)
    found = budget("fedavg", two)  # 4, 4, 6 and 8 steps.
    assert (rounds(found, training=two), found.gradients) == ([pytest.approx(0.55)], 78)
    # On support sets: 2, 4, 6 and 6 steps, and 2 x (2 x 15.25 + 4.25).
    found = budget("coprefl", two, gamma=0.0)
    assert (rounds(found, training=two), found.gradients) == ([pytest.approx(0.45)], 69.5)
    at_most = replace(two, max_local_steps=5)  # 4, 4, 5 and 5 steps.
    assert rounds(budget("fedavg", at_most), training=at_most) == [pytest.approx(0.45)]


def test_schedule_and_server_momentum_change_step_sizes():
    half = replace(TRAINING, schedule="exponential:factor=0.5")
    assert rounds(budget("fedavg"), 3, half) == pytest.approx([0.5, 0.25, 0.125])
    assert rounds(budget("fedavg"), 2, half, first=2) == pytest.approx([0.25, 0.125])
    # The meta step does not decay: gamma zeta |m| = 0.5 x 0.02 x 2 = 0.02.
    meta = budget("coprefl", **{"meta-learning-rate": 0.02, "gamma": 0.5})
    assert rounds(meta, 2, half) == pytest.approx([0.52, 0.27])
    velocity = budget("fedavgm", **{"server-momentum": 0.5})
    assert rounds(velocity, 3) == pytest.approx([0.5, 0.75, 0.875])
    assert rounds(velocity, 3, half) == pytest.approx([0.5, 0.5, 0.375])


def test_momentum_increases_local_step_sizes():
    """Five steps with momentum 0.5 have the sizes 1 + 1.5 + 1.75 + 1.875 + 1.9375."""
    training = replace(TRAINING, momentum=0.5)
    assert rounds(budget("fedavg", training), training=training) == pytest.approx([0.80625])


def test_rate_that_falls_to_0_within_a_round_sums_to_half():
    """FedSWA: the rates of five steps are 1, 0.8, 0.6, 0.4 and 0.2 times the first."""
    falling = replace(TRAINING, schedule="linear:over=steps")
    assert rounds(budget("fedavg", falling), training=falling) == pytest.approx([0.3])
    twice = replace(falling, learning_rate=0.2)
    assert rounds(budget("fedavg", twice), training=twice) == pytest.approx([0.6])
    # With momentum 0.5: 1 x 1 + 0.8 x 1.5 + 0.6 x 1.75 + 0.4 x 1.875 + 0.2 x 1.9375.
    heavy = replace(falling, momentum=0.5)
    assert rounds(budget("fedavg", heavy), training=heavy) == pytest.approx([0.43875])


class Mine(RoundStrategy):
    """A user's own method that does not define a budget."""

    def round(self, ctx, arrays):
        replies = yield Exchange("train", arrays, ctx.sample(), Mean("num-examples"))
        return replies.arrays, {}


def test_users_method_without_a_budget_has_that_of_fedavg():
    assert Mine().budget(work()) == FedAvg().budget(work()) == Budget(5, 71)


def test_budget_of_other_actions_and_of_schedules_is_nan():
    class Other(Mine):
        actions = ("train.query",)

    for strategy in (Other(), Schedule([(Cyclic(), 1), (FedAvg(), 1)])):
        found = strategy.budget(work())
        assert math.isnan(found.step_sum)
        assert math.isnan(found.gradients)
