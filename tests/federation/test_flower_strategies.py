"""Flower's own strategies as methods, each compared with rounds computed by hand."""

import pickle

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flowers

import coprefl_flwr as cp
from coprefl_flwr.arrays import weights_of
from coprefl_flwr.clients import QFFLClient, TorchClient
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation import of_flower
from coprefl_flwr.strategies import FedAvg
from coprefl_flwr.testing import check_method
from tests.common.by_hand import (
    assert_equal,
    descend,
    is_statistic,
    loaded,
    loss_of,
    run,
    run_on,
    sizes,
)
from tests.common.checks import refusal
from tests.common.data import images
from tests.common.federation import HOSTINGS
from tests.common.networks import Perceptron

PLACE = "flwr.serverapp.strategy"


PRIVATE = "DifferentialPrivacyServerSideFixedClipping"
ADAPTIVE = "DifferentialPrivacyServerSideAdaptiveClipping"
CHECKED = {
    **dict.fromkeys(["FedAvg", "FedMedian", "FedTrimmedAvg", "Bulyan"], ""),
    **dict.fromkeys(["FedAdagrad", "FedAdam", "FedYogi"], ""),
    "Krum": "num-malicious-nodes=1",
    "MultiKrum": "num-nodes-to-select=2",
    "FedAvgM": "server-momentum=0.9",
    "QFedAvg": "client-learning-rate=0.05",
    "FedProx": "proximal-mu=0.1",
    PRIVATE: "noise-multiplier=0.1,clipping-norm=1,num-sampled-clients=4",
    ADAPTIVE: "noise-multiplier=0.1,num-sampled-clients=4,"
    f"strategy={PLACE}:FedAvgM:server-momentum=0.5",
}
"""Every strategy of Flower that averages arrays: its options."""


@pytest.mark.parametrize("name", CHECKED)
def test_flower_strategy_has_the_properties_of_a_method(name):
    """In a pre-training and in tasks: in every hosting, after an interruption, with BatchNorm."""
    check_method(f"{PLACE}:{name}:{CHECKED[name]}".rstrip(":"))


def test_all_flower_strategies_that_average_are_checked():
    stock = {name for name in flowers.__all__ if name not in ("Strategy", "Result")}
    refused = {name for name in stock if name.startswith("FedXgb") or "ClientSide" in name}
    newer = {"FedMom", "FedRDF", "MeaMed"}  # Added to Flower after 1.41.
    assert stock - refused - newer == CHECKED.keys()


# ---- rounds by hand -----------------------------------------------------------------------------


