"""Every method gives the same results on a GPU, here a simulated GPU, as on the CPU."""

import copy
import re
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from coprefl_flwr.client_app import app
from coprefl_flwr.clients import CoPreFLClient, TorchClient
from coprefl_flwr.data import dataset as datasets
from coprefl_flwr.data import make_dataset
from coprefl_flwr.data.dataset import on_same_device
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation.progress import Progress
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning import ServerData
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, with_role
from coprefl_flwr.strategies import FedAvg
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_stage
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import Layout, Store
from coprefl_flwr.transfer import on_cpu, on_device
from tests.common.accelerator import CPU, DEVICE, Remote, accelerator
from tests.common.by_hand import run_on
from tests.common.data import write_domain
from tests.common.federation import Federation


def results(settings, folder):
    """Run a study's stages; return {path: bytes} of the files with weights and results."""
    settings = replace(settings, output_dir=str(folder))
    study = build(settings)
    study.check()
    store, grid = Store(folder / "tiny", Layout.PATH), LocalGrid(app, 1, settings.to_config())
    for stage in study.stages:
        progress = Progress()
        progress.add([(stage.title, stage.kind, stage.rounds)])
        run_stage(stage, grid, store, progress)
    kept = [*folder.rglob("result.json"), *folder.rglob("model.safetensors")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def assert_same_on_both(settings, folder):
    """Assert that a study writes the same bytes on the CPU and the accelerator; return them."""
    here = results(settings, folder / "cpu")
    with accelerator() as used:
        there = results(settings, folder / "accelerator")
    assert here.keys() == there.keys()
    assert [path for path in here if here[path] != there[path]] == []
    assert used.on_device > 200
    return here


def test_every_method_pre_trains(tiny_settings, tmp_path):
    """In the second round, clients read the states that they stored in the first round."""
    methods = with_role(PRETRAINING)
    settings = replace(
        tiny_settings, method=" ".join(methods), rounds=2, local_steps=1, clients=3,
        server_reserve=0.2, tasks=0, start_loss=True,
    )  # fmt: skip
    found = assert_same_on_both(settings, tmp_path)
    assert sum(path.endswith("model.safetensors") for path in found) == len(methods)


@pytest.mark.parametrize("head", ["fresh", *with_role(HEAD)])
def test_tasks_with_every_head(head, tiny_settings, tmp_path):
    settings = replace(
        tiny_settings, method="random", head=head, tasks=1, task_rounds=1,
        diagnostics=head == "fresh",
    )  # fmt: skip
    assert_same_on_both(settings, tmp_path)


def test_every_personalised_method(tmp_path):
    for number in range(2):
        write_domain(tmp_path / f"{number}.npz", number)
    settings = Settings(
        study=PERSONALISED,
        run_name="tiny",
        personal_datasets=f"{tmp_path / '0.npz'} {tmp_path / '1.npz'}",
        method=" ".join(with_role(PERSONALISED)),
        rounds=2,
        local_steps=1,
        train_per_class=3,
        test_per_class=5,
        batch_size=8,
        noise_on="prototypes",
    )
    assert_same_on_both(settings, tmp_path)


class SeenByNumPy(TorchClient):
    """A client that reads its weights with NumPy, which works only on the CPU."""

    def fit(self, parameters, config):
        self.load(parameters)
        for p in self.model.parameters():
            p.detach().numpy()
        return super().fit(parameters, config)


class LeftOnTheCPU(TorchClient):
    """A client whose objective uses a tensor that was not moved to the device."""

    def fit(self, parameters, config):
        self.load(parameters)
        weight = torch.tensor([1.0, 2.0, 3.0])

        def objective(inputs, targets):
            return torch.nn.functional.cross_entropy(self.model(inputs), targets, weight)

        loss = self.train_locally(self.train, config, objective)
        return self.weights(), len(self.train), {"loss": loss}


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (SeenByNumPy, r"can't convert lazy:?\d* device type tensor to numpy"),
        (LeftOnTheCPU, "Expected all tensors to be on the same device"),
    ],
)
def test_what_works_on_the_cpu_alone_is_found(planted, found, federation, caplog):
    run_on(FedAvg(), federation.grid("1", planted), federation.arrays(), 1)
    with accelerator(), pytest.raises(RunFailedError) as failed:
        run_on(FedAvg(), federation.grid("1", planted, device=None), federation.arrays(), 1)
    assert re.search(found, f"{failed.value}\n{caplog.text}")


def test_at_the_server_too(federation):
    with accelerator():
        server = ServerData(federation.model, federation.samples[0])
        assert {p.device.type for p in server.model.parameters()} == {DEVICE.type}
        server.evaluate(federation.arrays())
        server.samples = Here(federation.samples[0])
        with pytest.raises(RuntimeError, match="on the same device"):
            server.evaluate(federation.arrays())


class Here:
    """Samples whose targets stay on the CPU."""

    def __init__(self, samples):
        self.samples = samples

    def batches(self, batch_size, device):
        for inputs, _ in self.samples.batches(batch_size, device):
            yield inputs, torch.zeros(len(inputs), dtype=torch.int64)


