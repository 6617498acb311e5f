"""Clients, tasks and networks of data whose targets are no classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.data import as_samples
from coprefl_flwr.studies.architecture import CPU
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.populations import Clients, hash_of_samples
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.tasks import architecture_of_tasks
from tests.common.checks import refusal

N, REGIONS = 240, 4
GROUPS = np.arange(N) % REGIONS
SMALL = {"clients": 2, "min_samples": 2}


def regression(shape=(1,)):
    """Return 240 samples of 3 numbers; the targets are other numbers."""
    rng = np.random.default_rng(0)
    inputs = torch.tensor(rng.standard_normal((N, 3)), dtype=torch.float32)
    return TensorDataset(inputs, torch.tensor(rng.standard_normal((N, *shape))))


def segmentation():
    """Return 240 images of 6x6 pixels; the target is one of 3 classes for each pixel."""
    images = torch.arange(N * 36).reshape(N, 1, 6, 6) % 256
    return TensorDataset(images.to(torch.uint8), images[:, 0] % 3)


def network(outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def test_clients_hold_the_targets_of_their_samples():
    data = regression((2,))
    clients = cp.partition(data, clients=5, server_reserve=0.1)
    assert repr(clients).endswith("samples each, targets float32 (2,)>")
    rows = {tuple(x.tolist()): y for x, y in zip(*data.tensors, strict=True)}
    for samples in (*clients.samples, clients.server):
        for x, y in zip(*samples.batch(slice(None), CPU), strict=True):
            assert torch.equal(y, rows[tuple(x.tolist())].float())
    regions = cp.partition(data, groups=GROUPS)
    assert [{*GROUPS[one.indices]} for one in regions] == [{0}, {1}, {2}, {3}]


def test_other_targets_are_other_samples():
    one = as_samples("data", regression())
    changed = one.dataset.targets.clone()
    changed[7] += 1
    other = replace(one, dataset=replace(one.dataset, targets=changed))
    assert hash_of_samples([one]) == hash_of_samples([as_samples("data", regression())])
    assert hash_of_samples([one]) != hash_of_samples([other])


def test_clients_with_targets_of_two_kinds_are_refused():
    classes = TensorDataset(torch.rand(N, 3), torch.arange(N) % 2)
    line = "clients: some have several classes and some targets float32 (1,); one is allowed"
    assert refusal(Clients.of_datasets, [regression(), classes]) == line
    assert "float32 () and some" in refusal(Clients.of_datasets, [regression(()), regression()])


@pytest.mark.parametrize("method", ["fedavg", "coprefl:gamma=0.25"])
def test_partitioned_clients_are_trained_as_their_own_datasets(method):
    """`tests/strategies/test_own_losses.py` has the same methods by hand."""
    clients = cp.partition(regression(), clients=4)
    own = [TensorDataset(*samples.batch(slice(None), CPU)) for samples in clients.samples]
    options = {"loss": functional.mse_loss, "quiet": True, "local_steps": 2, "batch_size": N}
    first, second = (
        cp.pretrain(method, network(), some, 2, **options).state_dict() for some in (clients, own)
    )
    for name, weight in network().state_dict().items():
        torch.testing.assert_close(first[name], second[name])
        assert not torch.equal(first[name], weight)


def test_numbers_that_torch_would_broadcast_are_refused():
    """Outputs (n, 1) and targets (n,) have n x n differences; torch only warns."""
    clients = cp.partition(regression(()), clients=4)
    line = refusal(
        cp.pretrain, "fedavg", network(), clients, 1, loss=functional.mse_loss, quiet=True
    )
    assert "outputs float32 (2, 1) and targets float32 (2,): UserWarning: Using a target" in line


# ---- tasks ---------------------------------------------------------------------------------------


def test_a_task_has_all_samples_of_one_group():
    """Without a number, each group is a task; `by` need not be set."""
    tasks = cp.tasks(regression(), groups=GROUPS, **SMALL)
    assert repr(tasks) == "<4 tasks of targets float32 (1,) and 2 clients>"
    for number, task in enumerate(tasks):
        parts = [part for client in task.clients for part in (client.train, client.test)]
        rows = np.concatenate([part.indices for part in parts])
        assert sorted(rows) == np.flatnonzero(number == GROUPS).tolist()
    explicit = cp.tasks(regression(), groups=GROUPS, by="group", **SMALL)
    assert tasks.identity(2) == explicit.identity(2)
    drawn = cp.tasks(regression(), 2, groups=GROUPS, seed=1, **SMALL)
    assert len(drawn) == 2


def test_a_task_has_all_samples_of_one_domain_if_there_are_domains():
    dataset = as_samples("data", regression()).dataset
    domains = np.arange(N) // 80
    dataset = replace(dataset, domains=domains, domain_names=("a", "b", "c"), groups=GROUPS)
    tasks = cp.tasks(dataset, **SMALL)
    assert [{*domains[task.clients[0].train.indices]} for task in tasks] == [{0}, {1}, {2}]


def test_impossible_tasks_are_refused():
    line = "by = 'group': the dataset has no groups; name them with groups="
    assert refusal(cp.tasks, regression(), **SMALL) == line
    line = refusal(cp.tasks, regression(), 5, groups=GROUPS, **SMALL)
    assert line == "number = 5: only 4 of 4 groups have 1 classes or more"
    first, second = (cp.tasks(regression(k), groups=GROUPS, **SMALL) for k in ((1,), (2,)))
    line = "(3,) with targets float32 (1,) and (3,) with targets float32 (2,) must"
    assert line in refusal(first.__add__, second)


# ---- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_fresh_last_layer_has_as_many_outputs_as_the_replaced_one(outputs):
    """A loss may need more outputs than numbers, such as a mean and a variance."""
    tasks = cp.tasks(regression(), groups=GROUPS, **SMALL)
    first = network(outputs)
    architecture = architecture_of_tasks({"a": first}, None, tasks, 0, keeps_head=False)
    assert architecture.num_classes == 1
    assert architecture.make(1, "task")[2].weight.shape == first[2].weight.shape
    assert architecture.head == {"2.weight", "2.bias"}


def test_a_network_without_a_linear_last_layer_needs_a_function():
    """The function gets the number of classes of a pixel."""
    tasks, asked = cp.tasks(segmentation(), groups=GROUPS, **SMALL), []

    def convolution(outputs):
        asked.append(outputs)
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, outputs, 1))

    arguments = {"a": convolution(3)}, None, tasks, 0
    line = refusal(architecture_of_tasks, *arguments, keeps_head=False)
    assert "calls no nn.Linear, " in line
    assert "in tasks, network= makes one" in line
    asked.clear()
    architecture = architecture_of_tasks({}, convolution, tasks, 0, keeps_head=False)
    assert {*asked} == {3, 4}
    assert architecture.head == {"1.weight", "1.bias"}
    # The probe, which needs a linear layer, is of classes alone.
    options = {"loss": functional.cross_entropy, "quiet": True, "diagnostics": True}
    starts = {"a": convolution(3)}
    result = cp.evaluate_starts(starts, tasks, 1, network=convolution, **options)
    assert "hessian" in result.rounds
    assert "probe" not in result.rounds
    with pytest.raises(
        cp.SettingsError, match=r"gives \(3, 2\) for a batch of 2; must give \(2, \.\.\.\)"
    ):
        architecture_of_tasks(
            {},
            lambda k: nn.Sequential(nn.Flatten(), nn.Linear(36, k), Turned()),
            tasks,
            0,
            keeps_head=False,
        )


class Turned(nn.Module):
    def forward(self, outputs):
        return outputs.T


@pytest.mark.parametrize("head", ["ncm", "ridge"])
def test_a_computed_head_needs_classes(head):
    tasks = cp.tasks(regression(), groups=GROUPS, **SMALL)
    options = {"loss": functional.mse_loss, "quiet": True, "head": head}
    line = refusal(cp.evaluate_starts, {"a": network()}, tasks, 1, **options)
    assert line == f"head = {head}: needs classes; set fresh or keep"


# ---- studies by settings -------------------------------------------------------------------------


@pytest.fixture
def ages(tmp_path, tiny_settings):
    """The settings of a study of images with one number each, in three domains."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (N, 6, 6), dtype=np.uint8)
    arrays = {"images": images, "labels": images.mean(axis=(1, 2))[:, None] / 255}
    np.savez(
        tmp_path / "ages.npz", **arrays, domains=np.arange(N) % 3, domain_names=["a", "b", "c"]
    )
    return replace(
        tiny_settings, dataset=str(tmp_path / "ages.npz"), loss="torch.nn.functional:mse_loss"
    )


