"""The loss landscape around a starting model of the store, measured once."""

import io
import logging

import numpy as np

from coprefl_flwr import seeds
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning import ServerData
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.recipes.runs import ModelStore, Run
from coprefl_flwr.report.figures import Landscape, landscape
from coprefl_flwr.studies.starts import Starts

logger = logging.getLogger("flwr.coprefl")

POINTS, SPAN, SAMPLES = 21, 1.0, 500
"""Grid points a side, half its side in lengths of the filters, samples the loss is a mean over."""


def loss_around(store: ModelStore, run: Run) -> Landscape | None:
    """Return the training loss around a run's model, over a sample of all clients' data.

    None for a personalised method, which leaves no model of everybody.
    """
    study, folder = run.study, store.folder(run.main)
    if not isinstance(study, Starts):
        return None
    file = folder / "landscape.npz"
    if file.exists():
        with np.load(file) as kept:
            return Landscape(kept["steps"], kept["losses"])
    logger.info("measuring the loss around %s at %s points", run.name, POINTS**2)
    samples = study.populations.samples_of("clients")
    rng = seeds.generator(study.run.seed, "landscape-samples")
    drawn = rng.permutation(len(samples))[:SAMPLES]
    data = ServerData(study.network(), samples.take(np.sort(drawn)))
    arrays, _ = load_saved_model(folder)
    found = landscape(lambda at: data.evaluate(at)["loss"], arrays, span=SPAN, points=POINTS)
    content = io.BytesIO()
    np.savez(content, steps=found.steps, losses=found.losses)
    write_atomically(file, content.getvalue())
    return found
