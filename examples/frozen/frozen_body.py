"""A frozen ResNet-8 below a head of two layers: starts of the head, at a twelfth of the traffic.

python examples/frozen/frozen_body.py

The body is trained first, on characters that neither the clients nor the tasks have, and saved. It
takes the place of public weights. Every process makes the network from the same file, so the body
is known everywhere: only the head is sent. A task replaces the last of the head's two layers alone.
(If the last layer were all that is trained, and tasks began with a new one, all starts would be the
same.)
"""

from pathlib import Path

import torch
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.models import build_model

OF_BODY, OF_CLIENTS, OF_TASKS = range(40), range(40, 80), range(80, 100)
"""The classes of the body's training, of the pre-training, and of the tasks."""


def body(rounds: int) -> dict[str, torch.Tensor]:
    """Return the weights of a ResNet-8 that was trained on the first 40 characters."""
    data = cp.load_dataset("glyphs")
    clients = cp.partition(data, clients=20, only=OF_BODY)
    network = build_model("resnet8", len(OF_BODY), (1, 28, 28))
    how = {"participants": 10, "learning_rate": 0.1, "local_steps": 10, "quiet": True}
    return cp.pretrain("fedavg", network, clients, rounds, **how).state_dict()


def network(weights: dict[str, torch.Tensor]) -> nn.Module:
    """Return the frozen body below a new head of two layers."""
    resnet = build_model("resnet8", len(OF_BODY), (1, 28, 28))
    resnet.load_state_dict(weights)
    inputs, resnet.fc = resnet.fc.in_features, nn.Identity()
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, len(OF_CLIENTS)))
    return nn.Sequential(resnet.requires_grad_(False), head)


def main(
    file: Path = Path("body.pt"), rounds: int = 50, task_rounds: int = 10, tasks: int = 5
) -> cp.StartsResult:
    """Train the body unless its file exists, pre-train the head, and compare starts of the head."""
    if not file.exists():
        torch.save(body(rounds), file)
    weights, data = torch.load(file, weights_only=True), cp.load_dataset("glyphs")
    clients = cp.partition(data, clients=40, only=OF_CLIENTS)
    starts = {"random": network(weights)}
    for method in ("fedavg", "coprefl:meta-learning-rate=0.01"):
        starts[method], history = cp.pretrain(
            *(method, network(weights), clients, rounds),
            **{"participants": 10, "learning_rate": 0.1, "quiet": True, "history": True},
        )
        megabytes = history["client-bytes-up"].mean() / 1e6
        print(f"{method}: {megabytes:.2f} MB from the clients in a round")
    drawn = cp.tasks(data, number=tasks, classes=5, clients=10, only=OF_TASKS)
    return cp.evaluate_starts(starts, drawn, task_rounds, learning_rate=0.05, evaluate_every=0)


if __name__ == "__main__":
    print(main())
