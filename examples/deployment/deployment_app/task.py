"""What the server and every node share: the model and its pixels."""

from torch import nn

from coprefl_flwr.models import build_model

MODEL = "femnist-cnn"
NUM_CLASSES = 100
IMAGE_SHAPE = (1, 28, 28)  # channels, height, width
# Of images / 255. They are fixed, because values measured by each node would differ.
PIXEL_MEAN, PIXEL_STD = 0.124, 0.268


def initial_model(seed: int) -> nn.Module:
    """Return the model with the random weights that the pre-training starts from."""
    return build_model(MODEL, NUM_CLASSES, IMAGE_SHAPE, seed_key=(seed, "model"))
