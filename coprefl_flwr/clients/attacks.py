"""Attacks: what clients answer that want to spoil a pre-training, for studies of its defences.

An attacker computes what an honest client does, and changes the arrays of its answer:

    sign-flip    its update, turned around
    scale        its update, `STRENGTH` times as long
    noise        its update and Gaussian noise, which in each array is `STRENGTH` times as long
    label-flip   an honest update on labels turned around: y becomes C - 1 - y in its training data

The update is what a trained model differs by from the one that was sent; of a gradient, or a change
(see `TorchClient.changes`), it is that itself. What an attacker tells besides (loss, samples), the
buffers of its answer, the state that it keeps and its evaluations stay as computed.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.client import NumPyClient

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays, is_buffer
from coprefl_flwr.clients.torch_client import TorchClient
from coprefl_flwr.data import Samples
from coprefl_flwr.models import first_names

SIGN_FLIP, SCALE, LABEL_FLIP, NOISE = ATTACKS = ("sign-flip", "scale", "label-flip", "noise")

STRENGTH = 10.0
"""How many times as long as an honest update that of `scale` is, and the noise of `noise`."""


@functools.lru_cache(maxsize=64)
def attackers(seed: int, clients: int, share: float) -> frozenset[int]:
    """Return the ids of the round(share x clients) attackers, drawn by the seed alone.

    Those of a smaller share are attackers of a larger one too.
    """
    order = seeds.generator(seed, "attackers").permutation(clients)
    return frozenset(map(int, order[: round(share * clients)]))


def turned_around(samples: Samples, classes: int) -> Samples:
    """Return the same samples with the labels C - 1 - y, C the number of `classes`."""
    return Samples(samples.dataset, samples.indices, classes - 1 - samples.labels)


def answered(
    client: NumPyClient, method: str, arrays: Arrays, sent: Arrays, config: Mapping[str, Any]
) -> Arrays:
    """Return what a client answers to `sent`: `arrays`, or what an attacker makes of them."""
    if not isinstance(client, TorchClient) or client.attack not in (SIGN_FLIP, SCALE, NOISE):
        return arrays
    changes, first = client.changes(method, list(sent), dict(config)), first_names(client.model)
    found = dict(arrays)
    for name, array in arrays.items():
        if name not in sent or is_buffer(name, sent[name]):
            continue
        # Tied weights are one under several names, and get the same noise.
        key = client.key(dict(config), f"attack-{method}-{first.get(name, name)}")
        before = np.zeros_like(array) if name in changes else sent[name]
        found[name] = _attacked(client.attack, array, before, key).astype(array.dtype)
    return found


def _attacked(
    attack: str, array: npt.NDArray[Any], before: npt.NDArray[Any], key: tuple[str | int, ...]
) -> npt.NDArray[Any]:
    """Return an array of the answer with the update `array` - `before` changed."""
    update: npt.NDArray[Any] = array - before
    if attack == SIGN_FLIP:
        return np.asarray(before - update)
    if attack == SCALE:
        return np.asarray(before + STRENGTH * update)
    noise = np.asarray(seeds.generator(*key).standard_normal(update.shape, dtype=np.float32))
    length = np.linalg.norm(noise.astype(np.float64))
    wanted = STRENGTH * np.linalg.norm(update.astype(np.float64))
    return array + float(wanted / length) * noise if length else array
