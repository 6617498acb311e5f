"""Apps of functions of all kinds in the guide's table, each with a round of CoPreFL by hand."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, mse_loss

from coprefl_flwr import strategies
from coprefl_flwr.clients import gradient_reply, query_reply, roster_reply
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL, FedAvg

NODES, RATE = 3, 0.1
GAMMA, META_RATE = 0.3, 0.2


class Recording(LocalGrid):
    """Keeps the arrays and metrics of every reply, by type of message."""

    def __init__(self, app, nodes=NODES):
        super().__init__(app, nodes)
        self.replies = {}

    def _handle(self, message):
        reply = super()._handle(message)
        if not reply.has_error() and "metrics" in reply.content:
            arrays = reply.content.get("arrays", ArrayRecord()).to_torch_state_dict()
            entry = {name: tensor.double() for name, tensor in arrays.items()}
            about = self.replies.setdefault(message.metadata.message_type, {})
            about[message.metadata.dst_node_id] = entry, dict(reply.content["metrics"])
        return reply


class Masked(nn.Module):
    """A classifier of token ids as in transformers: its forward returns an object with a loss."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask, labels):
        """Return the loss of the mean embedding of the tokens that are not masked."""
        mask = attention_mask[:, :, None]
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        return SimpleNamespace(loss=cross_entropy(self.head(mean), labels))


class Headed(nn.Module):
    """A frozen body and a trained head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5).requires_grad_(False)
        self.heads = nn.Sequential()
        self.heads.head = nn.Linear(5, 3)

    def forward(self, inputs):
        """Return the logits."""
        return self.heads(torch.tanh(self.body(inputs)))


class TwoOutputs(nn.Module):
    """An autoencoder that also returns its code."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 2), nn.Linear(2, 6)

    def forward(self, inputs):
        """Return the reconstruction and the code."""
        code = torch.tanh(self.encoder(inputs))
        return self.decoder(code), code


def of_model(model):
    return model.state_dict()


def load_model(model, tensors):
    model.load_state_dict(tensors)


def adapted():
    """Return a network of peft: an adapter in its first layer; its last layer is trained whole."""
    peft = pytest.importorskip("peft")
    network = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    options = {"target_modules": ["0"], "modules_to_save": ["2"], "init_lora_weights": False}
    return peft.get_peft_model(network, peft.LoraConfig(r=2, **options))


def of_adapters(model):
    return pytest.importorskip("peft").get_peft_model_state_dict(model)


def load_adapters(model, tensors):
    pytest.importorskip("peft").set_peft_model_state_dict(model, tensors)


def of_trained(model):
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def load_trained(model, tensors):
    assert not model.load_state_dict(tensors, strict=False).unexpected_keys


def numbered(model):
    return {str(i): tensor for i, tensor in enumerate(model.state_dict().values())}


def load_numbered(model, tensors):
    model.load_state_dict(dict(zip(model.state_dict(), tensors.values(), strict=True)))


def renamed(model):
    return {f"net/{name}": tensor for name, tensor in model.state_dict().items()}


def load_renamed(model, tensors):
    model.load_state_dict({name.removeprefix("net/"): t for name, t in tensors.items()})


def pairs(inputs, labels):
    return inputs, labels


def dicts(inputs, labels):
    return {"img": inputs, "label": labels}


def tokens(inputs, labels):
    ids = (inputs.abs() * 4).long().clamp(max=8)
    mask = torch.ones_like(ids)
    mask[inputs[:, 0] > 0, 3:] = 0
    return UserDict(input_ids=ids, attention_mask=mask, labels=labels % 2)


WEIGHTS = torch.tensor([0.2, 1.0, 4.0])


@dataclass
class Kind:
    """A kind of app: its network, its batches, its loss, and the arrays that it sends."""

    network: Callable[[], nn.Module]
    batch: Callable[..., object] = pairs
    loss: Callable[..., torch.Tensor] | None = None
    sent: Callable[[nn.Module], dict] = of_model
    load: Callable[[nn.Module, dict], None] = load_model
    options: dict = field(default_factory=dict)
    training_loss: Callable[..., torch.Tensor] | None = None

    def data(self, node, part):
        """Return inputs and labels: 20 for training, 13 for the query set."""
        generator = torch.Generator().manual_seed(10 * node + part)
        number = (20 + node, 13)[part]
        inputs = torch.randn(number, 6, generator=generator)
        return inputs, torch.randint(0, 3, (number,), generator=generator)

    def mean_loss(self, model, batch):
        """Return the app's loss, or the default."""
        if self.loss is not None:
            return self.loss(model, batch)
        return cross_entropy(model(batch[0]), batch[1])

    def model(self):
        """Return the network with the same weights in every call, so that frozen parts agree."""
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return self.network()


