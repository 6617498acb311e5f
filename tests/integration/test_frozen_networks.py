"""Networks of which a part is frozen: rounds by hand, what is sent and stored, other bases.

By hand, a round trains a softmax regression in NumPy on the outputs of the frozen body.
"""

import copy
import itertools
import json
import logging
import re

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.common.serde import message_to_proto
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr import seeds
from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedRepClient,
    PerFedAvgClient,
    SCAFFOLDClient,
    TorchClient,
    client_app,
)
from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import load_saved_model, model_arrays
from coprefl_flwr.models.base import base_hash
from coprefl_flwr.models.frozen import base_of
from coprefl_flwr.strategies import SCAFFOLD, CoPreFL, Cyclic, FedAvg, FedRep, PerFedAvg
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.tasks import architecture_of_tasks
from tests.common.by_hand import assert_equal, run, states_of
from tests.common.checks import refusal
from tests.common.data import images
from tests.common.federation import SIZES, Federation
from tests.common.networks import CLASSES, ToDouble
from tests.common.runs import run_of
from tests.strategies.test_cyclic import record_chains

CLIENTS = range(len(SIZES))


def frozen_body():
    """Return a float64 network with a frozen body, whose BatchNorm has statistics, and a head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5))
        body[1].running_mean.uniform_(-1, 1)
        body.requires_grad_(False)
        layers = ToDouble(), nn.Flatten(), body, nn.Linear(8, CLASSES)
        return nn.Sequential(*layers).double()


@pytest.fixture
def partly():
    """A federation of the partly frozen network; client i takes i + 1 full-batch steps of 0.1."""
    federation = Federation(LocalTraining(batch_size=1000, learning_rate=0.1), frozen_body())
    federation.uneven = True
    return federation


# ---- rounds by hand -----------------------------------------------------------------------------


def features(federation):
    """Return each client's outputs of the body in eval mode and a 1, (n, 9), and one-hot labels."""
    network = frozen_body().eval()
    found = []
    for client in CLIENTS:
        inputs, labels = federation.whole(client)
        z = network[:3](inputs).numpy()
        found.append((np.c_[z, np.ones(len(z))], np.eye(CLASSES)[labels]))
    return found


def loss_and_gradient(w, data):
    """Return the mean cross-entropy of a softmax regression w, (3, 9), and its gradient."""
    z, y = data
    p = np.exp(z @ w.T)
    p /= p.sum(axis=1, keepdims=True)
    return -np.log(p[y == 1]).mean(), (p - y).T @ z / len(y)


def slope_of(w, data):
    return loss_and_gradient(w, data)[1]


def descended(w, data, steps):
    for _ in range(steps):
        w = w - 0.1 * slope_of(w, data)
    return w


def fedavg(w, clients, _):
    return np.average([descended(w, clients[i], i + 1) for i in CLIENTS], axis=0, weights=SIZES)


def coprefl(w, clients, server_round):
    """Return the model after a round with gamma 0.25 and zeta 0.5."""
    sets, rng = [], [seeds.generator(0, "train", server_round, i, "support") for i in CLIENTS]
    for i in CLIENTS:
        parts = split_in_two(SIZES[i], 0.8, rng[i])
        sets.append([tuple(array[part] for array in clients[i]) for part in parts])
    models = [descended(w, sets[i][0], i + 1) for i in CLIENTS]
    mean = np.average(models, axis=0, weights=[len(support[1]) for support, _ in sets])
    losses, slopes = zip(*(loss_and_gradient(mean, query) for _, query in sets), strict=True)
    factors = 0.25 + 0.75 * 2 / 4 * (np.array(losses) - np.mean(losses))
    return mean - 0.5 * sum(c * g for c, g in zip(factors, slopes, strict=True))


def per_fedavg(w, clients, _):
    """Return the mean of models after i + 1 steps along the gradient at w - grad f(w)."""
    models = []
    for i in CLIENTS:
        own = w
        for _ in range(i + 1):
            own = own - 0.1 * slope_of(own - slope_of(own, clients[i]), clients[i])
        models.append(own)
    return np.mean(models, axis=0)


