"""The augmentation of training batches: a function of a batch's inputs and a generator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from coprefl_flwr.data.inputs import Inputs
from coprefl_flwr.errors import SettingsError, prefixed
from coprefl_flwr.learning.user_functions import UserFunction, described


@dataclass(frozen=True)
class Augmentation(UserFunction):
    """An augmentation by its place, such as `augment.py:crop`, or as an object in Python.

    It is a function of (inputs, generator) that returns inputs of the same shape and dtype. The
    inputs (b, ...) are those of a training batch, as the network receives them, such as normalised
    images. The `torch.Generator` is on their device. It is seeded by seed, population, round and
    client.
    """

    setting: ClassVar = "augment"

    @torch.no_grad()
    def __call__(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        """Return the augmented inputs of a batch."""
        return self.loaded(inputs, generator)

    def seeded(self, rng: np.random.Generator, device: torch.device) -> Callable[[Inputs], Inputs]:
        """Return the augmentation on a device; the numbers that `rng` draws stay the same."""
        generator = torch.Generator(device)
        generator.manual_seed(int(rng.spawn(1)[0].integers(2**63)))
        return lambda inputs: self(inputs, generator)

    def check(self, inputs: Inputs) -> None:
        """Raise a SettingsError if the augmentation changes the shape or the dtype of inputs."""
        before, _ = described(inputs), self.loaded
        with prefixed(f"augment = {self}", "augment", of=Exception):
            after = described(self(inputs, torch.Generator().manual_seed(0)))
        if after != before:
            raise SettingsError(f"augment = {self}: inputs {before} became {after}", "augment")
