"""Robust aggregation: rounds by hand, on any nodes and under attack, and methods that refuse it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.client import NumPyClient
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from coprefl_flwr import seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.client_app import app
from coprefl_flwr.clients import CoPreFLClient, TorchClient, client_app
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Chain
from coprefl_flwr.federation.robust import AGGREGATIONS
from coprefl_flwr.federation.transport import Transport
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import METHODS
from coprefl_flwr.report.frames import read_rows
from coprefl_flwr.strategies import (
    SCAFFOLD,
    CoPreFL,
    CoPreFLStd,
    Cyclic,
    Exchange,
    FedAvg,
    FedYogi,
    RoundStrategy,
    Schedule,
)
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from tests.common.by_hand import assert_equal, descend, is_statistic, loaded, loss_of, run_on
from tests.common.federation import SIZES, Federation
from tests.common.runs import run_of

RULES = AGGREGATIONS[1:]
SHARE = 0.25
"""The tolerated share is one of four clients. For Krum, which would need five clients, it is 0."""


def share(rule):
    return 0.0 if "krum" in rule else SHARE


def combined(rule, each, weights):
    """Return the result of a rule for four clients' updates, which are vectors, and weights."""
    each, ordered = np.array(each), np.sort(weights)
    if rule == "median":
        return np.sort(each, axis=0)[1:3].mean(axis=0)
    if rule == "trimmed-mean":
        return np.sort(each, axis=0)[1:3].mean(axis=0)
    if rule == "norm-clipping":
        lengths = [np.sqrt((one**2).sum()) for one in each]
        middle = np.sort(lengths)[1:3].mean()
        each = [one * min(1, middle / n) for one, n in zip(each, lengths, strict=True)]
        return np.average(each, axis=0, weights=np.clip(weights, ordered[1], ordered[2]))
    if rule == "multi-krum":  # It keeps all four clients if none is an attacker.
        return np.average(each, axis=0, weights=weights)
    squares = [sorted(((one - other) ** 2).sum() for other in each) for one in each]
    return each[np.argmin([sum(one[1:3]) for one in squares])]


def vector(arrays, names):
    return np.concatenate([np.asarray(arrays[name]).ravel() for name in names])


def apart(moved, start, names):
    """Split a vector into arrays with the shapes in `start`: the inverse of `vector`."""
    ends = np.cumsum([start[name].size for name in names])
    pieces = np.split(moved, ends[:-1])
    return {n: one.reshape(start[n].shape) for n, one in zip(names, pieces, strict=True)}


def aggregated(rule, states, start, weights):
    """Return the robust model: weights by the rule, statistics by the median of four clients."""
    names = [name for name in start if not is_statistic(name)]
    updates = [vector(one, names) - vector(start, names) for one in states]
    moved = combined(rule, updates, np.array(weights, float))
    found = apart(vector(start, names) + moved, start, names)
    for name in set(start) - set(names):
        middle = np.sort([np.asarray(one[name]) for one in states], axis=0)[1:3].mean(axis=0)
        found[name] = np.rint(middle).astype(np.int64) if "num_b" in name else middle
    return {name: found[name] for name in start}


@pytest.mark.parametrize("rule", RULES)
def test_a_round_of_fedavg(rule):
    """Client i takes i + 1 full-batch steps in float64, so that rounding does not hide errors."""
    federation = Federation.exact()
    strategy = FedAvg(aggregation=rule, tolerated_share=share(rule))
    found, _ = run_on(strategy, federation.grid("2", TorchClient), federation.arrays(), 1)
    states = []
    for client in range(4):
        model = loaded(federation.start)
        data = federation.whole(client)
        descend(model, lambda m=model, d=data: loss_of(m, d), client + 1)
        states.append({name: one.numpy() for name, one in model.state_dict().items()})
    assert_equal(found, aggregated(rule, states, federation.start, SIZES))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("strategy_class", [CoPreFL, CoPreFLStd])
