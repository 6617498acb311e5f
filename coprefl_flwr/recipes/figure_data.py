"""Data of figures that a run's results lack: measured once, and stored in the run's folder.

The loss around a model is measured in two filter-normalised directions: Li et al., Visualizing the
Loss Landscape of Neural Nets, NeurIPS 2018, Section 4. https://arxiv.org/abs/1712.09913
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors.numpy import load_file, save

from coprefl_flwr.arrays import Arrays, weights_of
from coprefl_flwr.errors import logger
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.seeds import generator
from coprefl_flwr.studies.personalised import LOCAL
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.store import Store

Floats = npt.NDArray[np.float64]

POINTS, SPAN, SAMPLES = 21, 1.0, 500
"""Number of grid points per side, half the side in filter norms, and number of samples.

The number of points is odd, so that the model itself is a grid point.
"""
# Whole numbers are divided: with linspace, the middle step might not be exactly 0.
STEPS = SPAN * np.arange(1 - POINTS, POINTS, 2) / (POINTS - 1)


def loss_around(store: Store, run: Run) -> pd.DataFrame | None:
    """Return the training loss around a run's model, over a random sample of all clients' data.

    Returns None for a personalised method, which has no global model.
    """
    stage, folder = run.main, store.folder(run.main)
    if not isinstance(stage, Pretraining):
        return None

    file = folder / "landscape.safetensors"
    if not file.exists():
        logger.info("measuring the loss around %s at %s points", run.name, POINTS**2)
        samples = stage.samples_of("clients")
        rng = generator(stage.run_options.seed, "landscape-samples")
        drawn = rng.permutation(len(samples))[:SAMPLES]
        data = ServerData(stage.architecture.make(), samples.take(np.sort(drawn)), loss=stage.loss)
        arrays, _ = load_saved_model(folder)
        losses = landscape(lambda at: data.evaluate(at)["loss"], arrays)
        # safetensors stores an array's memory unchanged and reads it as C order.
        write_atomically(file, save({"losses": np.ascontiguousarray(losses.to_numpy())}))
    return pd.DataFrame(load_file(file)["losses"], STEPS, STEPS)


# ---- the loss around a model ---------------------------------------------------------------------


def landscape(loss: Callable[[Arrays], float], arrays: Arrays) -> pd.DataFrame:
    """Return the losses on a grid around a model: f(a, b) = L(θ + a δ + b η), by a and by b.

    This is Equation 1 of Li et al. The random directions δ and η depend only on the names and
    shapes of the arrays. Then each is normalised to the filters of θ. All models of one network
    thus have the same two random directions before they are normalised.

    `arrays` are the weights θ, and buffers, which no direction changes.
    """
    first, second = (direction(arrays, which) for which in ("first", "second"))

    def moved(a: float, b: float) -> Arrays:
        moving = {
            name: (arrays[name] + a * first[name] + b * second[name]).astype(arrays[name].dtype)
            for name in first
        }
        return arrays | moving

    losses = np.array([[loss(moved(a, b)) for b in STEPS] for a in STEPS], dtype=np.float64)
    return pd.DataFrame(losses, STEPS, STEPS)


def direction(arrays: Arrays, which: str) -> Arrays:
    """Return a random direction, normalised filter by filter.

    The direction has no arrays for buffers and for weights of one dimension, such as biases.
    """
    return {
        name: filter_normalised(
            generator(0, "landscape", which, name).standard_normal(array.shape), array
        )
        for name, array in weights_of(arrays).items()
        if array.ndim > 1
    }


def filter_normalised(random: Floats, weights: npt.NDArray[Any]) -> Floats:
    """Return random filters with the norms of the weights' filters: d_i / ||d_i|| * ||θ_i||.

    Filter i is the part of an array at index i of its first axis: (in, height, width) of a
    convolution, or a row of a matrix.
    """
    inner = tuple(range(1, weights.ndim))
    wanted = np.sqrt(np.sum(np.square(weights, dtype=np.float64), axis=inner, keepdims=True))
    norms = np.sqrt(np.sum(np.square(random), axis=inner, keepdims=True))
    return np.asarray(random * (wanted / np.where(norms > 0, norms, 1.0)))


# ---- the similarity of prototypes with one backbone and with all backbones -----------------------


def similarities(alone: Sequence[Arrays], fused: Arrays) -> Floats:
    """Return normalised similarity scores, shape (backbones, clients). Each client's sum is 1.

    A score is the inner product of a client's prototypes with one backbone and with all backbones
    (FedPCL, section 5.5), averaged over classes. The heads of two runs have different initial
    weights, so a score also depends on how similar the trained heads are. `alone` has the
    prototypes of each backbone's run, and `fused` those of the run with all backbones: arrays of
    shape (C, d) by client.
    """
    clients = sorted(fused, key=int)
    scores = np.array(
        [
            [np.sum(np.float64(prototypes[c]) * fused[c], axis=1).mean() for c in clients]
            for prototypes in alone
        ]
    )
    return np.asarray(scores / scores.sum(axis=0))


def similarity(
    folders: Sequence[Path], backbones: Sequence[str], clients: Sequence[str]
) -> pd.DataFrame:
    """Return the scores of finished FedPCL runs; the last folder's run has all backbones."""
    *alone, fused = [load_file(folder / LOCAL) for folder in folders]
    return pd.DataFrame(similarities(alone, fused), list(backbones), list(clients))
