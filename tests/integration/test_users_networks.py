"""Networks and clients of users that do what plain PyTorch and Flower allow."""

import numpy as np
import pytest
import torch
from flwr.app import Array, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import dropout
from torch.utils import data

import coprefl_flwr as cp
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import query_reply
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.models import load_arrays, model_arrays
from coprefl_flwr.strategies import QFFL, SCAFFOLD, CoPreFL, FedAvg

SMALL = {"rounds": 1, "local_steps": 2, "batch_size": 8, "quiet": True}


@pytest.fixture
def clients():
    return cp.partition(cp.load_dataset("glyphs"), 3, "iid", only=range(5))


def trained(method, model, clients):
    start = cp.pretrain(method, model, clients, **SMALL)
    return torch.cat([weight.flatten() for weight in start.state_dict().values()])


class Viewing(nn.Module):
    """The network of many tutorials: `view` needs PyTorch's default memory format."""

    def __init__(self, flat="view"):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last, self.flat = nn.Conv2d(1, 4, 3), nn.Linear(4 * 26 * 26, 5), flat

    def forward(self, images):
        features = self.conv(images.reshape(-1, 1, 28, 28))
        size = len(images), 4 * 26 * 26
        return self.last(getattr(features, self.flat)(*size))


@pytest.mark.parametrize("shape", [(1, 28, 28), (28, 28)])
def test_network_with_view_trains_like_one_with_reshape(shape):
    """Before, each client failed: the package uses another memory format for convolutions."""
    values = torch.rand(60, *shape, generator=torch.Generator().manual_seed(0))
    clients = cp.partition(data.TensorDataset(values, torch.arange(60) % 5), 3, "iid")
    by_view, by_reshape = (
        trained(CoPreFL(participants=2), Viewing(flat), clients) for flat in ("view", "reshape")
    )
    torch.testing.assert_close(by_view, by_reshape)


class Dropping(nn.Module):
    """A network that draws random numbers in eval mode too, as `F.dropout` does by default."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(28 * 28, 5)

    def forward(self, images):
        return self.last(dropout(images.flatten(1), 0.5))


@pytest.mark.parametrize("method", [CoPreFL, QFFL, SCAFFOLD])
def test_network_that_draws_in_eval_mode_is_seeded(method, clients):
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(trained(method(participants=2), Dropping(), clients))
    assert torch.equal(*runs)


class Attention(nn.Module):
    """A network with attention, whose fused kernel has no second derivatives."""

    def __init__(self, classes=5):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.last = nn.Linear(28, 8), nn.Linear(8, classes)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, images):
        rows = self.rows(images[:, 0])
        return self.last(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))


def test_attention_has_second_derivatives(clients):
    assert (
        trained(cp.FedMeta(variant="maml", participants=2), Attention(), clients).isfinite().all()
    )
    tasks = cp.tasks(cp.load_dataset("glyphs"), 1, clients=2, only=range(5, 10))
    starts = {"random": Attention()}
    result = cp.evaluate_starts(starts, tasks, diagnostics=True, **SMALL)
    assert "hessian" in result.rounds


# ---- clients ------------------------------------------------------------------------------------


def test_app_can_change_the_record_of_its_message():
    """Before, the nodes of the local grid shared one record, and each began where another ended."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        record, node = message.content["arrays"], context.node_config["partition-id"]
        record["w"] = Array(record["w"].numpy() + 1 + node)
        content = {"arrays": record, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    strategy, start = FedAvg(min_available_nodes=3, evaluate_every=0), {"w": np.zeros(1)}
    assert strategy.start(LocalGrid(app, 3), to_record(start), 1).arrays["w"].numpy() == [2.0]


def test_query_restores_the_train_mode_of_the_network(clients):
    app, modes, model = ClientApp(), [], nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 5))

    def reply(message):
        return RecordDict(
            {
                "arrays": to_record(model_arrays(model)),
                "metrics": MetricRecord({"num-examples": 9, "loss": 1.0}),
            }
        )

    @app.train()
    def train(message, context):
        load_arrays(model, from_record(message.content["arrays"]))
        modes.append([layer.training for layer in model.modules()])
        return Message(reply(message), reply_to=message)

    @app.train("query")
    def query(message, context):
        return query_reply(message, model, clients[0].batches(32, torch.device("cpu")))

    strategy = CoPreFL(min_available_nodes=1, evaluate_every=0)
    strategy.start(LocalGrid(app, 1), to_record(model_arrays(model)), 2)
    assert modes == [[True] * 3] * 2


# ---- strategies ---------------------------------------------------------------------------------


def test_strategy_with_server_data_needs_no_server_reserve(clients):
    """Before, the clients' reserve was counted, which the strategy does not use."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 5))
    own = data.TensorDataset(torch.rand(20, 1, 28, 28), torch.arange(20) % 5)
    server = cp.ServerData(network, own)
    method = cp.HybridCoPreFL(server=server, participants=2)
    assert trained(method, network, clients).isfinite().all()


# ---- buffers ------------------------------------------------------------------------------------


class Statistics(nn.Module):
    """A linear layer with a float buffer, which holds the mean of the last training batch."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.name = nn.Linear(2, 2), name
        self.register_buffer(name, torch.zeros(()))

    def forward(self, inputs):
        if self.training:
            getattr(self, self.name).copy_(inputs.mean())
        return self.linear(inputs)


METHODS = (
    *("fedavg", "fedadam", "fedyogi", "fedavgm:global-learning-rate=0.5", "qffl:q=2", "moon"),
    *("scaffold:global-learning-rate=0.5", "feddyn", "fedmeta:inner-steps=1", "fedprox", "coprefl"),
    *("fedavg:aggregation=median", "fedavg-refined"),
)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["running_mean", "mean_ema"])
def test_buffer_of_any_name_is_the_mean_of_the_clients(method, name):
    """Earlier, only BatchNorm's names were buffers: FedAdam made variances negative."""
    sites = [
        data.TensorDataset(torch.full((size, 2), value), torch.arange(size) % 2)
        for size, value in ((10, 1.0), (30, 5.0))
    ]
    model, options = Statistics(name), {"rounds": 1, "quiet": True, "batch_size": 30}
    if method == "fedavg-refined":
        clients = cp.partition(sites[1], 2, "iid", server_reserve=0.2)
        start, expected = cp.pretrain(method, model, clients, **options), 5.0
    else:
        start = cp.pretrain(method, model, sites, **options)
        expected = 3.0 if "median" in method else 4.0  # Weighted by samples: 0.25 and 0.75.
    assert float(getattr(start, name)) == pytest.approx(expected, abs=1e-5)
