"""Samples and a network together, such as the server's data in CoPreFL's scenario II."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.data import Samples, as_samples
from coprefl_flwr.learning import evaluation
from coprefl_flwr.learning.device import default_device, placed
from coprefl_flwr.learning.loss import CROSS_ENTROPY, Loss
from coprefl_flwr.learning.training import LocalTraining, local_sgd, torch_seeded
from coprefl_flwr.models import load_arrays, model_arrays
from coprefl_flwr.models.precision import FLOAT32
from coprefl_flwr.seeds import generator


class ServerData:
    """Samples, such as the server's dataset D^s, and a network for losses, gradients and training.

    Every call overwrites the weights of `model`. `samples` are Samples, or a torch Dataset or a
    DataLoader, which is read once (see `as_samples`). The labels of `samples` are the labels of the
    pre-training. If `device` is None, the device is the GPU if the process sees a GPU, or else the
    CPU. Losses and gradients are those of `loss` (see `learning.loss.Loss`), in the number format
    `precision`. `refine` uses the loss and the precision of its `training` instead.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Samples | Any,
        device: torch.device | str | None = None,
        precision: str = FLOAT32,
        loss: Loss | Any = CROSS_ENTROPY,
    ) -> None:
        self.device = torch.device(device) if device else default_device()
        self.precision, self.loss = precision, Loss.read(loss)
        self.samples = as_samples("server", samples)
        self.model = placed(model, self.device, self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def loss_and_gradient(
        self, arrays: Arrays, positions: npt.NDArray[np.int64] | None = None
    ) -> evaluation.LossAndGradient:
        """Return the mean loss of the model `arrays`, and the gradient of the loss.

        `positions` are the indices of the samples to use; None means all samples.
        """
        load_arrays(self.model, arrays)
        samples = self.samples if positions is None else self.samples.take(positions)
        batches = samples.batches(evaluation.EVALUATION_BATCH, self.device)
        loss = self.loss.of_batch
        return evaluation.loss_and_gradient(self.model, batches, loss, precision=self.precision)

    def evaluate(self, arrays: Arrays) -> Mapping[str, float]:
        """Return the metrics of the model `arrays` on all samples (see `evaluate`)."""
        load_arrays(self.model, arrays)
        batches = self.samples.batches(evaluation.EVALUATION_BATCH, self.device)
        return evaluation.evaluate(self.model, batches, precision=self.precision, loss=self.loss)

    def refine(
        self, arrays: Arrays, training: LocalTraining, server_round: int, *key: str | int
    ) -> tuple[Arrays, float]:
        """Return the model `arrays` after local training on the samples, and the mean batch loss.

        `key` is the seed key of the random numbers. `server_round` sets the learning rate.
        """
        load_arrays(self.model, arrays)
        placed(self.model, self.device, self.samples)  # Restores what an earlier call changed.
        with torch_seeded(*key, network=self.model):
            loss = local_sgd(
                self.model,
                self.samples,
                training,
                server_round=server_round,
                rng=generator(*key),
                device=self.device,
            )
        return model_arrays(self.model), loss
