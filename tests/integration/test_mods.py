"""Flower's client-side mods: each mod works as documented, or is refused at once in one line.

The mods treat every reply as one client's model: they clip the difference between the arrays in the
reply and the arrays in the request.
"""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import (
    CoPreFLClient,
    SCAFFOLDClient,
    TorchClient,
    client_app,
    query_reply,
)
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation.hosting import answer
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.models import load_arrays
from coprefl_flwr.strategies import SCAFFOLD, CoPreFL, FedAvg
from tests.common.federation import CPU, Federation
from tests.common.messages import ask

CLIP = 0.01
NORM = ConfigRecord({"clipping_norm": CLIP})


def clipping_only():
    """Return LocalDpMod without its noise, which has no seed."""
    return LocalDpMod(CLIP, sensitivity=0.0, epsilon=1.0, delta=0.1)


def own_mod(message, context, call_next):
    """A user's own mod, which doubles all arrays of a reply without a check."""
    reply = call_next(message, context)
    for name, record in list(reply.content.array_records.items()):
        turned = {key: 2 * array.numpy() for key, array in record.items()}
        reply.content[name] = to_record(turned)
    return reply


LOGGING = [arrays_size_mod, message_size_mod]
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


@pytest.mark.parametrize("mod", LOGGING, ids=named)
@pytest.mark.parametrize("method", [CoPreFL, FedAvg])
def test_mods_that_only_log_change_nothing(mod, method, stochastic_federation):
    grids = [functions(stochastic_federation, mods, mods, evaluate=mods) for mods in ([], [mod])]
    same(*(result(method(evaluate_every=1), grid, stochastic_federation) for grid in grids))
    client = CoPreFLClient if method is CoPreFL else TorchClient
    pairs = [
        stochastic_federation.grid("2", client),
        hosted(stochastic_federation, mod, "2", client),
    ]
    same(*(result(method(evaluate_every=1), grid, stochastic_federation) for grid in pairs))


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


@pytest.mark.parametrize("mod", CLIPPING, ids=named)
@pytest.mark.parametrize("hosting", ["functions", "own", "plain"])
def test_a_clipping_mod_clips_each_clients_model_under_fedavg(mod, hosting, smooth):
    grid = (
        functions(smooth, [mod], client_class=TorchClient)
        if hosting == "functions"
        else hosted(smooth, mod, hosting, TorchClient)
    )
    found = result(FedAvg(), grid, smooth, train_config=NORM)
    for name, array in clipped_mean(smooth).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, err_msg=name)


def test_flowers_wrapper_that_sends_the_norm_works_around_fedavg(smooth):
    grid = functions(smooth, [fixedclipping_mod], client_class=TorchClient)
    wrapped = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.0, CLIP, 4)
    found = from_record(wrapped.start(grid, to_record(smooth.arrays()), 1).arrays)
    for name, array in clipped_mean(smooth).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("mod", CLIPPING, ids=named)
@pytest.mark.parametrize("hosting", ["1", "2", "4", "pairs"])
def test_a_sum_over_clients_is_not_clipped_as_one_model(mod, hosting, smooth, caplog):
    """Before the fix, a mod silently clipped the sum over all clients that a node hosts."""
    grid = hosted(smooth, mod, hosting, TorchClient)
    line = refusal(FedAvg(), grid, smooth, caplog, train_config=NORM)
    assert f"a client-side mod refused: {named(mod)} expects exactly one ArrayRecord" in line
    assert "; the reply is not a model, but a sum over clients: let every node be one" in line


@pytest.mark.parametrize("mod", CLIPPING, ids=named)
def test_coprefls_first_exchange_may_be_clipped(mod, smooth):
    """In CoPreFL's first exchange, clients reply with models."""
    found = result(CoPreFL(), functions(smooth, [mod]), smooth, train_config=NORM)
    plain = result(CoPreFL(), functions(smooth), smooth)
    assert any((found[name] != plain[name]).any() for name in plain)


@pytest.mark.parametrize("mod", CLIPPING, ids=named)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("hosting", ["functions", "1", "own", "plain"])
def test_a_gradient_is_not_clipped_as_a_model(mod, norm, hosting, caplog):
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
    assert line.endswith("not a model, but a gradient: set clip= and noise= of query_reply instead")


@pytest.mark.parametrize(
    ("strategy", "what"),
    [
        (CoPreFL(), "train.query: all 4 clients failed with a client-side mod changed a reply as "
         "if it were a model, but it is a gradient: set clip= and noise= of query_reply instead"),
        (FedAvg(), "train: all 4 clients failed with a client-side mod changed a reply as if it "
         "were a model, but it is a sum over clients: let every node be one client"),
    ],
    ids=["CoPreFL", "FedAvg"],
)  # fmt: skip
def test_what_another_mod_changed_is_found_by_its_norm(strategy, what, smooth, caplog):
    def of_query(message, context, call_next):
        asked = message.metadata.message_type == "train.query" or isinstance(strategy, FedAvg)
        return own_mod(message, context, call_next) if asked else call_next(message, context)

    client = CoPreFLClient if isinstance(strategy, CoPreFL) else TorchClient
    grid = hosted(smooth, of_query, "2", client)
    assert refusal(strategy, grid, smooth, caplog) == f"round 1: {what}"
    if isinstance(strategy, CoPreFL):
        grid = functions(smooth, query=[own_mod])
        assert refusal(strategy, grid, smooth, caplog) == f"round 1: {what}"


