"""Train three small backbones centrally, on images that no client has.

    python examples/claims/backbones.py FOLDER FASHION.npz CIFAR100.npz

The network is the small CNN. FOLDER/fashion is trained on Fashion-MNIST, FOLDER/first and
FOLDER/second on the two halves of CIFAR-100's classes. They replace the backbones of FedPCL, which
were trained on Quick Draw, Aircraft and Birds (its appendix A.1.3) and are not published.
An .npz file holds `train_images`, uint8 (N, H, W) or (N, H, W, 3), and `train_labels`, (N,).
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from coprefl_flwr.models import build_model, model_arrays, save_model

EPOCHS, BATCH, RATE = 5, 64, 0.05


def main(folder: str, fashion: str, cifar: str) -> None:
    """Train and write the three backbones."""
    images, labels = load(fashion)
    train(Path(folder) / "fashion", images, labels)
    images, labels = load(cifar)
    for name, half in (("first", labels < 50), ("second", labels >= 50)):
        train(Path(folder) / name, images[half], labels[half] % 50)


def load(file: str) -> tuple[Tensor, Tensor]:
    """Return images, float32 (N, C, H, W) from 0 to 1, and labels, int64 (N,)."""
    with np.load(file) as found:
        pixels, labels = found["train_images"], found["train_labels"]
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return images, torch.from_numpy(labels.astype(np.int64))


def train(folder: Path, images: Tensor, labels: Tensor) -> None:
    """Train the small CNN by SGD with momentum, and write it as a model of this package."""
    classes, shape = int(labels.max()) + 1, tuple(images.shape[1:])
    std, mean = torch.std_mean(images, dim=(0, 2, 3))
    model = build_model("femnist-cnn", classes, shape)
    torch.manual_seed(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for epoch in range(EPOCHS):
        losses = []
        for rows in torch.randperm(len(images)).split(BATCH):
            optimiser.zero_grad()
            inputs = (images[rows] - mean[:, None, None]) / std[:, None, None]
            loss = cross_entropy(model(inputs), labels[rows])
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        print(f"{folder.name}, epoch {epoch + 1}: loss {np.mean(losses):.3f}", flush=True)
    about = {
        "start": "centralised", "phases": [], "model": "femnist-cnn", "norm": "batch",
        "num-classes": classes, "input-shape": list(shape),
        "pixel-mean": mean.tolist(), "pixel-std": std.tolist(),
    }  # fmt: skip
    save_model(folder, model_arrays(model), about)


if __name__ == "__main__":
    main(*sys.argv[1:])