def local_models(federation, start, clients):
    """Return the model of each client i after i + 1 steps from `start`, and its loss at `start`."""
    models, losses = [], []
    for client in clients:
        model, data = loaded(start), federation.whole(client)
        with torch.no_grad():
            losses.append(float(loss_of(model.eval(), data)))
        descend(model, lambda model=model, data=data: loss_of(model, data), client + 1)
        models.append({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    return models, losses


def mean_of(x, models, counts, **_):
    return {name: np.average([m[name] for m in models], axis=0, weights=counts) for name in x}


def median_of(x, models, counts, **_):
    return {name: np.median([m[name] for m in models], axis=0) for name in x}


def trimmed_of(x, models, counts, **_):
    """Return the mean without the largest and the smallest of four numbers."""
    return {name: np.sort([m[name] for m in models], axis=0)[1:-1].mean(axis=0) for name in x}


def krum_of(x, models, counts, **_):
    """Return the model with the smallest distance to its n - f - 2 = 1 nearest model."""
    flat = [np.concatenate([m[name].ravel() for name in x]) for m in models]
    nearest = [sorted(((a - b) ** 2).sum() for b in flat)[1] for a in flat]
    return models[int(np.argmin(nearest))]


def adam_like(second, correction=lambda t: 1.0, eta=0.1, beta1=0.9):
    """Return a server step with moments that start at 0."""

    def step(x, models, counts, t, memory, **_):
        mean = mean_of(x, models, counts)
        new = {}
        for name in x:
            delta = mean[name] - x[name]
            m, v = memory.get(name, (0 * delta, 0 * delta))
            m, v = beta1 * m + (1 - beta1) * delta, second(v, delta**2)
            memory[name] = m, v
            new[name] = x[name] + eta * correction(t) * m / (np.sqrt(v) + 1e-3)
        return new

    return step


def momentum(x, models, counts, memory, **_):
    mean = mean_of(x, models, counts)
    for name in x:
        memory[name] = 0.9 * memory.get(name, 0) + mean[name] - x[name]
    return {name: x[name] + 0.5 * memory[name] for name in x}


def fair(x, models, counts, losses, **_):
    """q-FedAvg with q = 0.5 and L = 1 / 0.1."""
    above, below = dict.fromkeys(x, 0.0), 0.0
    for model, loss in zip(models, losses, strict=True):
        gradient = {name: 10 * (x[name] - model[name]) for name in x}
        above = {name: above[name] + loss**0.5 * gradient[name] for name in x}
        length = sum((array**2).sum() for array in gradient.values())
        below += 0.5 * loss**-0.5 * length + 10 * loss**0.5
    return {name: x[name] - above[name] / below for name in x}


def corrected(t):
    """Flower's FedAdam corrects round t as if it were round t + 1."""
    return np.sqrt(1 - 0.99 ** (t + 1)) / (1 - 0.9 ** (t + 1))


ROUNDS = {
    "FedAvg": (flowers.FedAvg(), mean_of),
    "FedMedian": (flowers.FedMedian(), median_of),
    "FedTrimmedAvg": (flowers.FedTrimmedAvg(beta=0.25), trimmed_of),
    "Krum": (flowers.Krum(num_malicious_nodes=1), krum_of),
    "FedAdam": (flowers.FedAdam(), adam_like(lambda v, s: 0.99 * v + 0.01 * s, corrected)),
    "FedYogi": (flowers.FedYogi(), adam_like(lambda v, s: v - 0.01 * s * np.sign(v - s), eta=0.01)),
    "FedAdagrad": (flowers.FedAdagrad(), adam_like(lambda v, s: v + s, beta1=0.0)),
    "FedAvgM": (flowers.FedAvgM(server_learning_rate=0.5, server_momentum=0.9), momentum),
    "QFedAvg": (flowers.QFedAvg(client_learning_rate=0.1, q=0.5), fair),
}
STEP = ("FedAdam", "FedYogi", "FedAdagrad", "FedAvgM", "QFedAvg")
"""Strategies that get only the weights; BatchNorm's statistics are the clients' mean."""


@pytest.mark.parametrize("name", ROUNDS)
def test_three_rounds_by_hand(exact_federation, name):
    flower_strategy, by_hand = ROUNDS[name]
    client = QFFLClient if name == "QFedAvg" else TorchClient
    x, memory = exact_federation.arrays(), {}
    strategy = of_flower(flower_strategy, seed=3, participants=4)
    arrays, participants = run(strategy, exact_federation.app(client), x, 3)
    for t, clients in enumerate(participants, 1):
        models, losses = local_models(exact_federation, x, sorted(clients))
        counts = sizes(sorted(clients))
        seen = {n: array for n, array in x.items() if array.dtype.kind == "f"}
        seen = weights_of(x) if name in STEP else seen
        moved = by_hand(seen, models, counts, t=t, memory=memory, losses=losses)
        mean = mean_of(x, models, counts)
        x = {n: np.asarray(moved[n] if n in seen else mean[n]) for n in x}
        x = {n: np.rint(a).astype(np.int64) if "num_batches" in n else a for n, a in x.items()}
    assert any(is_statistic(n) for n in x)
    assert_equal(arrays, x, 1e-9)


@pytest.mark.parametrize("hosting", HOSTINGS)
def test_flower_fedavg_equals_our_fedavg_in_every_hosting(federation, hosting):
    """The arrays agree to 1e-6 in float32, however clients are hosted."""
    options = {"participants": 3, "seed": 5, "min_available_nodes": HOSTINGS[hosting][0]}
    start = federation.arrays()
    ours, participants = run_on(FedAvg(**options), federation.grid(hosting, TorchClient), start, 3)
    theirs = of_flower(flowers.FedAvg(), **options)
    arrays, clients = run_on(theirs, federation.grid(hosting, TorchClient), start, 3)
    assert clients == participants
    assert_equal(arrays, ours, 1e-6)


# ---- in Python ----------------------------------------------------------------------------------

SMALL = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1, "quiet": True, "rounds": 2}


def pretrained(method, **more):
    clients = cp.partition(images(), 4, "iid")
    network = cp.pretrain(method, Perceptron(), clients, **{**SMALL, **more})
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def test_pretrain_and_tasks_take_an_instance_or_a_text(monkeypatch):
    """Places in Flower need no permission."""
    monkeypatch.setenv("COPREFL_ALLOW", "none")
    ours = pretrained(cp.FedAvg())
    assert_equal(pretrained(flowers.FedAvg(min_train_nodes=9)), ours, 1e-6)
    assert_equal(pretrained(f"{PLACE}:FedAvg"), ours, 1e-6)
    tasks = cp.tasks(images(), number=1, classes=4, clients=3, scheme="iid")
    more = {"local_steps": 1, "quiet": True, "rounds": 1}
    expected, rows = (
        cp.evaluate_starts({"a": Perceptron()}, tasks, method=method, **more).rows
        for method in (cp.FedAvg(), flowers.FedAvg())
    )
    assert rows["loss"].to_numpy() == pytest.approx(expected["loss"].to_numpy(), abs=1e-6)


def test_fraction_of_clients_is_used_and_the_history_is_filled():
    method = of_flower(flowers.FedMedian(fraction_train=0.5), seed=2)
    clients = cp.partition(images(), 4, "iid")
    network, history = cp.pretrain(method, Perceptron(), clients, **SMALL, history=True)
    half = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    assert history["round"].tolist() == [1, 2]
    assert_equal(half, pretrained(of_flower(flowers.FedMedian(), seed=2, participants=2)), 0)


def private(**options):
    options = {"noise_multiplier": 0.1, "num_sampled_clients": 4} | options
    return flowers.DifferentialPrivacyServerSideAdaptiveClipping(**options)


def test_wrapper_as_an_instance_equals_the_wrapper_as_a_text():
    wrapper = private(strategy=flowers.FedTrimmedAvg(beta=0.3), initial_clipping_norm=0.5)
    arrays = pretrained(wrapper)
    written = "noise-multiplier=0.1,num-sampled-clients=4,initial-clipping-norm=0.5"
    name = f"{PLACE}:{ADAPTIVE}"
    inner = f"{PLACE}:FedTrimmedAvg:beta=0.3&weighted-by-key=num-examples"
    assert_equal(arrays, pretrained(f"{name}:strategy={inner},{written}"), 0)
    plain = pretrained(flowers.FedTrimmedAvg(beta=0.3))
    assert any(not np.array_equal(arrays[name], plain[name]) for name in plain)
    again = pretrained(private(strategy=flowers.FedTrimmedAvg(beta=0.3)))
    assert any(not np.array_equal(arrays[name], again[name]) for name in plain)


def test_noise_depends_on_the_seed_and_not_on_numpys_global_state():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = pretrained(of_flower(private(strategy=flowers.FedAvg()), seed=1))
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    assert_equal(pretrained(of_flower(private(strategy=flowers.FedAvg()), seed=1)), first, 0)


def test_resumed_run_equals_an_uninterrupted_run(tmp_path):
    """Two rounds and two more equal four rounds, moments included. Other arguments start again."""
    whole, other = (pretrained(flowers.FedAdam(eta=eta), rounds=4) for eta in (0.05, 0.2))
    parts = {"checkpoint": tmp_path / "parts"}
    pretrained(flowers.FedAdam(eta=0.05), **parts)
    assert_equal(pretrained(flowers.FedAdam(eta=0.05), **parts, rounds=4), whole, 0)
    assert not list(tmp_path.rglob("earlier-*"))
    assert_equal(pretrained(flowers.FedAdam(eta=0.2), **parts, rounds=4), other, 0)
    assert (tmp_path / "parts" / "earlier-1" / "model.safetensors").exists()


def test_flower_strategy_can_be_pickled():
    method = of_flower(flowers.FedTrimmedAvg(beta=0.1), participants=2)
    duplicate = pickle.loads(pickle.dumps(method))
    assert duplicate.options() == method.options()
    assert duplicate.flower.beta == 0.1


# ---- what is refused ----------------------------------------------------------------------------

FULL = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 4}
OPTIONS = "noise-multiplier=1,clipping-norm=1,num-sampled-clients=4"
TEXTS = {
    "FedTrimedAvg": "did you mean 'FedTrimmedAvg'?",
    "FedTrimmedAvg:beta=high": "beta = 'high': must be a finite number",
    "QFedAvg": "missing 1 required positional argument: 'client_learning_rate'",
    "FedXgbBagging": "FedXgbBagging: aggregates boosted trees, but a method averages arrays",
    "Strategy": "is not a concrete strategy class of flwr.serverapp.strategy",
    "DifferentialPrivacyClientSideFixedClipping": f"use {PRIVATE}",
    f"{PRIVATE}:{OPTIONS},clipping-norm=-1": "should be a positive value",
    f"{PRIVATE}:{OPTIONS},strategy={PLACE}:QFedAvg": "is a wrapper, or needs its own clients",
}


@pytest.mark.parametrize("text", TEXTS)
def test_impossible_text_is_refused(text):
    assert TEXTS[text] in refusal(pretrained, f"{PLACE}:{text}")


class Mine(flowers.FedAvg):
    """A user's own strategy, whose state the package does not know."""


def test_impossible_instance_is_refused():
    line = "is not a concrete strategy class of flwr.serverapp.strategy"
    assert f"Mine: {line}" in refusal(pretrained, Mine())
    wrapper = flowers.DifferentialPrivacyServerSideFixedClipping(FedAvg(), **FULL)
    assert f"FedAvg: {line}" in refusal(pretrained, wrapper)
    rule = flowers.Bulyan(selection_rule=lambda contents, malicious, number: contents[:number])
    assert "leave out selection_rule, which cannot be stored" in refusal(pretrained, rule)
    assert "got the class FedAdam; pass a strategy" in refusal(pretrained, flowers.FedAdam)


def test_missing_model_fails_the_run():
    with pytest.raises(RunFailedError, match="Bulyan returned no model for 4 replies"):
        pretrained(flowers.Bulyan(num_malicious_nodes=1))