@pytest.mark.parametrize("hosting", ["own", "plain"])
def test_what_goes_with_a_control_variate_is_no_model(hosting, smooth, caplog, tmp_path):
    def of_train(message, context, call_next):
        asked = "train" in message.metadata.message_type
        return own_mod(message, context, call_next) if asked else call_next(message, context)

    grid = hosted(smooth, of_train, hosting, SCAFFOLDClient, states=tmp_path)
    line = refusal(SCAFFOLD(), grid, smooth, caplog)
    assert "changed a reply as if it were a model, but it is other arrays: remove the mod" in line


@pytest.mark.parametrize("method", [CoPreFL, FedAvg])
def test_a_mod_without_its_norm_says_so(method, smooth, caplog):
    """The norm is in the config that Flower's wrapper sends, but here there is no wrapper."""
    line = refusal(method(), functions(smooth, [fixedclipping_mod]), smooth, caplog)
    begin = "round 1: train: all 4 clients failed with a client-side mod refused: fixedclipping_mod"
    assert line.startswith(f"{begin} requires the key 'clipping_norm'")


@pytest.mark.parametrize("mod", CLIPPING, ids=named)
def test_a_mod_around_an_evaluation_is_one_line(mod, smooth, caplog):
    grid = functions(smooth, evaluate=[mod], client_class=TorchClient)
    FedAvg(evaluate_every=1).start(
        grid, to_record(smooth.arrays()), 1, train_config=NORM, evaluate_config=NORM
    )
    (line,) = [r.getMessage() for r in caplog.records if "evaluation failed" in r.getMessage()]
    assert f"a client-side mod refused: {named(mod)} expects exactly one ArrayRecord" in line
    assert "; the reply is not a model, but only metrics: remove the mod; a later round" in line


def test_a_mod_around_everything_does_not_wait_for_other_nodes(smooth):
    mod = clipping_only()
    around = lambda app: lambda message, context: mod(message, context, app)  # noqa: E731
    grid = smooth.grid("own", TorchClient, around)
    line = "no node could report its clients: a client-side mod refused: LocalDpMod expects"
    with pytest.raises(RunFailedError, match=line):
        FedAvg().start(grid, to_record(smooth.arrays()), 1, timeout=3600)


@pytest.mark.parametrize("stray", ["error", "answer"])
def test_a_reply_that_fits_no_message_is_a_wrong_answer(stray, smooth, caplog):
    """The run ends, and the log or the error message describes the wrong reply.

    Before the fix, the log had "did not answer within 3600 s" after 0 s, and the run never ended.
    """

    def strays(message, context, call_next):
        reply = call_next(message, context)
        if stray == "answer":
            return Message(reply.content, reply_to=reply)
        return Message(Error(6, "the keys do not fit"), reply_to=reply)

    grid = functions(smooth, [strays], client_class=TorchClient)
    with caplog.at_level(logging.WARNING), pytest.raises(RunFailedError) as failed:
        FedAvg().start(grid, to_record(smooth.arrays()), 1, timeout=3600)
    known = {
        "error": "a client-side mod refused: the keys do not fit",
        "answer": "its reply belongs to no message that it received",
    }
    assert known[stray] in caplog.text + str(failed.value)
    assert "did not answer" not in caplog.text


def test_a_run_ends_where_no_node_answered_in_time(smooth, caplog):
    class Deaf(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            heard = [m for m in messages if m.metadata.message_type != "train"]
            return super().send_and_receive(heard, timeout=timeout)

    grid = Deaf(smooth.torch_app(), nodes=2)
    line = (
        "^none of the 2 nodes answered within 3600 s and none is asked again; use a larger timeout$"
    )
    with pytest.raises(RunFailedError, match=line):
        FedAvg().start(grid, to_record(smooth.arrays()), 2, timeout=3600)


def test_the_norm_that_goes_along_is_no_metric(smooth):
    """Replies to Flower's strategies have no norm; this package's strategies remove the norm."""
    outcome = CoPreFL().start(functions(smooth), to_record(smooth.arrays()), 1)
    assert not [name for name in outcome.train_metrics_clientapp[1] if "norm" in name]
    app = client_app(lambda _: smooth.client(TorchClient, 0))
    content = ask(app, "train", smooth.arrays(), server_round=1)
    assert set(content["metrics"]) == {"loss", "num-examples"}