def test_a_round_of_coprefl(rule, strategy_class):
    """The gradient of each c_j L_j comes from autograd.

    c_j is computed from losses that are clipped to the range of the two middle losses, except with
    Krum.
    """
    federation, gamma, zeta = Federation.exact(), 0.25, 0.5
    strategy = strategy_class(
        aggregation=rule, tolerated_share=share(rule), gamma=gamma, meta_learning_rate=zeta
    )
    found, _ = run_on(strategy, federation.grid("2", CoPreFLClient), federation.arrays(), 1)
    sets, states, sizes = [], [], []
    for client in range(4):
        inputs, targets = federation.whole(client)
        key = (0, "train", 1, client, "support")
        support, query = split_in_two(SIZES[client], 0.8, seeds.generator(*key))
        sets.append((inputs[query], targets[query]))
        model, data = loaded(federation.start), (inputs[support], targets[support])
        descend(model, lambda m=model, d=data: loss_of(m, d), client + 1)
        states.append({name: one.numpy() for name, one in model.state_dict().items()})
        sizes.append(len(support))
    temporary = aggregated(rule, states, federation.start, sizes)
    model = loaded(temporary).eval()
    names = [name for name, _ in model.named_parameters()]
    losses = [loss_of(model, data) for data in sets]
    said = np.array([float(loss.detach()) for loss in losses])
    if share(rule):
        said = np.clip(said, *np.sort(said)[1:3])
    off = said - said.mean()
    printed = gamma + (1 - gamma) * 2 / 4 * off
    ours = gamma / 4 + (1 - gamma) * off / (4 * said.std())
    each = []
    for c, loss in zip(printed if strategy_class is CoPreFL else ours, losses, strict=True):
        gradients = torch.autograd.grad(c * loss, list(model.parameters()), retain_graph=True)
        each.append(np.concatenate([one.numpy().ravel() for one in gradients]))
    step = apart(4 * combined(rule, each, np.ones(4)), temporary, names)
    expected = {n: a - zeta * step[n] if n in step else a for n, a in temporary.items()}
    assert_equal(found, expected)


METHODS_ON_NODES = [
    (FedAvg, TorchClient, {}),
    (CoPreFL, CoPreFLClient, {"meta_learning_rate": 0.1}),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("strategy_class", "client", "more"), METHODS_ON_NODES)
def test_whichever_node_hosts_whom_the_bytes_are_the_same(rule, strategy_class, client, more):
    found = set()
    for hosting in ("1", "2", "pairs", "own"):
        federation = Federation.stochastic()
        strategy = strategy_class(aggregation=rule, tolerated_share=share(rule), **more)
        arrays, _ = run_on(strategy, federation.grid(hosting, client), federation.arrays(), 1)
        found.add(b"".join(array.tobytes() for array in arrays.values()))
    assert len(found) == 1


A = np.random.default_rng(5).normal(size=(10, 6, 3))
TARGETS = np.einsum("nij,j->ni", A, [1.0, -2.0, 0.5]) + np.random.default_rng(6).normal(
    size=(10, 6)
)


class LeastSquares(NumPyClient):
    """A client that takes a full-batch step on the mean of squares.

    The `attack` "arrays" changes the arrays in its replies. The `attack` "numbers" changes the
    number of samples and the loss in its replies.
    """

    def __init__(self, number, attack=None):
        self.number, self.attack = number, attack

    def slope(self, w):
        off = A[self.number] @ w - TARGETS[self.number]
        return A[self.number].T @ off / 6, float((off**2).mean() / 2)

    def fit(self, parameters, config):
        (w,) = parameters
        moved = w - 0.1 * self.slope(w)[0]
        if self.attack == "arrays":
            return [w - 1e6 * (moved - w)], 6, {}
        return [moved], 10**9 if self.attack else 6, {}

    def query(self, parameters, config):
        slope, loss = self.slope(parameters[0])
        if self.attack == "arrays":
            return [-1e6 * slope], 6, {"loss": loss}
        return [slope], 6, {"loss": 1e100 if self.attack else loss}


def squares(rule, attackers=(), attack=None, strategy_class=CoPreFL, rounds=1, **more):
    """Return the weights after `rounds` rounds with ten clients, of which `attackers` attack."""
    made = client_app(lambda _, i: LeastSquares(i, attack if i in attackers else None))
    strategy = strategy_class(aggregation=rule, tolerated_share=0.2, clients=10, **more)
    start = {"w": np.zeros(3)}
    arrays = strategy.start(LocalGrid(made, nodes=2), to_record(start), rounds).arrays
    return from_record(arrays)["w"]


@pytest.mark.parametrize("attack", ["arrays", "numbers"])
@pytest.mark.parametrize("strategy_class", [FedAvg, CoPreFL, CoPreFLStd])
@pytest.mark.parametrize("rule", AGGREGATIONS)
def test_a_fifth_of_attackers_hardly_moves_what_is_learnt(rule, strategy_class, attack):
    """Attackers reverse their arrays and make them a million times as long.

    Or they report a loss of 1e100 and a billion samples.
    """
    rates = {} if strategy_class is FedAvg else {"meta_learning_rate": 0.02}
    given = {"strategy_class": strategy_class, "rounds": 1 if rule == "mean" else 3, **rates}
    without = squares("mean", **given)
    spoilt = squares(rule, (2, 7), attack, **given)
    moved, away = np.linalg.norm(without), np.linalg.norm(spoilt - without)
    if rule == "mean":
        # False numbers alone do little harm to FedAvg, because the model is then the mean of the
        # two attackers' correct models. They do hardly any harm to CoPreFLStd, because an extreme
        # loss makes its standard deviation very large.
        lies = strategy_class is CoPreFL or attack == "arrays"
        assert away > (1e3 * moved if lies else 0.05 * moved)
    else:
        assert away < 0.7 * moved


