"""The grid on Ray gives the results of LocalGrid, even if one of its processes dies."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient, SCAFFOLDClient, TorchClient
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.grids import ray as grid_of_ray
from coprefl_flwr.grids.ray import connect, start_hosts
from coprefl_flwr.strategies import SCAFFOLD, CoPreFL, Cyclic, FedAvg
from tests.common.federation import Federation
from tests.common.networks import tiny_model

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def hosts():
    """Two processes, for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_ADDRESS", "RAY_worker_niceness"):
            patch.delenv(name, raising=False)
        connect(3)
        yield start_hosts(2)
        ray.shutdown()


def test_processes_have_the_priority_of_their_parent(hosts):
    """With Ray's own priority they got a thirtieth of a core next to a busy process."""

    @ray.remote
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, 0)

    assert ray.get(niceness.remote()) == os.getpriority(os.PRIO_PROCESS, 0)


def trained(grid, strategy, federation, rounds=2):
    torch.set_num_threads(1)
    strategy.clients = 4
    result = strategy.start(grid, to_record(federation.arrays()), rounds)
    return from_record(result.arrays)


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[n], second[n]) for n in first)


METHODS = {
    "fedavg": (lambda: FedAvg(participants=3), TorchClient),
    "coprefl": (lambda: CoPreFL(participants=3), CoPreFLClient),
    "scaffold": (lambda: SCAFFOLD(participants=3), SCAFFOLDClient),
    "cyclic": (lambda: Cyclic(participants=3), TorchClient),
}


@pytest.mark.parametrize("name", METHODS)
def test_ray_grid_gives_the_numbers_of_the_local_grid(name, hosts, tmp_path):
    """The numbers agree to the last bit; the states of clients between rounds are in files."""
    federation, (strategy, client) = Federation.stochastic(), METHODS[name]
    apps = [
        federation.app(client, states=tmp_path / place if name == "scaffold" else None)
        for place in ("local", "ray")
    ]
    expected = trained(LocalGrid(apps[0], nodes=2), strategy(), federation, 3)
    arrays = trained(RayGrid(apps[1], 2, hosts=hosts), strategy(), federation, 3)
    assert same(arrays, expected)


def noisy(inputs, generator):
    return inputs + torch.randn(inputs.shape, generator=generator)


def test_augmentation_has_the_same_random_numbers_on_ray(hosts):
    federation = Federation.stochastic()
    plain = trained(LocalGrid(federation.torch_app(), nodes=2), FedAvg(), federation)
    federation.training = replace(federation.training, augment=noisy, optimiser="adamw")
    app = federation.torch_app()
    expected = trained(LocalGrid(app, nodes=4), FedAvg(), federation)
    assert not same(expected, plain)
    assert same(trained(RayGrid(app, 4, hosts=hosts), FedAvg(), federation), expected)


def test_one_node_may_run_in_this_process(hosts):
    federation = Federation.stochastic()
    app = federation.torch_app()
    both = RayGrid(app, 2, hosts=[None, hosts[1]])
    local = LocalGrid(app, nodes=2)
    assert same(trained(both, FedAvg(), federation), trained(local, FedAvg(), federation))


def slow_app():
    """Return an app that counts messages in its node's state and sleeps for `seconds`."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        if message.content["config"].get("fail"):
            raise ArithmeticError("first line\nsecond line")
        count = int(context.state["kept"]["count"]) + 1 if "kept" in context.state else 1
        context.state["kept"] = MetricRecord({"count": count})
        time.sleep(float(message.content["config"]["seconds"]))
        metrics = {"count": count, "partition": context.node_config["partition-id"]}
        metrics["size"] = context.run_config["size"]
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def message(node, seconds=0.0, **more):
    return Message(
        RecordDict({"config": ConfigRecord({"seconds": seconds, **more})}), node, "train"
    )


def metrics(replies):
    return [dict(reply.content["metrics"]) for reply in replies]


def test_late_reply_is_dropped(hosts):
    grid = RayGrid(slow_app(), 2, {"size": 8}, hosts=hosts)
    nodes = list(grid.get_node_ids())
    assert metrics(grid.send_and_receive(map(message, nodes), timeout=60)) == [
        {"count": 1, "partition": 0, "size": 8},
        {"count": 1, "partition": 1, "size": 8},
    ]
    late = [message(nodes[0], 1.0), message(nodes[1])]
    assert metrics(grid.send_and_receive(late, timeout=0.5)) == [
        {"count": 2, "partition": 1, "size": 8}
    ]
    (after,) = grid.send_and_receive([message(nodes[0])], timeout=60)
    assert metrics([after]) == [{"count": 3, "partition": 0, "size": 8}]
    ids = list(grid.push_messages([message(nodes[0], 0.2)]))
    assert list(grid.pull_messages(ids)) == []


def test_exception_is_the_error_reply_of_the_local_grid(hosts):
    grids = [RayGrid(slow_app(), 2, hosts=hosts), LocalGrid(slow_app(), 2)]
    replies = [list(grid.send_and_receive([message(2, fail=True)])) for grid in grids]
    (reply,), (other,) = replies
    assert (reply.error.code, reply.error.reason) == (other.error.code, other.error.reason)
    assert reply.metadata.src_node_id == 2


def test_arrays_of_all_messages_are_put_once(hosts, monkeypatch):
    put, seen = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value: seen.append(value) or put(value))
    federation = Federation.stochastic()
    trained(
        RayGrid(federation.torch_app(), 2, hosts=hosts), FedAvg(evaluate_every=0), federation, 3
    )
    arrays = [record for record in seen if isinstance(record, dict)]
    assert [record.keys() for record in arrays] == 3 * [federation.start.keys()]


def ask_until_it_ends(host):
    """Ask a process until it fails: a process that was ended may answer once more."""
    for _ in range(300):
        ray.get(host.is_ready.remote(), timeout=30)
        time.sleep(0.1)


def test_grid_ends_its_processes_and_refuses_more_than_ray_has(hosts, monkeypatch):
    """Two of Ray's CPUs are always in use."""
    with RayGrid(slow_app(), 2, {"size": 1}, workers=1) as grid:
        answers = metrics(grid.send_and_receive(map(message, grid.get_node_ids()), timeout=60))
        assert [answer["partition"] for answer in answers] == [0, 1]
        (process,) = grid._own
        monkeypatch.setattr("coprefl_flwr.grids.ray.START_UP", 2.0)
        with pytest.raises(RunFailedError, match="2 of 2 processes did not start within 2 s"):
            RayGrid(slow_app(), 2)
    with pytest.raises(ray.exceptions.RayActorError):
        ask_until_it_ends(process)
    with pytest.raises(SettingsError, match="4 processes need as many CPUs, but Ray has 3 CPUs"):
        RayGrid(slow_app(), 4)


