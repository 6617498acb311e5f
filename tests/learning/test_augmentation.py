"""Augmentation of training batches: what it sees, and which random numbers it draws."""

import numpy as np
import pytest
import torch

import coprefl_flwr as cp
from coprefl_flwr import seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import (
    CoPreFLClient,
    PerFedAvgClient,
    TorchClient,
)
from coprefl_flwr.clients.pfedme import PFedMeClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.learning.augmentation import Augmentation
from coprefl_flwr.learning.training import LocalTraining, endless_batches
from coprefl_flwr.models import model_arrays
from coprefl_flwr.strategies import CoPreFL, FedAvg
from tests.common.checks import Killed
from tests.common.clients import CONFIG
from tests.common.data import images
from tests.common.federation import CPU, HOSTINGS
from tests.common.networks import Perceptron, tiny_model


def jitter(inputs, generator):
    """Add Gaussian noise."""
    return inputs + torch.randn(inputs.shape, generator=generator)


class Record:
    """An augmentation that keeps copies of its inputs and outputs."""

    def __init__(self):
        self.inputs, self.outputs = [], []

    def __call__(self, inputs, generator):
        self.inputs.append(inputs.clone())
        self.outputs.append(jitter(inputs, generator))
        return self.outputs[-1]


def client_of(client_class, samples, augment, folder, **options):
    options = {"local_steps": 2, "batch_size": 4, "learning_rate": 0.1, **options}
    training = LocalTraining(**options, augment=augment)
    more = {"state": ClientState(folder)} if "state" in client_class.injected else {}
    return client_class(tiny_model(), samples, test=samples, training=training, device=CPU, **more)


OPTIONS = {
    "inner-learning-rate": 0.1, "meta-variant": "fo", "pfedme-lambda": 1.0, "inner-steps": 2,
    "meta-learning-rate": 0.1,
}  # fmt: skip


def fit(client, config=CONFIG):
    arrays = list(model_arrays(tiny_model()).values())
    return client.fit(arrays, {**config, **OPTIONS})


@pytest.mark.parametrize(
    ("client_class", "batches"),
    [
        (TorchClient, 2),
        (CoPreFLClient, 2),
        (PerFedAvgClient, 4),
        (PFedMeClient, 2),
    ],
)
def test_training_batches_are_augmented_and_their_order_stays(
    federation, tmp_path, client_class, batches
):
    augment = Record()
    client = client_of(client_class, federation.samples[2], augment, tmp_path)
    fit(client)
    key = client.key(CONFIG, "batches")
    samples = client.training_samples(CONFIG)
    order = endless_batches(len(samples), 4, seeds.generator(*key))
    assert len(augment.inputs) == batches
    for seen in augment.inputs:
        assert torch.equal(seen, samples.batch(next(order), CPU)[0])
    noise = [after - before for before, after in zip(augment.inputs, augment.outputs, strict=True)]
    assert not any(torch.equal(one, noise[0]) for one in noise[1:])


def test_random_numbers_depend_on_seed_population_round_and_client(federation, tmp_path):
    def noise(**changes):
        augment = Record()
        fit(client_of(TorchClient, federation.samples[2], augment, tmp_path), CONFIG | changes)
        return augment.outputs[0] - augment.inputs[0]

    first = noise()
    assert torch.equal(first, noise())
    for change in ({"seed": 4}, {"population": "q"}, {"server-round": 3}, {"client": 2}):
        assert (noise(**change) - first).abs().max() > 0.1


def refused(inputs, generator):
    raise AssertionError("only training batches are augmented")


def test_queries_and_evaluations_see_the_samples_themselves(federation, tmp_path):
    arrays = list(model_arrays(tiny_model()).values())
    answers = []
    for augment in (None, refused):
        client = client_of(CoPreFLClient, federation.samples[2], augment, tmp_path)
        gradient, *rest = client.query(arrays, CONFIG)
        answers.append([gradient, rest, client.evaluate(arrays, CONFIG)])
        client = client_of(PerFedAvgClient, federation.samples[2], augment, tmp_path)
        answers[-1].append(client.evaluate(arrays, {**CONFIG, **OPTIONS}))
    np.testing.assert_equal(answers[0], answers[1])


