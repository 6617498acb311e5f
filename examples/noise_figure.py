"""Draw an image of a dataset without and with noise on its pixels, as in FedPCL's Figure 6.

python examples/noise_figure.py glyphs noise.png laplace 0.2 0.1
python examples/noise_figure.py hf:data/office10 noise.png gaussian 0.2 0.2
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import coprefl_flwr as cp
from coprefl_flwr.learning.noise import Noise


def draw(dataset: str, path: str, kind: str, scale: float, share: float) -> None:
    """Draw the first image of a dataset, and the same image with (1 - share) x + noise."""
    image = cp.load_dataset(dataset).images[0].numpy() / 255
    noised = Noise(kind=kind, scale=scale, share=share).on(image, np.random.default_rng(0))
    figure = Figure(figsize=(5, 2.8), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, name, pixels in zip(panels, ("without", "with"), (image, noised), strict=True):
        shown = np.clip(pixels, 0, 1).transpose(1, 2, 0)
        panel.imshow(shown if len(image) == 3 else shown[..., 0], cmap="gray", vmin=0, vmax=1)
        panel.set_title(f"{name} noise")
        panel.set_axis_off()
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    draw(*sys.argv[1:4], *map(float, sys.argv[4:]))