@pytest.mark.parametrize("started", [True, False])
def test_grid_shuts_ray_down_only_if_it_started_ray(started, hosts, monkeypatch):
    """The grid ends Ray once, but not if Ray or the processes were started before."""
    ended = []
    monkeypatch.setattr("coprefl_flwr.grids.ray.connect", lambda cpus: started)
    monkeypatch.setattr("coprefl_flwr.grids.ray.start_hosts", lambda number: [])
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append("Ray"))
    RayGrid(slow_app(), 2, hosts=hosts).close()
    assert not ended
    with RayGrid(slow_app(), 2, workers=1) as grid:
        pass
    grid.close()
    assert ended == ["Ray"] * started


@pytest.mark.parametrize(
    ("gpus", "number", "share"),
    [(0, 3, 0.0), (1, 1, 1), (1, 3, 1 / 3), (4, 4, 1), (5, 2, 2), (2, 3, 0.5), (4, 6, 0.5)],
)
def test_share_of_a_gpu_fits_on_one_gpu(gpus, number, share, monkeypatch):
    """Ray gives a process whole GPUs or a part of one GPU: 3 processes on 2 GPUs get 1/2 each."""
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": float(gpus)} if gpus else {})
    assert grid_of_ray.gpu_share(number) == share
    if share:
        assert gpus * (int(1 / share) if share < 1 else 1 / share) >= number


def test_pretrain_in_several_processes_trains_the_same_module(hosts, monkeypatch):
    """The module is the same as in this process, up to the rounding of sums over two nodes."""
    monkeypatch.setattr("coprefl_flwr.grids.ray.start_hosts", lambda number: hosts[:number])
    monkeypatch.setattr("coprefl_flwr.grids.ray.end_hosts", lambda started: None)
    data = TensorDataset(torch.rand(60, 1, 4, 4), torch.arange(60) % 3)
    clients = cp.partition(data, clients=4, scheme="iid", min_samples=2)
    method = cp.CoPreFL(gamma=0.5, participants=4)
    networks = [
        cp.pretrain(method, tiny_model(), clients, 2, workers=n, learning_rate=0.1, quiet=True)
        for n in (1, 2)
    ]
    for first, second in zip(*(module.state_dict().values() for module in networks), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


class Mortal(SCAFFOLDClient):
    """Client 1 ends its process in round 2; if `once` is a file's path, only the first time."""

    once = None

    def fit(self, parameters, config):
        alive = self.once is None or not self.once.exists()
        if (config["client"], config["server-round"]) == (1, 2) and alive:
            if self.once:
                self.once.touch()
            os._exit(9)
        return super().fit(parameters, config)


def test_dead_process_is_replaced_and_asked_again(hosts, tmp_path):
    """The clients' states of the previous round are still available."""
    federation = Federation.stochastic()

    class Once(Mortal):
        once = tmp_path / "died"

    app = federation.app(Once, states=tmp_path / "ray")
    arrays = trained(RayGrid(app, 2, hosts=hosts), SCAFFOLD(), federation, 3)
    assert (tmp_path / "died").exists()
    local = LocalGrid(federation.app(SCAFFOLDClient, states=tmp_path / "local"), nodes=2)
    assert same(arrays, trained(local, SCAFFOLD(), federation, 3))


def test_clients_whose_process_died_twice_are_left_out_and_named(hosts, tmp_path, caplog):
    federation = Federation.stochastic()
    app = federation.app(Mortal, states=tmp_path)
    strategy = SCAFFOLD(min_replies=4, max_failed_rounds=1)
    with pytest.raises(RunFailedError):
        trained(RayGrid(app, 2, hosts=hosts), strategy, federation)
    died = "its process died twice: it was killed, exited, or had too little memory"
    lines = [line for line in caplog.messages if line.startswith("client ")]
    assert lines == [f"client {i} on node 2 is left out: {died}" for i in (0, 1)]
