"""A network of several inputs has the numbers of the same network of one input."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import data

import coprefl_flwr as cp
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient, FedMetaClient, FedProtoClient, TorchClient
from coprefl_flwr.data import Samples, TensorDataset, pooled
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.learning.evaluation import loss_and_gradient
from coprefl_flwr.models import model_arrays
from coprefl_flwr.strategies import CoPreFL, FedAvg, FedMeta
from coprefl_flwr.studies.populations import hash_of_samples
from tests.common.clients import CONFIG
from tests.common.federation import CPU, HOSTINGS, hosted

SMALL = {"rounds": 2, "local_steps": 2, "batch_size": 8, "learning_rate": 0.1, "quiet": True}
VALUES = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 3
FORMS = {
    "tensor": lambda rows: rows,
    "tuple": lambda rows: (rows[..., :2], rows[..., 2:]),
    "dict": lambda rows: {"second": rows[..., 2:], "first": rows[..., :2]},
}


class Net(nn.Module):
    """A network of one input or of two, whose outputs are a tensor or in an object."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, first, second=None):
        if second is None:
            return self.head(torch.tanh(self.body(first)))
        return SimpleNamespace(logits=self(torch.cat([first, second], dim=-1)))


def dataset(form):
    return [(FORMS[form](row), label) for row, label in zip(VALUES, LABELS, strict=True)]


def samples(form):
    both = TensorDataset(FORMS[form](VALUES), labels=LABELS.numpy(), classes=("a", "b", "c"))
    return Samples(both, np.arange(60), both.labels)


def clients(form):
    return cp.partition(dataset(form), 4, "dirichlet", alpha=1.0, min_samples=5)


def equal(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one.keys() | other.keys())


@pytest.mark.parametrize("form", ["tuple", "dict"])
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "coprefl",
        "fedmeta:variant=maml",
        "per-fedavg:variant=hf",
        "moon",
        "qffl:q=1",
        "fedetf",
    ],
)
def test_a_start_is_the_same_for_every_form_of_inputs(method, form):
    starts = [cp.pretrain(method, Net(), clients(kind), **SMALL) for kind in ("tensor", form)]
    assert equal(*map(model_arrays, starts))
    assert not equal(model_arrays(starts[0]), model_arrays(Net()))


def test_outputs_of_bfloat16_become_float32():
    both = (cp.pretrain("fedavg", Net(), clients(f), precision="bf16", **SMALL) for f in FORMS)
    first, *others = map(model_arrays, both)
    assert all(equal(first, other) for other in others)


@pytest.mark.parametrize("head", ["fresh", "ncm"])
def test_tasks_diagnostics_and_metrics_are_the_same(head):
    def first_output(outputs, labels):
        return float(outputs[:, 0].mean())

    how = {"rounds": 2, "head": head, "diagnostics": True, "client_metrics": first_output}
    frames = []
    for form in ("tensor", "dict"):
        tasks = cp.tasks(dataset(form), 2, 2, 2, "iid")
        result = cp.evaluate_starts({"random": Net()}, tasks, quiet=True, **how)
        frames += [result.rows, result.rounds]
    for of_tensor, of_dict in zip(frames[:2], frames[2:], strict=True):
        assert "metric:first_output" in frames[0]
        assert of_tensor.equals(of_dict)


@pytest.mark.ray
def test_workers_have_the_same_numbers():
    ends = [cp.pretrain("coprefl", Net(), clients("dict"), workers=n, **SMALL) for n in (1, 2)]
    for one, other in zip(*(model_arrays(end).values() for end in ends), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("client_class", "strategy_class"),
    [(TorchClient, FedAvg), (CoPreFLClient, CoPreFL), (FedMetaClient, FedMeta)],
)
def test_every_hosting_has_the_same_result(client_class, strategy_class):
    ends = {}
    for form, hosting in [("tensor", "1"), *(("dict", name) for name in HOSTINGS)]:
        whole = samples(form)
        parts = [whole.take(np.arange(i, 60, 4)) for i in range(4)]
        grid = hosted(hosting, lambda _, i, p=parts: client_class(Net(), p[i], device=CPU))
        strategy = strategy_class(participants=3, seed=3, clients=grid.clients)
        result = strategy.start(grid, to_record(model_arrays(Net())), 2)
        ends[form, hosting] = from_record(result.arrays)
    for arrays in ends.values():
        for name, array in ends["tensor", "1"].items():
            np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-6)


def test_fedproto_and_queries_of_apps_take_several_inputs(tmp_path):
    answers = []
    for form in ("tensor", "dict"):
        own = samples(form)
        state = ClientState(tmp_path / form)
        client = FedProtoClient(
            Net(), own, test=own, state=state, initial=model_arrays(Net()), device=CPU
        )
        sets = [np.ones((3, 5), np.float32), np.ones(3, np.float32)]
        sent, *_ = client.fit(sets, {**CONFIG, "fedproto-mu": 1.0})
        loss, _, metrics = client.evaluate(sent, CONFIG)
        query = loss_and_gradient(Net(), own.batches(16, CPU))
        answers.append([*sent, loss, metrics["correct"], query.loss, *query.gradient.values()])
    for of_tensor, of_dict in zip(*answers, strict=True):
        assert np.array_equal(of_tensor, of_dict)


def test_hash_of_samples_depends_on_every_input():
    one = samples("dict")
    other = samples("dict")
    other.dataset.values["first"] = other.dataset.values["first"] + 1
    assert hash_of_samples([one]) == hash_of_samples([samples("dict")])
    assert hash_of_samples([one]) != hash_of_samples([other])


def test_samples_of_several_datasets_are_pooled():
    inputs, labels = pooled([samples("dict"), samples("dict")]).batch(slice(60, 62), CPU)
    assert inputs["first"].tolist() == VALUES[:2, :2].tolist()
    assert labels.tolist() == [0, 1]


def test_augmentation_gets_the_inputs_as_the_network_does():
    def shift(inputs, generator):
        return {name: rows + 1 for name, rows in inputs.items()}

    def moved(inputs, generator):
        return inputs | {"first": inputs["first"][:, :1]}

    shifted = [({k: rows + 1 for k, rows in item.items()}, y) for item, y in dataset("dict")]
    both = [
        cp.pretrain("fedavg", Net(), cp.partition(own, 4, "iid"), augment=augment, **SMALL)
        for own, augment in ((dataset("dict"), shift), (shifted, None))
    ]
    assert equal(*map(model_arrays, both))
    with pytest.raises(cp.SettingsError, match=r"first: float32 \(2, 2\).* became .*\(2, 1\)"):
        cp.pretrain("fedavg", Net(), clients("dict"), augment=moved, **SMALL)


def test_an_input_that_a_network_does_not_take_is_refused():
    items = [(FORMS["dict"](row) | {"third": row}, y) for row, y in dataset("tensor")]
    loader = cp.partition(data.DataLoader(items, 7), 4, "iid")
    line = r"second: float32 \(2, 4\), first: .* \(in Python, columns= .* argument 'third'"
    with pytest.raises(cp.SettingsError, match=line):
        cp.pretrain("fedavg", Net(), loader, **SMALL)
