"""Data with a network to compute on it: the server's in CoPreFL's scenario II, a client's too."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.data import Samples
from coprefl_flwr.learning import EVALUATION_BATCH, LossAndGradient, evaluate, loss_and_gradient
from coprefl_flwr.learning.device import default_device, placed
from coprefl_flwr.learning.training import LocalTraining, local_sgd, torch_seeded
from coprefl_flwr.models import load_arrays, model_arrays
from coprefl_flwr.models.precision import FLOAT32
from coprefl_flwr.seeds import generator


class ServerData:
    """A dataset, such as the server's D^s, and a network to compute on it with.

    Every call overwrites the weights of `model`; `samples` have the labels of the pre-training.
    `device` is the GPU if none is given and the process sees one. Losses and gradients are computed
    in `precision`, which training says for itself.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Samples,
        device: torch.device | None = None,
        precision: str = FLOAT32,
    ) -> None:
        self.device, self.precision = device or default_device(), precision
        self.model = placed(model, self.device)
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def loss_and_gradient(
        self, arrays: Arrays, positions: npt.NDArray[np.int64] | None = None
    ) -> LossAndGradient:
        """Return the mean loss of `arrays` on all samples or some, and its gradient."""
        load_arrays(self.model, arrays)
        samples = self.samples if positions is None else self.samples.take(positions)
        batches = samples.batches(EVALUATION_BATCH, self.device)
        return loss_and_gradient(self.model, batches, precision=self.precision)

    def evaluate(self, arrays: Arrays) -> Mapping[str, float]:
        """Return {"num-examples", "correct", "loss"} of `arrays` on all samples."""
        load_arrays(self.model, arrays)
        batches = self.samples.batches(EVALUATION_BATCH, self.device)
        return evaluate(self.model, batches, precision=self.precision)

    def refine(
        self, arrays: Arrays, training: LocalTraining, server_round: int, *key: str | int
    ) -> tuple[Arrays, float]:
        """Return `arrays` after SGD on the samples, and the mean loss of the batches."""
        load_arrays(self.model, arrays)
        with torch_seeded(*key):
            loss = local_sgd(
                self.model,
                self.samples,
                training,
                server_round=server_round,
                rng=generator(*key),
                device=self.device,
            )
        return model_arrays(self.model), loss