METHODS = {
    "fedavg": (FedAvg(), TorchClient, fedavg),
    "coprefl": (CoPreFL(gamma=0.25, meta_learning_rate=0.5), CoPreFLClient, coprefl),
    "per-fedavg": (PerFedAvg(inner_learning_rate=1.0), PerFedAvgClient, per_fedavg),
}


def head_of(federation):
    """Return the weight and the bias, (3, 9), of the head: the only arrays that travel."""
    start = federation.arrays()
    assert list(start) == ["3.weight", "3.bias"]
    return np.c_[start["3.weight"], start["3.bias"]]


def named(w):
    return {"3.weight": w[:, :8], "3.bias": w[:, 8]}


def assert_body_is_unchanged(federation):
    expected = base_of(frozen_body())
    assert list(expected) == [
        *("2.0.weight", "2.0.bias", "2.1.weight", "2.1.bias"),
        *("2.1.running_mean", "2.1.running_var", "2.1.num_batches_tracked"),
    ]
    for name, tensor in base_of(federation.model).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_with_a_frozen_body_by_hand(partly, method):
    strategy, client, round_by_hand = METHODS[method]
    w, data = head_of(partly), features(partly)
    arrays, _ = run(strategy, partly.app(client), partly.arrays())
    for server_round in (1, 2):
        w = round_by_hand(w, data, server_round)
    assert_equal(arrays, named(w))
    assert_body_is_unchanged(partly)


def test_two_chains_with_a_frozen_body_by_hand(partly):
    strategy = Cyclic(participants=3)
    chains, w, data = record_chains(strategy), head_of(partly), features(partly)
    arrays, _ = run(strategy, partly.app(TorchClient), partly.arrays())
    for i in itertools.chain(*chains):
        w = descended(w, data[i], i + 1)
    assert_equal(arrays, named(w))
    assert_body_is_unchanged(partly)


def test_scaffold_with_a_frozen_body_by_hand(partly, tmp_path):
    """Option II: c_i <- c_i - c + (x - y_i) / (K eta), x <- mean y_i, c <- mean c_i."""
    x, data = head_of(partly), features(partly)
    strategy = SCAFFOLD()
    arrays, _ = run(strategy, partly.app(SCAFFOLDClient, states=tmp_path), partly.arrays(), 3)
    c, own = 0 * x, [0 * x for _ in CLIENTS]
    for _ in range(3):
        models = []
        for i in CLIENTS:
            y = x
            for _ in range(i + 1):
                y = y - 0.1 * (slope_of(y, data[i]) - own[i] + c)
            models.append(y)
            own[i] = own[i] - c + (x - y) / ((i + 1) * 0.1)
        x, c = np.mean(models, axis=0), np.mean(own, axis=0)
    assert_equal(arrays, named(x))
    assert_equal(run_of(strategy).state["control"], named(c))
    for client, state in states_of(strategy, tmp_path).items():
        assert_equal(dict(reversed(state.items())), named(own[client]))
    assert_body_is_unchanged(partly)


# ---- what is sent and stored --------------------------------------------------------------------


def wide(*, frozen):
    """Return a network of 65,000 parameters, of which 1.6 % are trained if the rest is frozen."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 1000), nn.BatchNorm1d(1000), nn.ReLU())
    body.append(nn.Linear(1000, 50)).requires_grad_(not frozen)
    return nn.Sequential(body, nn.Linear(50, 20), nn.Linear(20, CLASSES))


class Weighed(LocalGrid):
    """A grid that adds up the bytes of the messages of training as Flower serialises them."""

    def __init__(self, *more, **options):
        super().__init__(*more, **options)
        self.sent, self.sums = [], []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if messages[0].metadata.message_type == "train":
            self.sent += [len(message_to_proto(one).SerializeToString()) for one in messages]
            self.sums += [len(message_to_proto(one).SerializeToString()) for one in replies]
        return replies


def test_traffic_and_checkpoint_of_a_network_of_which_2_percent_is_trained(tmp_path):
    found = []
    for frozen in (False, True):
        training = LocalTraining(local_steps=1, batch_size=8)
        federation = Federation(training, wide(frozen=frozen))
        grid, file = Weighed(federation.torch_app(), nodes=1), tmp_path / f"{frozen}.safetensors"
        strategy = FedAvg(clients=len(SIZES), evaluate_every=0)
        result = strategy.start(grid, to_record(federation.arrays()), 1, checkpoint=file)
        traffic = result.history.traffic[1]
        counts = {name: traffic[name] for name in traffic if "bytes" in name}
        files = {"checkpoint": file.stat().st_size}
        found.append({**counts, **files, "sent": sum(grid.sent), "sums": sum(grid.sums)})
        assert traffic["models-down"] == len(SIZES)
    whole, partly = found
    assert len(whole) == 7
    for name, size in whole.items():
        assert partly[name] < 0.03 * size, name


def test_equal_bases_share_their_memory_in_a_process(federation):
    """Networks of a task, of another task and of the server's data hold one base."""
    networks = [frozen_body() for _ in range(3)]
    other = frozen_body()
    other[2][0].weight.data += 1
    for network in (*networks, other):
        cp.ServerData(network, federation.samples[0], device="cpu")
    first, *others, other = (base_of(network) for network in (*networks, other))
    for name, tensor in first.items():
        assert all(one[name].data_ptr() == tensor.data_ptr() for one in others), name
        assert other[name].data_ptr() != tensor.data_ptr()
    weights = {network[3].weight.data_ptr() for network in networks}
    assert len(weights) == 3