def test_one_augmented_step_by_hand(exact_federation):
    """A step of rate 0.1 on the full batch, whose order is that of the first epoch."""
    samples, augment = exact_federation.samples[1], Record()
    training = LocalTraining(local_steps=1, batch_size=1000, learning_rate=0.1, augment=augment)
    exact_federation.model.load_state_dict(exact_federation.model.state_dict())
    client = TorchClient(exact_federation.model, samples, training=training, device=CPU)
    start = [array.copy() for array in model_arrays(client.model).values()]
    client.load(start)
    client.model.train()
    weights = [p for p in client.model.parameters() if p.requires_grad]
    rng = seeds.generator(*client.key(CONFIG, "batches"))
    order = next(endless_batches(len(samples), 1000, rng))
    fit_weights, *_ = client.fit(start, CONFIG)
    client.load(start)
    loss = torch.nn.functional.cross_entropy(
        client.model(augment.outputs[0]), samples.batch(order, CPU)[1]
    )
    gradients = torch.autograd.grad(loss, weights)
    expected = [(p - 0.1 * g).detach().numpy() for p, g in zip(weights, gradients, strict=True)]
    names = [name for name, _ in client.model.named_parameters()]
    found = dict(zip(model_arrays(client.model), fit_weights, strict=True))
    for name, array in zip(names, expected, strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-11, atol=1e-13)


def test_result_is_the_same_for_every_hosting(stochastic_federation):
    stochastic_federation.training = LocalTraining(
        local_steps=3, batch_size=8, learning_rate=0.1, augment=jitter
    )
    start, ends = to_record(stochastic_federation.arrays()), {}
    for hosting in HOSTINGS:
        grid = stochastic_federation.grid(hosting, CoPreFLClient)
        strategy = CoPreFL(participants=3, seed=3, clients=grid.clients, meta_learning_rate=0.1)
        ends[hosting] = from_record(strategy.start(grid, start, 3).arrays)
    for arrays in ends.values():
        for name, array in ends["1"].items():
            np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-6)


def test_resumed_run_has_the_bytes_of_an_uninterrupted_one(stochastic_federation, tmp_path):
    stochastic_federation.training = LocalTraining(
        local_steps=3, batch_size=8, augment=jitter, schedule="cosine:length=4,warm-up=2"
    )

    def run(file, resume=False, hook=lambda report: None):
        grid = stochastic_federation.grid("1", TorchClient)
        strategy = FedAvg(participants=2, seed=3, clients=grid.clients)
        start = to_record(stochastic_federation.arrays())
        run_options = {"checkpoint": tmp_path / file, "resume": resume, "hooks": [hook]}
        return from_record(strategy.start(grid, start, 4, **run_options).arrays)

    def kill(report):
        if report.round == 2:
            raise Killed

    expected = run("whole")
    with pytest.raises(Killed):
        run("killed", hook=kill)
    resumed = run("killed", resume=True)
    for name, array in expected.items():
        assert resumed[name].tobytes() == array.tobytes()


def crop(inputs, generator):
    return inputs[..., 1:]


BAD = {
    "cropped": (crop, r"float32 \(2, 1, 4, 4\) became float32 \(2, 1, 4, 3\)"),
    "rounded": (lambda inputs, generator: inputs.double(), r"became float64"),
    "forgot": (lambda inputs, generator: None, "became NoneType"),
    "alone": (lambda inputs: inputs, "TypeError: .*takes 1 positional argument"),
    "place": ("torch:rolll", "torch:rolll: unknown name 'rolll': did you mean 'roll'"),
    "name": ("crop", "unknown augment 'crop': .*, or module:NAME"),
}


@pytest.mark.parametrize("name", BAD)
def test_augmentation_that_does_not_fit_is_refused_in_one_line(federation, name):
    augment, message = BAD[name]
    with pytest.raises(SettingsError, match=message) as caught:
        Augmentation.read(augment).check(federation.whole(0)[0][:2])
    assert "\n" not in str(caught.value)


def test_python_call_refuses_an_augmentation_before_the_first_round():
    clients = cp.partition(images(), clients=3, scheme="iid")
    with pytest.raises(SettingsError, match=r"augment = crop: inputs .* became"):
        cp.pretrain("fedavg", Perceptron(), clients, 1, quiet=True, augment=crop)


def test_transforms_of_torchvision_fit(stochastic_federation):
    """Each image has its own transform, and the same call gives the same images again."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    transform = v2.Compose([v2.RandomCrop(4, padding=1), v2.RandomHorizontalFlip()])

    def augment(inputs, generator):
        return torch.stack([transform(image) for image in inputs])

    Augmentation.read(augment).check(stochastic_federation.whole(0)[0])
    ends = []
    for model_augment in (augment, augment, None):
        training = LocalTraining(local_steps=3, batch_size=8, augment=model_augment)
        client = TorchClient(
            tiny_model(), stochastic_federation.samples[2], training=training, device=CPU
        )
        torch.rand(len(ends))  # The state of the global generator before does not count.
        ends.append(fit(client)[0])
    for one, same, plain in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, same)
        assert one.dtype.kind == "i" or (one != plain).any()


def test_code_of_the_augmentation_counts_in_keys():
    def other(inputs, generator):
        return inputs - torch.randn(inputs.shape, generator=generator)

    texts = [Augmentation.read(f).identity()["augment"] for f in (jitter, other, "torch:add")]
    assert len(set(texts)) == 3
    assert texts[2].startswith("torch:add ")
