"""Attackers: client wrappers for studies of attacks on a pre-training, and of its defences.

A client wrapper takes a client and returns a client. A recipe names it, with the share of the
pre-training's clients that it wraps:

    fedavg, 30 % attackers:
        {method: fedavg, client-wrapper: attackers.py:SignFlip, client-wrapper-share: 0.3}

The wrappers do not change the number of samples, the metrics, BatchNorm's statistics, a client's
stored state and its evaluations.
"""

import numpy as np
import torch
from flwr.client import NumPyClient

from coprefl_flwr import seeds
from coprefl_flwr.arrays import append_prefixed, is_buffer
from coprefl_flwr.data import Samples
from coprefl_flwr.models import first_names

STRENGTH = 10.0
"""How many times as long as an honest update that of `Scale` is, and the noise of `Noise`."""


class Attacker(NumPyClient):
    """Lets a client compute, and changes each update in its answer.

    The update is the difference between a trained model and the model that was sent, or the answer
    itself where this is a gradient, or a change as that of SCAFFOLD's control variate.
    """

    def __init__(self, client):
        self.client = client

    def fit(self, parameters, config):
        arrays, *rest = self.client.fit(parameters, config)
        return (self.spoilt("fit", arrays, parameters, config), *rest)

    def query(self, parameters, config):
        arrays, *rest = self.client.query(parameters, config)
        return (self.spoilt("query", arrays, parameters, config), *rest)

    def evaluate(self, parameters, config):
        return self.client.evaluate(parameters, config)

    def spoilt(self, method, answer, sent, config):
        """Return the arrays of an answer, a list or a dict by name, with their updates changed."""
        model, first = list(self.client.model.state_dict()), first_names(self.client.model)
        named = answer if isinstance(answer, dict) else dict(zip(model, answer))
        before = dict(zip(model, sent))
        for label, arrays in config.get("extra", {}).items():
            before = append_prefixed(before, label, arrays)
        found = dict(named)
        for name, array in named.items():
            if name not in before or is_buffer(name, before[name]):
                continue
            # FedMeta's clients answer a query with a model where they take several steps.
            trained = name in model if method == "fit" else "local-steps" in config
            start = before[name] if trained else np.zeros_like(array)
            # Tied weights are one array under several names, and get the same noise.
            key = self.client.key(config, f"attack-{method}-{first.get(name, name)}")
            found[name] = np.asarray(self.changed(array, start, key), array.dtype)
        return found if isinstance(answer, dict) else list(found.values())

    def changed(self, array, start, key):
        """Return `start` and the changed update; the update is `array` - `start`."""
        raise NotImplementedError


class SignFlip(Attacker):
    """Turns the update around."""

    def changed(self, array, start, key):
        return start - (array - start)


class Scale(Attacker):
    """Makes the update `STRENGTH` times as long."""

    def changed(self, array, start, key):
        return start + STRENGTH * (array - start)


class Noise(Attacker):
    """Adds Gaussian noise that is `STRENGTH` times as long as the update, in every array."""

    def changed(self, array, start, key):
        noise = np.asarray(seeds.generator(*key).standard_normal(array.shape, dtype=np.float32))
        length = np.linalg.norm(noise.astype(np.float64))
        wanted = STRENGTH * np.linalg.norm((array - start).astype(np.float64))
        return array + float(wanted / length) * noise if length else array


def label_flip(client):
    """Have a client train on the labels C - 1 - y, C the number of outputs of its model."""
    held = client.train
    with torch.no_grad():
        inputs, _ = held.batch(slice(1), client.device)
        classes = client.model.eval()(inputs).shape[1]
    client.train = Samples(held.dataset, held.indices, classes - 1 - held.labels)
    return client