def test_tasks_of_settings_are_domains_that_the_pretraining_does_not_have(ages):
    settings = replace(ages, pretraining_domains="a", downstream_domains="b c", tasks=2)
    stages = build(settings).stages
    for stage in stages:
        stage.check()
    assert stages[0].architecture.num_classes == 1
    domains = stages[0].clients.source.dataset.domains
    for stage in stages:
        rows = np.concatenate([client.train.indices for client in stage.population.clients])
        of_stage = {0} if stage.phase == "pretraining" else {stage.task + 1}
        assert {*domains[rows]} == of_stage


def test_samples_of_settings_are_divided_by_task_reserve(ages):
    line = refusal(lambda: build(ages).stages[0].check())
    assert line.startswith(
        "without classes, the tasks would have the samples of the pre-training: "
    )
    stages = build(replace(ages, task_reserve=0.5, tasks=2)).stages
    before, after = (
        {row for client in stage.population.clients for row in client.train.indices}
        for stage in (stages[0], stages[-1])
    )
    assert len(before) == N // 2
    assert after
    assert not before & after


def test_personalised_studies_need_classes(ages):
    settings = Settings(study="personalised", method="fedproto", personal_datasets=ages.dataset)
    assert refusal(build(settings).check).endswith("is not a dataset of images of classes")
