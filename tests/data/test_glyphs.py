import numpy as np
import pytest
import torch
from torch import nn

from coprefl_flwr.data import glyphs, load_dataset


@pytest.fixture(scope="module")
def dataset():
    return load_dataset("glyphs")


@pytest.fixture(scope="module")
def halves(dataset):
    """(train images, train labels, test images, test labels), 80/20 of each class."""
    images = ((dataset.images / 255 - dataset.mean[0]) / dataset.std[0]).float()
    labels = torch.from_numpy(dataset.labels)
    test = torch.arange(len(labels)) % 5 == 4
    return images[~test], labels[~test], images[test], labels[test]


def accuracy(model, halves, optimizer, epochs, peak):
    """Test accuracy of `model` after training with a one-cycle learning rate up to `peak`."""
    images, labels, test_images, test_labels = halves
    order = torch.Generator().manual_seed(0)
    steps = epochs * -(-len(labels) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=order).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return (model(test_images).argmax(1) == test_labels).float().mean().item()


def test_shape_and_order(dataset):
    assert dataset.images.shape == (12_000, 1, 28, 28)
    assert dataset.images.dtype == torch.uint8
    assert np.array_equal(dataset.labels, np.repeat(np.arange(100), 120))
    assert len(set(dataset.classes)) == 100


def test_a_sixth_of_each_class_is_for_testing(dataset):
    assert np.bincount(dataset.labels[dataset.test]).tolist() == [20] * 100
    assert dataset.test[:120].tolist() == [False] * 100 + [True] * 20


def test_drawn_anew_it_is_the_same(dataset):
    again = glyphs()
    assert again is not dataset
    assert torch.equal(again.images, dataset.images)


def test_the_drawing_has_not_changed(dataset):
    """Coarse on purpose: the last bit of exp() differs between platforms."""
    images = dataset.images.float().reshape(100, -1)
    assert images.mean().item() == pytest.approx(31.69, abs=0.01)
    assert images.mean(dim=1)[[0, 33, 99]].tolist() == pytest.approx(
        [28.26, 36.37, 38.14], abs=0.05
    )


def test_samples_of_a_class_differ(dataset):
    images = dataset.images.reshape(100, 120, -1).float()
    assert (images[:, 1:] - images[:, :1]).abs().mean(dim=2).min() > 5


def test_classes_differ(dataset):
    """The mean image of every class is nearest to that of its own other half."""
    images = dataset.images.reshape(100, 2, 60, -1).float().mean(dim=2)
    distances = torch.cdist(images[:, 0], images[:, 1])
    assert (distances.argmin(dim=1) == torch.arange(100)).float().mean() > 0.95


def test_a_linear_model_fails_on_it(halves):
    for build, peak in ((torch.optim.Adam, 2e-3), (torch.optim.SGD, 0.1)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100))
        found = accuracy(model, halves, build(model.parameters(), lr=peak), 8, peak)
        assert 0.1 < found < 0.4


def test_a_small_convolutional_network_learns_it(halves):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 100)),
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())
    assert 0.8 < accuracy(model, halves, optimizer, 2, 4e-3) < 0.98