def two_layers(outputs=3):
    return lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs))


def one_output():
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid())


KINDS = {
    "pairs": Kind(two_layers()),
    "dicts": Kind(two_layers(), dicts, lambda m, b: cross_entropy(m(b["img"]), b["label"])),
    "one output": Kind(
        one_output,
        pairs,
        lambda m, b: binary_cross_entropy(m(b[0]), (b[1][:, None] > 0).to(b[0].dtype)),
    ),
    "several labels": Kind(
        two_layers(),
        pairs,
        lambda m, b: mse_loss(m(b[0]).sigmoid(), (b[0][:, :3] > 0).to(b[0].dtype)),
    ),
    "class weights": Kind(
        two_layers(),
        pairs,
        lambda m, b: cross_entropy(m(b[0]), b[1], weight=WEIGHTS.to(b[0].dtype)),
        options={"size": lambda b: WEIGHTS[b[1]].sum()},
    ),
    "autoencoder": Kind(TwoOutputs, dicts, lambda m, b: mse_loss(m(b["img"])[0], b["img"])),
    "masked tokens": Kind(Masked, tokens, lambda m, b: m(**b).loss),
    "head": Kind(
        Headed,
        sent=lambda m: m.heads.state_dict(),
        load=lambda m, tensors: m.heads.load_state_dict(tensors),
    ),
    "head like a frozen layer": Kind(
        lambda: nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Tanh(), nn.Linear(6, 6)),
        sent=lambda m: m[2].state_dict(),
        load=lambda m, tensors: m[2].load_state_dict(tensors),
    ),
    "adapters": Kind(adapted, sent=of_adapters, load=load_adapters),
    "adapters by parameters": Kind(adapted, sent=of_trained, load=load_trained),
    "list of arrays": Kind(two_layers(), sent=numbered, load=load_numbered),
    "list of trained parameters": Kind(
        Headed,
        sent=lambda m: dict(zip("01", m.heads.state_dict().values(), strict=True)),
        load=lambda m, t: m.heads.load_state_dict({"head.weight": t["0"], "head.bias": t["1"]}),
    ),
    "other names": Kind(
        two_layers(), sent=renamed, load=load_renamed, options={"names": lambda n: f"net/{n}"}
    ),
}


def app_of(kind):
    """Return an app of functions: one full-batch SGD step, and the query as the guide writes it."""
    app = ClientApp()
    app.query("roster")(roster_reply)

    def loaded(msg):
        model = kind.model()
        kind.load(model, msg.content["arrays"].to_torch_state_dict())
        return model

    @app.train()
    def train(msg, context):
        model = loaded(msg)
        data = kind.data(context.node_config["partition-id"], 0)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(trained, lr=RATE)
        (kind.training_loss or kind.mean_loss)(model, kind.batch(*data)).backward()
        optimiser.step()
        bound = 1.0 + context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": len(data[1]), "epsilon": bound, "tokens": 10})
        content = RecordDict({"arrays": ArrayRecord(kind.sent(model)), "metrics": metrics})
        return Message(content, reply_to=msg)

    @app.train("query")
    def query(msg, context):
        inputs, labels = kind.data(context.node_config["partition-id"], 1)
        cuts = (slice(0, 5), slice(5, 10), slice(10, 13))
        batches = [kind.batch(inputs[cut], labels[cut]) for cut in cuts]
        return query_reply(msg, loaded(msg), batches, kind.loss, **kind.options)

    return app


def start_of(kind):
    return ArrayRecord(kind.sent(kind.model()))


def strategy_of(kind=CoPreFL, **options):
    return kind(
        gamma=GAMMA, meta_learning_rate=META_RATE, evaluate_every=0, max_failed_rounds=1, **options
    )


