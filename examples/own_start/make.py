"""A starting model from plain PyTorch: the small CNN, trained centrally on your own images.

    python examples/own_start/make.py pacs.npz start.pt

`pacs.npz` holds `images`, uint8 (N, H, W, 3), and `labels` (N,). A recipe then compares the weights
with starts that clients train together: `- elsewhere: {method: file:start.pt}`.
"""

import sys

import numpy as np
import torch
from torch.nn.functional import cross_entropy, interpolate

from coprefl_flwr.models import build_model

SIDE, EPOCHS, BATCH = 32, 5, 64


def main(source: str, target: str) -> None:
    """Train on the images of `source` and write a state_dict to `target`."""
    with np.load(source) as file:
        pixels, labels = file["images"], torch.from_numpy(file["labels"])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    images = interpolate(images, (SIDE, SIDE), mode="area")
    spread, mean = torch.std_mean(images, dim=(0, 2, 3), keepdim=True)
    images = (images - mean) / spread
    torch.manual_seed(0)
    model = build_model("femnist-cnn", int(labels.max()) + 1, (3, SIDE, SIDE))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(EPOCHS):
        losses = []
        for rows in torch.randperm(len(images)).split(BATCH):
            optimiser.zero_grad()
            loss = cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}")
    torch.save(model.state_dict(), target)


if __name__ == "__main__":
    main(*sys.argv[1:])
