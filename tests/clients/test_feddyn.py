"""FedDyn's client, with parameters that are a single number or not trained."""

import numpy as np
import pytest

from coprefl_flwr.clients import FedDynClient
from coprefl_flwr.models import model_arrays
from tests.clients.stateful import CONFIG, later, make, scaled

REQUEST = {**CONFIG, "feddyn-alpha": 0.5}


def test_two_participations(exact_federation, tmp_path):
    """lambda <- lambda - alpha (w_k - w^t), for what is trained only."""
    client, start = make(FedDynClient, scaled(), exact_federation, tmp_path)
    first, n, _ = client.fit(start, REQUEST)
    assert n == 14
    request = later(REQUEST)
    second, _, _ = client.fit(start, request)
    dual = client.state.read(later(request))
    names = list(model_arrays(client.model))
    assert dual.keys() == set(names) - {"1.features.bias"}
    for name, a, b, w in zip(names, first, second, start, strict=True):
        expected = -0.5 * (a - w) - 0.5 * (b - w)
        if name == "1.features.bias":
            np.testing.assert_array_equal(expected, 0 * w)
        else:
            assert dual[name] == pytest.approx(expected, rel=0, abs=1e-14), name
            assert not np.array_equal(a, b), name


def test_the_loss_is_reported_without_the_regulariser(exact_federation, tmp_path):
    client, start = make(FedDynClient, scaled(), exact_federation, tmp_path)
    losses = [client.fit(start, {**REQUEST, "feddyn-alpha": a})[2]["loss"] for a in (1e-9, 1.0)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