def test_what_a_client_freezes_for_some_steps_still_travels(partly, tmp_path):
    """FedRep freezes its body and its head in turn; the BatchNorm of the body learns in both."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        trained = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).double()
        network = nn.Sequential(*frozen_body()[:3], trained, nn.Linear(4, CLASSES).double())
    body = {n: a for n, a in model_arrays(network).items() if n.startswith("3.")}
    head = {n: a for n, a in model_arrays(network).items() if n.startswith("4.")}
    assert [len(body), len(head)] == [7, 2]
    partly.model = network
    app = partly.app(FedRepClient, states=tmp_path, initial=body | head)
    strategy = FedRep()
    arrays, _ = run(strategy, app, body, rounds=1)
    assert list(arrays) == list(body)
    # Client i takes i + 1 steps with a fixed body and i + 1 steps with a fixed head.
    steps = np.average([2 * (i + 1) for i in CLIENTS], weights=SIZES)
    assert arrays["3.1.num_batches_tracked"] == np.rint(steps)
    assert not np.allclose(arrays["3.0.weight"], body["3.0.weight"])
    assert all(set(state) == set(head) for state in states_of(strategy, tmp_path).values())
    assert_body_is_unchanged(partly)


# ---- other bases --------------------------------------------------------------------------------


def of_another_file(partly):
    """Return an app whose client 2 has another frozen body."""

    def client_fn(_, client):
        network = frozen_body()
        if client == 2:
            network[2][1].running_var += 1
        return TorchClient(network, partly.samples[client], device="cpu", training=partly.training)

    return client_app(client_fn)


def test_client_with_another_base_is_left_out_and_named(partly, caplog):
    strategy = FedAvg(clients=len(SIZES), evaluate_every=0)
    grid = LocalGrid(of_another_file(partly), nodes=1)
    config = ConfigRecord({"base-hash": cp.base_hash(partly.model)})
    with caplog.at_level(logging.INFO, "flwr"):
        result = strategy.start(grid, to_record(partly.arrays()), 1, train_config=config)
    assert result.history.traffic[1]["replies-left-out"] == 1
    hashes = r"[0-9a-f]{12}, at the server " + cp.base_hash(partly.model)
    line = f"client 2 on node 2 is left out: hash of the frozen weights: {hashes}; make the network"
    assert [one for one in caplog.messages if re.match(line, one)]


def test_whole_state_dict_is_refused_by_number(partly):
    client = partly.client(TorchClient, 0)
    whole = [tensor.numpy() for tensor in frozen_body().state_dict().values()]
    line = "^got 9 arrays for a model of which 2 travel$"
    with pytest.raises(SettingsError, match=line):
        client.fit(whole, {"server-round": 1})


# ---- from Python --------------------------------------------------------------------------------

DATA = images()
OPTIONS = {"rounds": 2, "quiet": True, "local_steps": 2, "batch_size": 8}


def backbone(classes=8, seed=0, *, frozen=True):
    """Return a network with a frozen body, which is drawn after its head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, classes))
        body = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.BatchNorm1d(12))
    body[1].requires_grad_(not frozen)
    body[2].requires_grad_(not frozen)
    return nn.Sequential(body, head)


