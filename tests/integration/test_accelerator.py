"""Every method gives the same results on a GPU, here a simulated GPU, as on the CPU."""

import copy
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from coprefl_flwr.clients import CoPreFLClient
from coprefl_flwr.data import dataset as datasets
from coprefl_flwr.data import make_dataset
from coprefl_flwr.data.dataset import on_same_device
from coprefl_flwr.methods import HEAD, PRETRAINING
from coprefl_flwr.studies.known_methods import with_role
from tests.common.accelerator import CPU, DEVICE, Remote, accelerator
from tests.common.federation import Federation
from tests.common.networks import double_model


@pytest.fixture
def assert_same_bytes(run_stages, tmp_path):
    """Return a function that asserts that a study writes the same bytes on CPU and accelerator.

    The function returns {path: bytes} of the files with weights and results.
    """

    def results(settings, folder):
        run_stages(settings, folder)
        kept = [*folder.rglob("result.json"), *folder.rglob("model.safetensors")]
        return {str(path.relative_to(folder)): path.read_bytes() for path in kept}

    def compare(settings):
        here = results(settings, tmp_path / "cpu")
        with accelerator() as used:
            there = results(settings, tmp_path / "accelerator")
        assert here.keys() == there.keys()
        assert [path for path in here if here[path] != there[path]] == []
        assert used.on_device > 200
        return here

    return compare


def test_pretraining_by_every_method_gives_the_bytes_of_the_cpu(tiny_settings, assert_same_bytes):
    """In the second round, clients read the states that they stored in the first round."""
    methods = with_role(PRETRAINING)
    settings = replace(
        tiny_settings, method=" ".join(methods), rounds=2, local_steps=1, clients=3,
        server_reserve=0.2, tasks=0, start_loss=True,
    )  # fmt: skip
    found = assert_same_bytes(settings)
    assert sum(path.endswith("model.safetensors") for path in found) == len(methods)


@pytest.mark.parametrize("head", ["fresh", *with_role(HEAD)])
def test_tasks_with_every_head_give_the_bytes_of_the_cpu(head, tiny_settings, assert_same_bytes):
    settings = replace(
        tiny_settings, method="random", head=head, tasks=1, task_rounds=1,
        diagnostics=head == "fresh",
    )  # fmt: skip
    assert_same_bytes(settings)


def test_every_personalised_method_gives_the_bytes_of_the_cpu(personalised, assert_same_bytes):
    assert_same_bytes(replace(personalised, noise_on="prototypes"))


WAITS = {"fit": 2, "query": 1, "evaluate": 1}
"""{method: number of waits for the GPU}; "fit" waits for the loss and for the weights."""


@pytest.mark.parametrize("method", WAITS)
def test_client_waits_for_the_gpu_only_at_its_end(method):
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
        assert used.waits - before == WAITS[method]


@pytest.mark.parametrize("method", ["fit", "query", "evaluate"])
def test_clients_that_are_one_wait_once(method):
    """Whatever the number of clients and steps, on the device there is one wait, at the end."""
    federation, configs = (
        Federation.stochastic(),
        [{"server-round": 1, "client": n} for n in (2, 3)],
    )
    network = double_model(norm=False)
    sent = [array.numpy() for array in copy.deepcopy(network).state_dict().values()]

    def outcome(model):
        clients = [
            CoPreFLClient(model, samples, test=samples, training=federation.training)
            for samples in federation.samples[2:]
        ]
        return getattr(CoPreFLClient, f"{method}_together")(clients, sent, configs)

    expected, metrics = outcome(network)
    with accelerator() as used:
        model = copy.deepcopy(network)
        outcome(model)  # Moves the model and the images.
        before = used.waits
        found, of_each = outcome(model)
        assert used.waits - before == (2 if method == "evaluate" else 1)
        assert of_each == metrics
        np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("room", [True, False])
def test_images_are_copied_to_the_device_once_if_they_fit(room, monkeypatch):
    images = torch.arange(96, dtype=torch.uint8).reshape(6, 1, 4, 4)
    whole = make_dataset("x", images, np.arange(6) % 2)
    rows = np.array([4, 1])
    expected = whole.inputs(rows, CPU)
    free = images.nbytes / datasets.GPU_SHARE - (0 if room else 1)
    monkeypatch.setattr(datasets, "_free_bytes", lambda _: free)
    monkeypatch.setattr(datasets, "_copies", WeakTensorKeyDictionary())
    with accelerator():
        for dataset in (whole, replace(whole)):  # Two populations, the same images.
            found = dataset.inputs(rows, DEVICE)
            assert found.device.type == DEVICE.type
            assert torch.equal(found.cpu(), expected)
        cached = on_same_device(images, DEVICE)
        assert cached is on_same_device(images, DEVICE)
    assert isinstance(cached, Remote) == room
    assert (cached is images) == (not room)
    reference = weakref.ref(images)
    del images, whole, dataset, cached
    assert reference() is None  # Otherwise, data would stay in memory until the process ends.
