"""The section of a method's page about an app of the reader's own, from what the class declares."""

from coprefl_flwr.clients import StatefulClient
from coprefl_flwr.methods import HEAD
from coprefl_flwr.studies.method import Method

GUIDE = "../how-to/flower-app.md"

TEXTS = {
    "TorchClient": "The `@app.train` and `@app.evaluate` functions of your app are enough.",
    "CoPreFLClient": "Your app needs one more function, which answers `train.query`: [the guide]"
    f"({GUIDE}) shows it for many kinds of apps.",
    "FedProxClient": "Your `@app.train` function adds the proximal term to its loss. Without the "
    "term the method is FedAvg, and a warning says so:",
    "QFFLClient": "Your `@app.train` function computes the loss $F_k$ at the received weights, "
    "before it trains, and reports two more metrics. `lr` is its learning rate, and `moved` the "
    "squared norm of the change of the weights:",
}
"""{client class: what an app of functions must do instead of running the class}."""

FIXED = (
    "The last layer must not be trained or sent, and every client must have the same: the network "
    "freezes it, as by `model.fc.requires_grad_(False)`. Otherwise the method is FedAvg."
)
"""The same for a strategy that does not train the last layer."""

CODES = {
    "FedProxClient": """mu = msg.content["config"]["proximal-mu"]
received = [p.detach().clone() for p in model.parameters()]
...  # in each step, before loss.backward():
pairs = zip(model.parameters(), received)
distance = sum((p - r).square().sum() for p, r in pairs)
loss = loss + mu / 2 * distance
""",
    "QFFLClient": """q, L = msg.content["config"]["q"], 1 / lr
metrics["q-weight"] = L * F**q
metrics["q-curvature"] = q * F ** (q - 1) * L**2 * moved + L * F**q
""",
}
"""{client class: code that shows the text}."""

PROTOTYPES = (
    "The arrays that `start` gets are `to_record(no_prototypes(classes, size))` (from "
    "`coprefl_flwr.arrays` and `coprefl_flwr.learning.prototypes`), where `size` is "
)
FIRST = {
    "SoloClient": "The arrays that `start` gets are empty: `ArrayRecord()`. The network remains on "
    "the clients.",
    "FedRepClient": "The arrays that `start` gets are those of the body, which are the first of "
    "the network. The last layer remains on the clients.",
    "FedProtoClient": f"{PROTOTYPES}the input dimension of the last layer.",
    "FedPCLClient": "Its network maps features to representations, and its datasets have features "
    f"of frozen backbones. {PROTOTYPES}the dimension of a representation.",
}
"""{client class: a note on the first global arrays}."""

PERSONAL = ("FedRepClient", "FedProtoClient", "FedPCLClient", "SoloClient")
"""Clients whose own weights begin with the argument `initial`."""


def section(method: Method) -> str:
    """Return the section about a method in a Flower app, or "" for a method without clients."""
    strategy, client = method.strategy_class, method.client_class
    name = client.__name__
    if not strategy.actions or HEAD in method.roles or method.uses_server_data:
        return ""
    title = "## In your own app\n\n"
    if name in TEXTS:
        code = f"\n\n```python\n{CODES[name]}```" if name in CODES else ""
        use = f"On the server, use `coprefl_flwr.strategies.{strategy.__name__}`"
        fixed = "" if strategy.trains_head else f" {FIXED}"
        return f"{title}{TEXTS[name]}{fixed}{code}\n\n{use} ([its arguments]({GUIDE})).\n"
    state = issubclass(client, StatefulClient)
    personal = name in PERSONAL
    arguments = ["model", "trainset", "test=testset"]
    arguments += ["state=state"] * state + ["initial=weights"] * personal
    lines = [
        f"from coprefl_flwr.clients import {name}, client_app",
        *(["from coprefl_flwr.federation.client_state import ClientState"] if state else []),
        *(["from coprefl_flwr.models import model_arrays"] if personal else []),
        "",
        "",
        "def client_fn(context, client_id):",
        "    # Your function: datasets of pairs (input, label)",
        "    trainset, testset = load_datasets(client_id)",
        "    model = Net()",
        *(["    weights = model_arrays(model)"] if personal else []),
        *(
            ['    state = ClientState(context.node_config.get("state-dir", "states"))']
            if state
            else []
        ),
        f"    return {name}(",
        *(f"        {argument}," for argument in arguments),
        "    )",
        "",
        "",
        "app = client_app(client_fn)",
    ]
    note = f" {FIRST[name]}" if name in FIRST else ""
    folder = f" [The folder]({GUIDE}#clients-that-remember) keeps what a client stores." * state
    return (
        f"{title}The clients of this method do more than an `@app.train` function, so an app of "
        "functions is refused (unless the strategy's `clients` is set: nodes are then not asked). "
        "`client_app` makes the app from the client:\n\n"
        f"```python\n{chr(10).join(lines)}\n```\n\n"
        f"On the server, use `coprefl_flwr.strategies.{strategy.__name__}`.{folder}{note}\n"
    )