def pretrained(folder, method="coprefl", **more):
    clients = cp.partition(DATA, 4, "iid")
    return cp.pretrain(method, backbone(), clients, checkpoint=folder, **OPTIONS, **more)


def test_start_holds_what_was_trained_and_is_loaded_into_its_base_only(tmp_path):
    start = pretrained(tmp_path / "start")
    arrays, about = load_saved_model(tmp_path / "start")
    assert list(arrays) == ["1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias"]
    assert about["base"] == {"hash": cp.base_hash(backbone()), "network": "Sequential"}
    for name, tensor in base_of(start).items():
        assert torch.equal(tensor, base_of(backbone())[name]), name
    network = backbone()
    with torch.no_grad():
        network[1][0].weight.zero_()
    for path in (tmp_path / "start", tmp_path / "start" / "model.safetensors"):
        loaded = cp.load_start(network, path)
        assert loaded is network
        for name, tensor in start.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
    other = backbone(seed=1)
    line = refusal(cp.load_start, other, tmp_path / "start")
    hashes = f"hash {cp.base_hash(backbone())}; this network's hash is {cp.base_hash(other)}"
    assert line.endswith(f"it belongs to the frozen weights of Sequential with the {hashes}")
    line = refusal(cp.load_start, backbone(frozen=False), tmp_path / "start")
    assert line.endswith("; this network's hash is none")


def test_file_of_half_of_what_is_trained_is_refused(tmp_path):
    state = backbone(frozen=False).state_dict()
    torch.save(state, tmp_path / "whole.pt")
    assert cp.load_start(backbone(), tmp_path / "whole.pt")
    torch.save({n: t for n, t in state.items() if n.startswith("1.2.")}, tmp_path / "half.pt")
    line = refusal(cp.load_start, backbone(), tmp_path / "half.pt")
    assert line.endswith("the weights do not fit Sequential: array '1.0.weight' is missing")
    state["0.1.bias"] = state["0.1.bias"] + 1
    torch.save(state, tmp_path / "other.pt")
    line = refusal(cp.load_start, backbone(), tmp_path / "other.pt")
    assert "'0.1.bias' is frozen in the network, which has other values: load the wei" in line


def test_starts_are_compared_on_one_base(tmp_path):
    """A task replaces the last layer. The layer before it is the start's."""
    start = pretrained(tmp_path / "start")
    tasks = cp.tasks(DATA, 2, 3, 2, "iid")
    torch.save(start.state_dict(), tmp_path / "whole.pt")
    starts = {
        "random": backbone(),
        "module": start,
        "folder": tmp_path / "start",
        "file": tmp_path / "whole.pt",
    }
    accuracy = cp.evaluate_starts(starts, tasks, **OPTIONS).rows.groupby("start")["loss"].mean()
    assert accuracy["module"] == accuracy["folder"] == accuracy["file"] != accuracy["random"]
    others = {"a": start, "b": backbone(seed=1)}
    line = refusal(cp.evaluate_starts, others, tasks, **OPTIONS)
    assert line.startswith("start 'b': '0.")
    assert "is frozen in the network, which has other values" in line


def test_network_of_tasks_says_what_is_frozen_in_them(tmp_path):
    """Its frozen weights must be those of the start, and what it trains is the start's."""
    start, tasks = pretrained(tmp_path / "start"), cp.tasks(DATA, 1, 3, 2, "iid")

    def network(classes, frozen=True):
        made = copy.deepcopy(start)
        made[0].requires_grad_(not frozen)
        made[1][2] = nn.Linear(10, classes)
        return made

    options = {**OPTIONS, "local_steps": 20}
    networks = None, network, lambda classes: network(classes, frozen=False)
    results = [cp.evaluate_starts({"a": start}, tasks, network=n, **options) for n in networks]
    without, partly, whole = (result.rows["loss"].tolist() for result in results)
    assert without == partly != whole
    line = refusal(cp.evaluate_starts, {"a": start}, tasks, network=backbone, **OPTIONS)
    assert "is frozen in the network, which has other values: load the weights before" in line


@pytest.mark.ray
def test_frozen_network_trains_the_same_in_processes_of_ray(tmp_path):
    local, on_ray = pretrained(tmp_path / "one"), pretrained(tmp_path / "two", workers=2)
    for (name, ours), theirs in zip(
        local.state_dict().items(), on_ray.state_dict().values(), strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6), name


