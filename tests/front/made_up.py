"""Small data and networks of a caller's own."""

import datasets
import torch
from torch import nn
from torch.utils.data import TensorDataset

CLASSES = 8


def images():
    """Return 240 float images (1, 6, 6) in 8 classes, each with a pattern of its own."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(240) % CLASSES
    patterns = torch.rand(CLASSES, 1, 6, 6, generator=generator)
    noise = torch.rand(240, 1, 6, 6, generator=generator)
    return TensorDataset(patterns[labels] + 0.3 * noise, labels)


def table():
    """Return 240 rows of 10 numbers in 8 classes."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(240) % CLASSES
    centres = 2 * torch.randn(CLASSES, 10, generator=generator)
    return TensorDataset(centres[labels] + torch.randn(240, 10, generator=generator), labels)


def sequences():
    """Return 240 sequences of 12 tokens of 20 in 8 classes, each with tokens of its own."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(240) % CLASSES
    own = torch.randint(0, 2, (240, 12), generator=generator) == 1
    others = torch.randint(0, 20, (240, 12), generator=generator)
    return TensorDataset(torch.where(own, 2 * labels[:, None], others), labels)


def on_disk(folder):
    """Write the images as a Hugging Face dataset of {"image", "label"}; return it, read again."""
    values, labels = images().tensors
    columns = {"image": values.tolist(), "label": labels.tolist()}
    datasets.Dataset.from_dict(columns).save_to_disk(folder)
    return datasets.load_from_disk(folder).with_format("torch")


class Perceptron(nn.Module):
    """A network of two layers, the second one its last."""

    def __init__(self, inputs=36, classes=CLASSES, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU())
            self.last = nn.Linear(16, classes)

    def forward(self, inputs):
        return self.last(self.body(inputs))


class Recurrent(nn.Module):
    """A network of sequences of tokens."""

    def __init__(self, classes=CLASSES):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, classes)

    def forward(self, tokens):
        return self.last(self.embedding(tokens).mean(dim=1))
