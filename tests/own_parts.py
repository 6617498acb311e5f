"""Parts of a user's own, for tests that name them by their places."""

import torch
from torch.nn.functional import softmax


def entropy(logits, labels):
    """Return how unsure a model is, in nats."""
    p = softmax(logits.double(), dim=1)
    return float(-(p * torch.log(p.clamp(min=1e-12))).sum(dim=1).mean())


entropy.title = "Entropy"
entropy.better = "lower"
