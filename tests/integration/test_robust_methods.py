"""Robust aggregation: rounds by hand and on any nodes, and methods that refuse it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coprefl_flwr import seeds
from coprefl_flwr.client_app import app
from coprefl_flwr.clients import CoPreFLClient, TorchClient
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.robust import AGGREGATIONS
from coprefl_flwr.federation.transport import Transport
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.report.frames import read_rows
from coprefl_flwr.strategies import (
    CoPreFL,
    CoPreFLStd,
    Cyclic,
    FedAvg,
    Schedule,
)
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from tests.common.by_hand import assert_equal, descend, is_statistic, loaded, loss_of, run_on
from tests.common.federation import SIZES, Federation

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
def test_robust_round_of_fedavg_by_hand(rule):
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
def test_robust_round_of_coprefl_by_hand(rule, strategy_class):
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
def test_robust_round_has_the_same_bytes_for_any_hosting(rule, strategy_class, client, more):
    found = set()
    for hosting in ("1", "2", "pairs", "own"):
        federation = Federation.stochastic()
        strategy = strategy_class(aggregation=rule, tolerated_share=share(rule), **more)
        arrays, _ = run_on(strategy, federation.grid(hosting, client), federation.arrays(), 1)
        found.add(b"".join(array.tobytes() for array in arrays.values()))
    assert len(found) == 1


def test_each_phase_of_a_schedule_has_its_aggregation(monkeypatch):
    """The phases have a chain, which has no aggregation, then the median, then the mean."""
    median = FedAvg(aggregation="median")
    schedule = Schedule([(Cyclic(), 1), (median, 1), (FedAvg(), 1)])
    assert schedule.options()["phases"][1]["aggregation"] == "median"
    asked, send = [], Transport.exchange

    def recording(self, exchange, *more):
        asked.append(str(exchange.combine))
        return send(self, exchange, *more)

    monkeypatch.setattr(Transport, "exchange", recording)
    federation, schedule.evaluate_every = Federation.full_batch(), 0
    run_on(schedule, LocalGrid(federation.torch_app(), nodes=1), federation.arrays(), 3)
    assert asked == ["chain", "per-client:mean:num-examples", "mean:num-examples"]


def test_aggregation_that_a_method_cannot_use_is_refused(tiny_settings):
    settings = replace(tiny_settings, method="cyclic:aggregation=median", tasks=0)
    with pytest.raises(SettingsError, match="cyclic: unknown setting 'aggregation'"):
        build(settings)
    with pytest.raises(SettingsError, match="aggregation = krum: cyclic allows only the mean"):
        Cyclic(aggregation="krum")
    with pytest.raises(
        SettingsError, match=r"4 clients are too few: tolerated-share = 0.3 needs 5"
    ):
        CoPreFL(aggregation="multi-krum", tolerated_share=0.3, participants=4)


def test_study_pretrains_and_runs_tasks_with_robust_aggregation(tiny_settings):
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