REFUSED = {
    "a sum of both": lambda far, near: far + near,
    "a sum of both, the number there": lambda far, near: far.sum() + near,
    "a product of matrices": lambda far, near: far @ near,
    "both in one tensor": lambda far, near: torch.cat([far, near]),
    "numbers of both in one tensor": lambda far, near: torch.stack([far.sum(), near.sum()]),
    "written into the CPU's": lambda far, near: near.add_(far),
    "a number added to the CPU's": lambda far, near: near.sum().add_(far.sum()),
    "the CPU's mask": lambda far, near: torch.where(near > 0, far, far),
    "rows taken by the CPU's": lambda far, near: far.index_select(0, torch.tensor([0])),
    "the CPU's values at its indices": lambda far, near: far.index_put_((torch.tensor([0]),), near),
    "the CPU's generator": lambda far, near: far.normal_(generator=torch.Generator()),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_gpu_refuses_is_refused(what):
    near = torch.ones(2, 2)
    with accelerator(), pytest.raises(RuntimeError, match=r"the same device|for generator but"):
        REFUSED[what](near.to(DEVICE), near)


ALLOWED = {
    "brought back": (lambda far, near: far.cpu(), False),
    "another type, on another device": (lambda far, near: near.to(far.device, torch.float64), True),
    "a CPU's number": (lambda far, near: far * torch.tensor(3.0), True),
    "a CPU's number, written": (lambda far, near: far.add_(torch.tensor(3.0)), True),
    "the CPU's indices": (lambda far, near: far[torch.tensor([1])], True),
    "copied into the CPU's": (lambda far, near: near.clone().copy_(far + 1), False),
    "copied from the CPU's": (lambda far, near: far.copy_(near + 1), True),
    "numbers made there": (lambda far, near: torch.tensor([1, 2], device=far.device), True),
    "numbers made like others": (lambda far, near: far.new_tensor(2.5), True),
    "zeros made there": (lambda far, near: torch.zeros(2, device=far.device), True),
    "zeros made like others": (lambda far, near: torch.zeros_like(far), True),
    "a view that is written into": (lambda far, near: far.t()[0].zero_()._base, True),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_what_a_gpu_allows_is_what_the_cpu_computes(what):
    compute, remote = ALLOWED[what]
    near = torch.arange(4.0).view(2, 2)
    with accelerator():
        found = compute(near.clone().to(DEVICE), near)
        assert isinstance(found, Remote) == remote
        assert found.device.type == (DEVICE.type if remote else "cpu")
        values = found.tolist()
    assert values == compute(near.clone(), near).to(CPU).tolist()


ASKED = {"fit": 2, "query": 1, "evaluate": 1}
"""{method: number of waits for the GPU}; "fit" waits for the loss and for the weights."""


@pytest.mark.parametrize("method", ASKED)
def test_a_gpu_is_waited_for_at_the_end_alone(method):
    """The number of waits does not depend on the number of steps or arrays.

    The data are on the GPU before the first step.
    """
    federation, config = Federation.stochastic(), {"server-round": 1, "client": 3}
    samples, training = federation.samples[3], federation.training
    sent = list(federation.arrays().values())
    here = CoPreFLClient(federation.model, samples, test=samples, training=training)
    first, *expected = getattr(here, method)(sent, config)
    with accelerator() as used:
        model = copy.deepcopy(federation.model)
        there = CoPreFLClient(model, samples, test=samples, training=training)
        getattr(there, method)(sent, config)  # Moves the model and the images.
        before = used.waits
        again, *found = getattr(there, method)(sent, config)
        assert found == expected
        np.testing.assert_equal(again, first)
        assert used.waits - before == ASKED[method]


WAITED = {
    "a number": lambda far, near: far.sum().item(),
    "copied here": lambda far, near: far.cpu(),
    "copied there": lambda far, near: near.to(DEVICE),
    "written here": lambda far, near: near.copy_(far),
    "written there": lambda far, near: far.copy_(near),
}


@pytest.mark.parametrize("what", WAITED)
def test_what_a_gpu_is_waited_for_is_counted(what):
    near = torch.ones(2)
    with accelerator() as used:
        far = on_device(near, DEVICE)
        far.copy_(near, non_blocking=True)
        assert torch.equal(on_cpu({"x": far + 1})["x"], near + 1)
        assert used.waits == 1
        assert torch.isnan(far.to(CPU, non_blocking=True)).all()  # There was no wait.
        WAITED[what](far, near)
        assert used.waits == 2


def test_a_model_goes_there_and_back():
    model = Federation.full_batch().model
    before = [p.clone() for p in model.parameters()]
    with accelerator():
        model.to(DEVICE)
        assert all(isinstance(p, Remote) and p.requires_grad for p in model.parameters())
        with pytest.raises(TypeError, match="to numpy"):
            next(model.parameters()).detach().numpy()
    model.to(CPU)  # Arrays on the device can still be moved after the block.
    pairs = zip(model.parameters(), before, strict=True)
    assert all(type(p) is torch.nn.Parameter and torch.equal(p, old) for p, old in pairs)


@pytest.mark.parametrize("room", [True, False])
def test_images_are_brought_to_the_device_once_where_there_is_room(room, monkeypatch):
    images = torch.arange(96, dtype=torch.uint8).reshape(6, 1, 4, 4)
    whole = make_dataset("x", images, np.arange(6) % 2)
    rows = np.array([4, 1])
    expected = whole.inputs(rows, CPU)
    free = images.nbytes / datasets.GPU_SHARE - (0 if room else 1)
    monkeypatch.setattr(datasets, "_free_bytes", lambda _: free)
    with accelerator():
        for dataset in (whole, replace(whole)):  # Two populations, the same images.
            found = dataset.inputs(rows, DEVICE)
            assert found.device.type == DEVICE.type
            assert torch.equal(found.cpu(), expected)
        lying = on_same_device(images, DEVICE)
        assert lying is on_same_device(images, DEVICE)
    assert isinstance(lying, Remote) == room
    assert (lying is images) == (not room)
    known = weakref.ref(images)
    del images, whole, dataset, lying
    assert known() is None  # Otherwise, data would stay in memory until the process ends.
