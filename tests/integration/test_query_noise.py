"""Clipping and noise of a query's gradient and loss, applied by the client that computes them."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient, FedMetaClient, query_reply
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.flower import enter_run
from coprefl_flwr.learning.evaluation import loss_and_gradient
from coprefl_flwr.models import model_arrays
from coprefl_flwr.strategies import CoPreFL
from tests.common.federation import CPU, Federation
from tests.common.networks import CLASSES
from tests.integration.test_tied_weights import Tied, seeded

CONFIG = {"seed": 3, "population": "train", "server-round": 1, "attempt": 0}


def asked(node=2, **config):
    enter_run(run_id=1, node_id=1)
    content = RecordDict({"config": ConfigRecord({**CONFIG, **config})})
    return Message(content, node, "train.query")


def reply(model, batches, message=None, **options):
    """Return (gradient, loss) of a reply."""
    message = message or asked()
    message.content["arrays"] = to_record(model_arrays(model))
    content = query_reply(message, model, batches, **options).content
    return from_record(content["arrays"]), content["metrics"]["loss"]


def length(gradient):
    return np.sqrt(sum((array.astype(float) ** 2).sum() for array in gradient.values()))


@pytest.fixture
def whole(exact_federation):
    return exact_federation.model, [exact_federation.whole(0)]


def test_clip_limits_the_norm_of_the_gradient_and_the_loss(whole):
    found = loss_and_gradient(*whole)
    norm = length(found.gradient)
    clip = norm / 4
    assert found.loss > clip
    gradient, loss = reply(*whole, clip=clip)
    for name, array in found.gradient.items():
        np.testing.assert_allclose(gradient[name], array / 4, rtol=1e-12)
    assert loss == clip
    gradient, loss = reply(*whole, clip=norm + found.loss)
    for name, array in found.gradient.items():
        np.testing.assert_array_equal(gradient[name], array)
    assert loss == found.loss


def test_noise_is_gaussian_with_a_multiple_of_the_clip(whole):
    calm, calm_loss = reply(*whole, clip=2.0)
    noised, loss = reply(*whole, clip=2.0, noise=0.25, rng=np.random.default_rng(5))
    rng = np.random.default_rng(5)
    for name, array in calm.items():
        np.testing.assert_allclose(noised[name] - array, 0.5 * rng.standard_normal(array.shape))
    assert loss == pytest.approx(min(max(calm_loss + 0.5 * rng.standard_normal(), 0.0), 2.0))
    losses = {reply(*whole, clip=2.0, noise=9.0, message=asked(attempt=n))[1] for n in range(40)}
    assert (min(losses), max(losses)) == (0.0, 2.0)


def test_noise_is_seeded_by_the_request_and_the_node(whole):
    def drawn(node=2, **config):
        return reply(*whole, asked(node, **config), clip=1.0, noise=1.0)[0]["2.weight"].tobytes()

    others = [{"seed": 4}, {"population": "b"}, {"server_round": 2}, {"attempt": 1}, {"node": 3}]
    seen = [drawn(**{k.replace("_", "-"): v for k, v in other.items()}) for other in others]
    assert drawn() == drawn()
    assert len({drawn(), *seen}) == 1 + len(others)


def test_tied_weights_count_once_and_get_the_same_noise():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 16), torch.arange(8) % CLASSES)]
    clipped, _ = reply(seeded(Tied), batches, clip=1e-3)
    assert length({n: a for n, a in clipped.items() if n != "second.weight"}) == pytest.approx(1e-3)
    noised, _ = reply(seeded(Tied), batches, clip=1.0, noise=1.0)
    assert noised["first.weight"].tobytes() == noised["second.weight"].tobytes()


def test_noise_without_clipping_is_refused(whole, federation):
    with pytest.raises(SettingsError, match=r"noise = 0\.5: set clip, too"):
        reply(*whole, noise=0.5)
    arguments = federation.model, federation.samples[0]
    with pytest.raises(SettingsError, match=r"query-noise = 0\.5: set query-clip"):
        CoPreFLClient(*arguments, device=CPU, query_noise=0.5)
    with pytest.raises(SettingsError, match="unknown option 'query_clip'"):
        FedMetaClient(*arguments, device=CPU, query_clip=1.0)


def test_clients_are_clipped_and_noised_alike_for_any_hosting():
    """The clients clip and add noise before a node sums their gradients."""
    federation = Federation.exact(norm=False)
    options = {"query_clip": 0.5, "query_noise": 0.1}
    ends = {}
    for hosting in ("1", "2", "4", "pairs", "own"):
        grid = federation.grid(hosting, CoPreFLClient, **options)
        found = CoPreFL(seed=1, clients=grid.clients).start(grid, to_record(federation.arrays()), 2)
        ends[hosting] = from_record(found.arrays)
    plain = federation.grid("1", CoPreFLClient)
    calm = from_record(
        CoPreFL(seed=1, clients=4).start(plain, to_record(federation.arrays()), 2).arrays
    )
    for name, array in ends["1"].items():
        for hosting, other in ends.items():
            np.testing.assert_allclose(other[name], array, rtol=0, atol=1e-12, err_msg=hosting)
        assert (array != calm[name]).any()
