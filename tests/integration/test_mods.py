"""Flower's client-side mods: each mod works as documented, or is refused at once in one line.

The mods treat every reply as one client's model: they clip the difference between the arrays in the
reply and the arrays in the request.
"""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import (
    CoPreFLClient,
    TorchClient,
    query_reply,
)
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation.hosting import answer
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.models import load_arrays
from coprefl_flwr.strategies import CoPreFL, FedAvg
from tests.common.federation import CPU, Federation

CLIP = 0.01
NORM = ConfigRecord({"clipping_norm": CLIP})


def clipping_only():
    """Return LocalDpMod without its noise, which has no seed."""
    return LocalDpMod(CLIP, sensitivity=0.0, epsilon=1.0, delta=0.1)


CLIPPING = [clipping_only(), fixedclipping_mod, adaptiveclipping_mod]


def named(mod):
    return getattr(mod, "__name__", type(mod).__name__)


@pytest.fixture
def smooth():
    """The tiny federation without BatchNorm, in float64."""
    return Federation.exact(norm=False)


def functions(federation, train=(), query=(), client_class=CoPreFLClient, evaluate=()):
    """Return four nodes with one client each; their app is written with functions and mods."""
    app = ClientApp()

    def make(client_id, config):
        options = {"training": federation.training_of(client_id), "device": CPU}
        samples = federation.samples[client_id]
        return client_class(federation.model, samples, test=samples, **options)

    @app.train(mods=list(train))
    def training(message, context):
        return answer(message, lambda _, c: make(number(context), c), number(context))

    @app.train("query", mods=list(query))
    def querying(message, context):
        load_arrays(federation.model, from_record(message.content["arrays"]))
        samples = federation.samples[number(context)]
        return query_reply(message, federation.model, samples.batches(256, CPU))

    @app.evaluate(mods=list(evaluate))
    def evaluation(message, context):
        return answer(message, lambda _, c: make(number(context), c), number(context))

    return LocalGrid(app, nodes=4)


def number(context):
    return context.node_config["partition-id"]


def hosted(federation, mod, hosting, client_class, **more):
    """Return nodes with a `client_app` inside a mod, which does not change the roster query."""

    def inside(app):
        def wrapped(message, context):
            asked = message.metadata.message_type.startswith("query")
            return app(message, context) if asked else mod(message, context, app)

        return wrapped

    return federation.grid(hosting, client_class, inside, **more)


def refusal(strategy, grid, federation, caplog, **more):
    """Return the one-line error that ends the run at its first attempt, without warnings."""
    strategy.clients = getattr(grid, "clients", None)
    with pytest.raises(RunFailedError) as failed:
        strategy.start(grid, to_record(federation.arrays()), 1, **more)
    assert not [r for r in caplog.records if r.name.endswith("coprefl") and r.levelno > 20]
    assert "\n" not in str(failed.value)
    return str(failed.value)


def result(strategy, grid, federation, **more):
    return from_record(strategy.start(grid, to_record(federation.arrays()), 1, **more).arrays)


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def clipped_mean(federation):
    """Return FedAvg's mean of models with clipped updates, computed by hand."""
    start, sizes = federation.arrays(), [len(one) for one in federation.samples]
    total = {name: np.zeros_like(array) for name, array in start.items()}
    for client_id, size in enumerate(sizes):
        one = TorchClient(
            federation.model,
            federation.samples[client_id],
            training=federation.training_of(client_id),
            device=CPU,
        )
        config = {"server-round": 1, "seed": 0, "population": "train", "client": client_id}
        after = one.fit(list(start.values()), config)[0]
        update = {n: a - b for (n, b), a in zip(start.items(), after, strict=True)}
        length = np.sqrt(sum((u**2).sum() for u in update.values()))
        assert length > CLIP
        for name, array in update.items():
            total[name] += size / sum(sizes) * (start[name] + CLIP / length * array)
    return total


@pytest.mark.parametrize("mod", [arrays_size_mod, message_size_mod], ids=named)
@pytest.mark.parametrize("method", [CoPreFL, FedAvg])
def test_logging_mod_changes_no_result(mod, method, stochastic_federation):
    client = CoPreFLClient if method is CoPreFL else TorchClient
    pairs = [
        [functions(stochastic_federation, mods, mods, evaluate=mods) for mods in ([], [mod])],
        [
            stochastic_federation.grid("2", client),
            hosted(stochastic_federation, mod, "2", client),
        ],
    ]
    for grids in pairs:
        same(*(result(method(evaluate_every=1), grid, stochastic_federation) for grid in grids))


@pytest.mark.parametrize("mod", CLIPPING, ids=named)
@pytest.mark.parametrize("hosting", ["functions", "own", "plain"])
def test_clipping_mod_under_fedavg_clips_the_model_of_each_client(mod, hosting, smooth):
    grid = (
        functions(smooth, [mod], client_class=TorchClient)
        if hosting == "functions"
        else hosted(smooth, mod, hosting, TorchClient)
    )
    found = result(FedAvg(), grid, smooth, train_config=NORM)
    for name, array in clipped_mean(smooth).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("mod", CLIPPING, ids=named)
@pytest.mark.parametrize("hosting", ["1", "2", "pairs"])
def test_clipping_mod_refuses_a_sum_over_clients(mod, hosting, smooth, caplog):
    """Before the fix, a mod silently clipped the sum over all clients that a node hosts."""
    grid = hosted(smooth, mod, hosting, TorchClient)
    line = refusal(FedAvg(), grid, smooth, caplog, train_config=NORM)
    assert f"a client-side mod refused: {named(mod)} expects exactly one ArrayRecord" in line
    assert "; the answer is not one client's model: see docs/how-to/privacy.md" in line


@pytest.mark.parametrize("mod", CLIPPING, ids=named)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("hosting", ["functions", "1", "own", "plain"])
def test_clipping_mod_refuses_a_query_gradient(mod, norm, hosting, caplog):
    """Before the fix, if the model had BatchNorm, a mod's reply belonged to no request.

    BatchNorm's buffers have no gradient, so the reply lacks some array names of the request.
    """
    federation = Federation.full_batch() if norm else Federation.exact(norm=False)

    def of_query(message, context, call_next):
        if message.metadata.message_type == "train.query":
            return mod(message, context, call_next)
        return call_next(message, context)

    if hosting == "functions":
        grid = functions(federation, query=[mod])
    else:
        grid = hosted(federation, of_query, hosting, CoPreFLClient)
    line = refusal(CoPreFL(), grid, federation, caplog, train_config=NORM)
    assert line.startswith("round 1: train.query: all 4 clients failed with")
    assert f"a client-side mod refused: {named(mod)} expects exactly one ArrayRecord" in line
    assert line.endswith("; the answer is not one client's model: see docs/how-to/privacy.md")


def test_mod_with_a_reply_to_no_message_ends_the_run(smooth, caplog):
    """Before the fix, the log had "did not answer within 3600 s", and the run never ended."""

    def strays(message, context, call_next):
        reply = call_next(message, context)
        return Message(reply.content, reply_to=reply)

    grid = functions(smooth, [strays], client_class=TorchClient)
    with caplog.at_level(logging.WARNING), pytest.raises(RunFailedError) as failed:
        FedAvg().start(grid, to_record(smooth.arrays()), 1, timeout=3600)
    line = "its reply belongs to no message that it received"
    assert line in caplog.text + str(failed.value)
    assert "did not answer" not in caplog.text
