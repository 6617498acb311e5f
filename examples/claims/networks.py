"""Small networks for comparisons that two cores can pay."""

from torch import nn


class ThreeConvolutions(nn.Sequential):
    """Three convolutions with pooling and two linear layers: 67 thousand weights at 16 x 16."""

    def __init__(self, num_classes: int, input_shape: tuple[int, ...]) -> None:
        channels, side = input_shape[0], input_shape[-1] // 8
        super().__init__(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Linear(128, num_classes),
        )
