"""Objects of a program that changed between two calls: the second call gives new results."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import data

import coprefl_flwr as cp
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data import make_dataset, pooled
from coprefl_flwr.federation import Exchange, Mean
from coprefl_flwr.studies.populations import Clients, hash_of_samples
from coprefl_flwr.studies.stage import TrainingStage

torch.manual_seed(0)
INPUTS = torch.randn(240, 6)
LABELS = (INPUTS[:, 0] > 0).long() + 2 * (INPUTS[:, 1] > 0).long()
WHOLE = data.TensorDataset(INPUTS, LABELS)
SMALL = {"rounds": 2, "local_steps": 3, "learning_rate": 0.3, "quiet": True}


@pytest.fixture
def clients():
    return cp.partition(WHOLE, clients=3, scheme="iid")


@pytest.fixture
def tasks():
    return cp.tasks(WHOLE, number=1, classes=3, clients=2, scheme="iid")


def network(act=nn.ReLU, *, frozen=False):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), act(), nn.Linear(8, 4))
    model[0].weight.requires_grad_(not frozen)
    return model


def strategy(step=1.0, factor=1.0):
    """Return a method of the same name, whose server or client computes otherwise."""

    class Client(TorchClient):
        def weights(self):
            return [factor * array for array in super().weights()]

    @dataclass(kw_only=True, eq=False)
    class Own(cp.FedAvg):
        client = Client

        def round(self, ctx, arrays):
            replies = yield Exchange("train", arrays, ctx.sample(), Mean())
            return {
                n: w + np.float32(step) * (replies.arrays[n] - w) for n, w in arrays.items()
            }, {}

    return Own()


def top(k):
    def metric(logits, labels):
        return float((logits.topk(k).indices == labels[:, None]).any(1).double().mean())

    return metric


CHANGES = {
    "activation": {"model": network(nn.Tanh)},
    "frozen": {"model": network(frozen=True)},
    "strategy": {"method": strategy(0.5)},
    "client": {"method": strategy(factor=0.5)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_pretraining_with_a_changed_object_runs_again(change, clients, tmp_path):
    def weights(method, model, **more):
        trained = cp.pretrain(method, model, clients, **SMALL, **more)
        return torch.cat([w.flatten() for w in trained.state_dict().values()])

    first = {"method": strategy(), "model": network()}
    weights(**first, checkpoint=tmp_path)
    changed = first | CHANGES[change]
    again = weights(**changed, checkpoint=tmp_path)
    assert torch.equal(again, weights(**changed))
    assert not torch.equal(again, weights(**first))
    assert (tmp_path / "earlier-1").exists()


@pytest.mark.parametrize("change", [*CHANGES, "metric"])
def test_tasks_with_a_changed_object_run_again(change, tasks, tmp_path):
    def rows(model, method, metric, **more):
        options = {**SMALL, **more, "method": method, "client_metrics": metric}
        return cp.evaluate_starts({"a": model}, tasks, **options).rows

    first = {"method": strategy(), "model": network(), "metric": top(1)}
    rows(**first, checkpoint=tmp_path)
    changed = first | CHANGES.get(change, {"metric": top(2)})
    again = rows(**changed, checkpoint=tmp_path)
    assert again.equals(rows(**changed))
    assert not again.equals(rows(**first))


def test_equal_new_objects_repeat_no_stage(clients, tasks, tmp_path, monkeypatch):
    first = cp.pretrain(strategy(), network(), clients, **SMALL, checkpoint=tmp_path / "start")
    metric = {"client_metrics": top(1), "checkpoint": tmp_path / "tasks"}
    cp.evaluate_starts({"a": first}, tasks, **SMALL, **metric)
    monkeypatch.setattr(TrainingStage, "make", lambda *_: pytest.fail("a stage ran again"))
    again = cp.pretrain(strategy(), network(), clients, **SMALL, checkpoint=tmp_path / "start")
    metric["client_metrics"] = top(1)
    cp.evaluate_starts({"a": again}, tasks, **SMALL, **metric)


# ---- data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 38, 199])
def test_hash_of_data_depends_on_every_sample(number):
    """Before, the inputs of 64 samples counted."""
    values = INPUTS.clone()
    values[number] += 1
    hashes = [
        hash_of_samples(list(Clients.of_datasets([data.TensorDataset(inputs, LABELS)])))
        for inputs in (INPUTS, values)
    ]
    assert hashes[0] != hashes[1]


def test_samples_of_several_datasets_are_pooled():
    """Before, the first dataset was read in place of all others, for centralised training too."""
    parts = [data.TensorDataset(INPUTS[rows], LABELS[rows]) for rows in (slice(90), slice(90, 240))]
    samples = pooled(Clients.of_datasets(parts).samples)
    inputs, labels = samples.batch(slice(None), torch.device("cpu"))
    assert torch.equal(inputs, INPUTS)
    assert torch.equal(labels, LABELS)


# ---- defaults -----------------------------------------------------------------------------------


def test_default_partition_and_tasks_use_all_clients_groups_and_domains():
    for options in ({}, {"scheme": "iid"}):
        assert len(cp.partition(cp.load_dataset("glyphs"), **options)) == 100
    groups = np.repeat(np.arange(10), [5, 43, *(8 * [24])])
    written = make_dataset("own", INPUTS, LABELS.numpy(), groups=groups)
    assert sorted(map(len, cp.partition(written, scheme="natural"))) == [*(8 * [24]), 43]
    tasks = cp.tasks(cp.load_dataset("glyphs:domains"), number=1, classes=5, clients=2)
    assert len(tasks[0].clients) == 2


def test_more_tasks_keep_the_results_of_finished_tasks(tmp_path, clients):
    """Before, the identity of each task contained the samples of all tasks."""
    start = cp.pretrain("fedavg", network(), clients, **SMALL)
    results = []
    for number in (1, 2):
        tasks = cp.tasks(WHOLE, number=number, classes=3, clients=2, scheme="iid")
        results.append(cp.evaluate_starts({"a": start}, tasks, checkpoint=tmp_path / "r", **SMALL))
    assert not list(tmp_path.rglob("earlier-*"))
    first, both = (result.rows for result in results)
    assert both[both["task"] == 0]["loss"].tolist() == first["loss"].tolist()
    assert set(both["task"]) == {0, 1}


class Transformed(data.Dataset):
    """A dataset of a program, with a transform that the program may replace."""

    def __init__(self):
        self.transform = torch.clone

    def __len__(self):
        return 60

    def __getitem__(self, number):
        return self.transform(INPUTS[number]), int(LABELS[number])


def test_client_datasets_are_read_again_after_a_changed_transform():
    """Before, the samples of the first call were used as long as the dataset existed."""
    own = Transformed()
    before = Clients.of_datasets([own])[0].batch(slice(0, 2), torch.device("cpu"))[0]
    own.transform = torch.neg
    after = Clients.of_datasets([own])[0].batch(slice(0, 2), torch.device("cpu"))[0]
    assert torch.equal(after, -before)