@pytest.mark.parametrize("name", KINDS)
def test_round_of_coprefl_by_hand(name):
    """The query loss and gradient are those of plain autograd on the whole query set."""
    kind = KINDS[name]
    grid = Recording(app_of(kind))
    result = strategy_of().start(grid, start_of(kind), 1).arrays.to_torch_state_dict()
    trained = grid.replies["train"].values()
    samples = sum(metrics["num-examples"] for _, metrics in trained)
    temporary = {
        array: sum(metrics["num-examples"] * arrays[array] for arrays, metrics in trained) / samples
        for array in kind.sent(kind.model())
    }
    losses, gradients = [], []
    for partition, (_, metrics) in enumerate(grid.replies["train.query"].values()):
        model = kind.model()
        kind.load(model, {array: tensor.float() for array, tensor in temporary.items()})
        loss = kind.mean_loss(model.double(), _doubled(kind.batch(*kind.data(partition, 1))))
        loss.backward()
        of_sent = kind.sent(_with_gradients(model))
        losses.append(float(loss.detach()))
        gradients.append(of_sent)
        assert metrics["loss"] == pytest.approx(losses[-1], rel=1e-5)
        if name != "class weights":
            assert metrics["num-examples"] == 13
    spread = np.array(losses) - np.mean(losses)
    coefficients = GAMMA + (1 - GAMMA) * 2 / NODES * spread
    for array, tensor in temporary.items():
        step = sum(c * g[array] for c, g in zip(coefficients, gradients, strict=True))
        assert step.abs().max() > 1e-4
        torch.testing.assert_close(result[array].double(), tensor - META_RATE * step, **CLOSE)


CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def _with_gradients(model):
    """Return the model with its gradients instead of its weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            grad = parameter.grad
            parameter.copy_(torch.zeros_like(parameter) if grad is None else grad)
    return model


def _doubled(batch):
    if isinstance(batch, tuple):
        return tuple(map(_doubled, batch))
    if isinstance(batch, dict | UserDict):
        return {name: _doubled(tensor) for name, tensor in batch.items()}
    return batch.double() if batch.is_floating_point() else batch


def squares(model, batch):
    """A loss of any outputs, with which an app trains whose query has no loss."""
    inputs = batch[0] if isinstance(batch, tuple) else batch["input_ids"].float()
    return model(inputs).square().mean()


def two_alike():
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))


UNMATCHED = {
    "sent": lambda m: m[1].state_dict(),
    "load": lambda m, tensors: m[1].load_state_dict(tensors),
}


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (Kind(one_output), "train.query: all 3 clients failed with SettingsError: without loss="),
        (Kind(two_layers(), tokens), "SettingsError: without loss="),
        (
            Kind(two_layers(), sent=renamed, load=load_renamed),
            r"'net/0\.weight' of .* fits 0 .*names=",
        ),
        (Kind(two_alike, **UNMATCHED), "'weight' of the message fits 2 .*pass names="),
    ],
)
def test_query_that_cannot_be_right_ends_the_run_at_once(kind, line):
    """Before, one output had the cross-entropy 0, so CoPreFL was FedAvg."""
    kind.training_loss = squares
    with pytest.raises(RunFailedError, match=line):
        CoPreFL(evaluate_every=0).start(LocalGrid(app_of(kind), nodes=3), start_of(kind), 2)


NEED_CLIENTS = ("FedDyn", "MOON", "FedRep", "PerFedAvg", "PFedMe", "FedProto", "FedPCL", "FedMeta")


@pytest.mark.parametrize("roster", [True, False], ids=["roster", "no roster"])
@pytest.mark.parametrize("name", [*NEED_CLIENTS, "SCAFFOLD"])
def test_method_with_clients_of_its_own_is_refused_in_an_app_of_functions(name, roster):
    """Before, FedDyn doubled every update, and the others were means of the models."""
    kind, sent = KINDS["pairs"], []
    app = app_of(kind)
    if not roster:
        app._registered_funcs = {
            key: f for key, f in app._registered_funcs.items() if "roster" not in str(key)
        }
    grid = LocalGrid(app, nodes=2)
    grid._handle = lambda m, f=grid._handle: (sent.append(m.metadata.message_type), f(m))[1]
    with pytest.raises(SettingsError, match=f"^{name} needs other clients .* client_app, with "):
        getattr(strategies, name)(evaluate_every=0).start(grid, start_of(kind), 1)
    assert set(sent) == {"query.roster"}


def test_metrics_that_are_bounds_and_a_hook_with_those_of_each_client():
    kind, reports = KINDS["pairs"], []
    strategy = strategy_of(metric_reductions={"epsilon": "max", "tokens": "sum"})
    result = strategy.start(Recording(app_of(kind)), start_of(kind), 1, hooks=[reports.append])
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["epsilon"], metrics["tokens"]) == (3.0, 30.0)
    (report,) = reports
    assert report.training["train"].metrics["epsilon"].tolist() == [1.0, 2.0, 3.0]
    assert report.training["train"].clients == (0, 1, 2)
    assert report.training["train.query"].metrics["num-examples"].tolist() == [13.0] * 3
    assert not report.training["train"].arrays
    cyclic = strategies.Cyclic(evaluate_every=0, metric_reductions={"epsilon": "max"})
    result = cyclic.start(Recording(app_of(kind)), start_of(kind), 1)
    assert result.train_metrics_clientapp[1]["epsilon"] == 3.0
    with pytest.raises(SettingsError, match="metric_reductions, epsilon: unknown reduction 'maxi'"):
        CoPreFL(metric_reductions={"epsilon": "maxi"})


def test_gradient_reply_of_a_regression_in_numpy():
    """Without torch: softmax regression, in two rounds; a list and a mapping give the same."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(9, 4)), np.eye(3)[rng.integers(0, 3, 9)]) for _ in range(2 * NODES)]

    def loss_and_gradient(arrays, x, y):
        logits = x @ arrays["0"] + arrays["1"]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        gradient = {"0": x.T @ (p - y) / len(y), "1": (p - y).mean(0)}
        return -np.log(p[y == 1]).mean(), gradient

    def app_with(shape):
        app = ClientApp()

        @app.train()
        def train(msg, context):
            arrays = dict(zip(("0", "1"), msg.content["arrays"].to_numpy_ndarrays(), strict=True))
            _, gradient = loss_and_gradient(arrays, *data[context.node_id - 2])
            moved = [arrays[name] - RATE * gradient[name] for name in arrays]
            content = RecordDict(
                {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 9})}
            )
            return Message(content, reply_to=msg)

        @app.train("query")
        def query(msg, context):
            arrays = dict(zip(("0", "1"), msg.content["arrays"].to_numpy_ndarrays(), strict=True))
            loss, gradient = loss_and_gradient(arrays, *data[NODES + context.node_id - 2])
            return gradient_reply(msg, shape(gradient), 9, loss)

        return app

    def run(shape):
        start = ArrayRecord([np.zeros((4, 3)), np.zeros(3)])
        grid = LocalGrid(app_with(shape), nodes=NODES)
        return strategy_of(clients="nodes").start(grid, start, 1).arrays.to_numpy_ndarrays()

    zeros = {"0": np.zeros((4, 3)), "1": np.zeros(3)}
    steps = [loss_and_gradient(zeros, x, y)[1] for x, y in data[:NODES]]
    temporary = {n: -RATE * np.mean([g[n] for g in steps], axis=0) for n in zeros}
    queries = [loss_and_gradient(temporary, x, y) for x, y in data[NODES:]]
    losses = np.array([loss for loss, _ in queries])
    coefficients = GAMMA + (1 - GAMMA) * 2 / NODES * (losses - losses.mean())
    expected = [
        temporary[n]
        - META_RATE * sum(c * g[n] for c, (_, g) in zip(coefficients, queries, strict=True))
        for n in zeros
    ]
    for shape in (dict, lambda gradient: list(gradient.values())):
        for found, array in zip(run(shape), expected, strict=True):
            np.testing.assert_allclose(found, array, rtol=1e-10)
    with pytest.raises(RunFailedError, match="1 arrays were returned; the message had 2"):
        run(lambda gradient: [gradient["0"]])


def test_subclass_with_a_start_or_a_step_of_flowers_loop():
    kind = KINDS["pairs"]

    class Saving(CoPreFL):
        def start(self, grid, initial_arrays, num_rounds=3, **_):
            messages = self.configure_train(1, initial_arrays, {}, grid)
            return grid.send_and_receive(messages)

    class Scheduled(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, config, grid)

    grid = LocalGrid(app_of(kind), nodes=2)
    with pytest.raises(SettingsError, match=r"^Saving: its start\(\) calls no .*override `round`"):
        Saving().start(grid, start_of(kind))
    with pytest.raises(
        SettingsError, match=r"^Scheduled: its start\(\) calls no .*override `round`"
    ):
        Scheduled().start(grid, start_of(kind))