def test_metrics_tell_who_was_chosen_and_how_many_were_shortened():
    federation = Federation.full_batch()
    for rule, name in (("krum", "krum-client"), ("norm-clipping", "clipped")):
        strategy = FedAvg(aggregation=rule, tolerated_share=0.0, clients=4)
        run_on(strategy, LocalGrid(federation.torch_app(), nodes=2), federation.arrays(), 1)
        assert run_of(strategy).history.train[1][name] in (
            [0, 1, 2, 3] if rule == "krum" else [0.5]
        )


def test_each_phase_of_a_schedule_has_an_aggregation_of_its_own(monkeypatch):
    """The phases have a chain, which has no aggregation, then the median, then the mean."""
    federation = Federation.full_batch()
    median = FedAvg(aggregation="median")
    schedule = Schedule([(Cyclic(), 1), (median, 1), (FedAvg(), 1)])
    assert schedule.options()["phases"][1]["aggregation"] == "median"
    assert "aggregation" not in schedule.options()["phases"][2]
    schedule.evaluate_every = 0
    asked, real = [], Transport.prepare

    def prepare(self, exchange, *more):
        asked.append(str(exchange.combine))
        return real(self, exchange, *more)

    monkeypatch.setattr(Transport, "prepare", prepare)
    run_on(schedule, LocalGrid(federation.torch_app(), nodes=1), federation.arrays(), 3)
    assert asked == ["chain", "per-client:mean:num-examples", "mean:num-examples"]


@pytest.mark.parametrize(
    "name", [n for n, one in METHODS.items() if not one.strategy_class.averages]
)
def test_what_does_not_average_refuses_in_one_line(name, tiny_settings):
    if "pretraining" not in METHODS[name].roles:
        return
    settings = replace(tiny_settings, method=f"{name}:aggregation=median", tasks=0)
    with pytest.raises(SettingsError) as caught:
        build(settings)
    assert f"method, {name}:aggregation=median: {name} has no setting 'aggregation'" in str(
        caught.value
    )
    assert "methods that have it: coprefl, coprefl-std, fedadam, fedavg," in str(caught.value)
    assert "\n" not in str(caught.value)


def test_in_python_too():
    line = (
        r"^aggregation = krum: cyclic allows only the mean; .*: coprefl, coprefl-hybrid, .*fedavg"
    )
    with pytest.raises(SettingsError, match=line):
        Cyclic(aggregation="krum")
    with pytest.raises(
        SettingsError,
        match=r"4 clients are too few: tolerated-share = 0.3 needs 5; use a smaller share",
    ):
        CoPreFL(aggregation="multi-krum", tolerated_share=0.3, participants=4)


def test_an_exchange_without_a_robust_form_is_refused_before_any_work():
    class Sums(RoundStrategy):
        averages = True

        def round(self, ctx, arrays):
            yield Exchange("train", arrays, ctx.sample(), Chain())
            return arrays, {}

    federation = Federation.full_batch()
    with pytest.raises(SettingsError, match=r"^aggregation = median: train uses the rule 'chain'"):
        run_on(Sums(aggregation="median"), LocalGrid(federation.torch_app()), federation.arrays())


def test_a_wrapper_whose_noise_is_for_a_mean_refuses():
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvg(aggregation="median"), 0.1, 1.0, 4)
    federation = Federation.full_batch()
    grid = LocalGrid(federation.torch_app(), nodes=4)
    with pytest.raises(SettingsError, match=r"^aggregation = median: inside a wrapper"):
        wrapped.start(grid, to_record(federation.arrays()), 1)


def test_at_the_default_nothing_of_a_run_changes():
    for one in (FedAvg(), CoPreFL(), Schedule([(Cyclic(), 1), (FedYogi(), 1)]), SCAFFOLD()):
        assert "aggregation" not in str(one.options())
        assert "tolerated_share" not in str(one.options())
    assert FedAvg(aggregation="krum", tolerated_share=0.1).options().items() >= {
        ("aggregation", "krum"),
        ("tolerated_share", 0.1),
    }


def test_a_study_pre_trains_and_runs_its_tasks_robustly(tiny_settings):
    """One of five participants may be an attacker; a refined method has its method's rule."""
    settings = replace(
        tiny_settings,
        method="fedavg-refined:aggregation=krum coprefl:aggregation=norm-clipping,clip-factor=0.5",
        task_method="scaffold:aggregation=median",
        participants=5,
        tasks=1,
        rounds=1,
        server_reserve=0.2,
    )
    study = build(settings)
    refined, coprefl = (stage.strategy() for stage in study.stages[:2])
    assert refined.inner.robust.aggregation == "krum"
    assert coprefl.robust.clip_factor == 0.5
    folder = run_study(LocalGrid(app, 1, settings.to_config()), build(settings))
    assert len(read_rows(folder / "rows.jsonl")) == 2 * settings.task_clients
    plain = build(replace(settings, method="coprefl fedavg-refined", task_method="scaffold"))
    keys = [{stage.key for stage in one.stages} for one in (study, plain)]
    assert not keys[0] & keys[1]