# ---- studies ------------------------------------------------------------------------------------


def head_first(classes, input_shape):
    """Return a network that draws its head before its body, which is frozen."""
    head = nn.Linear(12, classes)
    body = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.BatchNorm1d(12), nn.ReLU())
    return nn.Sequential(body.requires_grad_(False), nn.Linear(12, 12), head)


def study_of(settings, **changes):
    return build(Settings.from_config({**settings.to_config(), **changes}))


MODEL = f"{__name__}:head_first"


def test_all_networks_of_a_study_have_the_base_of_the_seed(tiny_settings):
    study, other = (study_of(tiny_settings, model=MODEL, seed=seed) for seed in (0, 1))
    start, task = study.stages[0], study.stages[-1]
    architecture = start.architecture
    expected = base_of(architecture.make())
    networks = [start.module, task.module, architecture.make(7, "task", "model")]
    assert len({len(network[2].weight) for network in networks}) == 3
    for network in networks:
        for name, tensor in base_of(network).items():
            assert torch.equal(tensor, expected[name]), name
    assert base_hash(start.module) == base_hash(task.module) != base_hash(other.stages[0].module)


def test_identity_of_a_network_depends_on_its_frozen_weights():
    """Of networks with equal code, heads and trained weights, one has another frozen weight."""
    tasks, networks = cp.tasks(DATA, 1, 3, 2, "iid"), [backbone() for _ in range(3)]
    networks[2][0][1].weight.data[0, 0] += 1
    first, same, other = (
        architecture_of_tasks({"a": one}, None, tasks, 0, keeps_head=False).identity()
        for one in networks
    )
    assert first == same
    assert {key for key in first if first[key] != other[key]} == {"base"}


def test_study_trains_what_its_setting_names(tiny_settings, tmp_path):
    settings = {"trainable": "4.*, 1.bias", "method": "random coprefl", "task-rounds": 1}
    study = study_of(tiny_settings, **settings)
    stage = study.stages[0]
    assert list(model_arrays(stage.module)) == ["1.bias", "4.weight", "4.bias"]
    assert list(stage.initial()) == ["1.bias", "4.weight", "4.bias"]
    folder = run_study(LocalGrid(client_app(study.client), nodes=2), study)
    arrays, about = load_saved_model(folder / "starts" / "coprefl")
    assert list(arrays) == ["1.bias", "4.weight", "4.bias"]
    assert about["trainable"] == "4.*, 1.bias"
    assert about["base"]["hash"] == base_hash(stage.module)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert {row["start"] for row in rows} == {"random", "coprefl"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"trainable": "4.wieght"}, "trainable = 4.wieght: unknown parameter '4.wieght': did you "),
        ({"trainable": "4.*, head.*"}, "trainable = 4.\\*, head.\\*: unknown parameter 'head.\\*'"),
        ({"model": f"{__name__}:all_frozen"}, "model = .*all_frozen has no trainable parameters"),
        ({"trainable": "1.*", "head": "ncm"}, "head: 4, .* or is frozen; set head = fresh or keep"),
    ],
)
def test_wrong_setting_is_refused_before_any_work(tiny_settings, changes, line):
    study = study_of(tiny_settings, **changes)
    with pytest.raises(SettingsError, match=line):
        study.check()


def all_frozen(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, classes)).requires_grad_(False)


def test_clients_share_the_memory_of_the_frozen_weights_but_the_start_has_its_own(monkeypatch):
    """A user may merge adapters into the weights of a start, which changes them in place."""
    network, placed = frozen_body(), set[int]()
    init = TorchClient.__init__

    def recorded(self, model, *arguments, **options):
        placed.add(model[2][0].weight.data_ptr())
        init(self, model, *arguments, **options)

    monkeypatch.setattr(TorchClient, "__init__", recorded)
    data = TensorDataset(torch.rand(40, 1, 4, 4), torch.arange(40) % CLASSES)
    start = cp.pretrain("fedavg", network, cp.partition(data, 2, "iid"), 1, quiet=True)
    assert placed == {network[2][0].weight.data_ptr()}
    assert start[2][0].weight.data_ptr() not in placed
