# %% [markdown]
# # CoPreFL in an existing Flower app
#
# This notebook adds CoPreFL to an existing Flower app. Two changes are enough: another strategy on
# the server, and one more function in the clients.
#
# The app is `examples/own-app`, as `flwr new` writes it. It has a model, data for each node, a
# `ClientApp` that trains and evaluates, and a `ServerApp` with Flower's `FedAvg`. Here the app runs
# in the notebook's process, so a debugger can stop in the clients. The code is the same as under
# `flwr run`.

# %%
import sys

import torch
from flwr.app import ArrayRecord, ConfigRecord

sys.path.insert(0, "../own-app")  # The app's folder.

from own_app import task
from own_app.client_app import app

# %% [markdown]
# First, we run the unchanged app with FedAvg. `LocalGrid` replaces Flower's grid. Its four nodes
# are four clients. The data of each client are points on three spirals. The spirals of each client
# are rotated by a different angle.

# %%
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL, FedAvg


def started(strategy, app, rounds=20):
    """Return what Flower's `start` returns, from the same first weights."""
    torch.manual_seed(0)
    first = ArrayRecord(task.Net().state_dict())
    config = {"local-epochs": 2, "batch-size": 32}
    grid = LocalGrid(app, nodes=4, run_config=config)
    return strategy.start(
        grid, first, rounds, train_config=ConfigRecord({"lr": 0.1})
    )


fedavg = FedAvg(seed=0)
result = started(fedavg, app)

# %% [markdown]
# CoPreFL needs one more reply from each client: the loss and the gradient of a temporary global
# model on the client's *query set*. These are data on which the client does not train. The clients
# change in two places. First, each client's data are split once more, to get a query set:

# %%
from torch.utils.data import DataLoader, random_split


def load_three(partition_id, num_partitions, batch_size):
    training, test = (
        loader.dataset
        for loader in task.load_data(partition_id, num_partitions, batch_size)
    )
    training, query = random_split(
        training, [0.8, 0.2], torch.Generator().manual_seed(42)
    )
    batches = DataLoader(training, batch_size=batch_size, shuffle=True)
    return batches, DataLoader(query, batch_size), DataLoader(test, batch_size)


def load_data(*arguments):
    training, _, test = load_three(*arguments)
    return training, test


sys.modules[
    "own_app.client_app"
].load_data = load_data  # In the app, edit task.py.

# %% [markdown]
# Second, the `ClientApp` gets a function that answers the new type of message:

# %%
from coprefl_flwr.clients import query_reply
from torch.nn.functional import cross_entropy


@app.train("query")
def query(message, context):
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition = context.node_config["partition-id"]
    _, batches, _ = load_three(partition, 4, 32)

    def loss(model, batch):
        return cross_entropy(model(batch["img"]), batch["label"])

    return query_reply(message, model, batches, loss)


# %% [markdown]
# On the server, `CoPreFL` replaces `FedAvg`. No other change is needed.

# %%
coprefl = CoPreFL(gamma=0.5, meta_learning_rate=0.05, seed=0)
start = started(coprefl, app)

# %% [markdown]
# The result's `history` has the metrics of every round, and `history.traffic` has the traffic.
# `models-up` is the number of models, or arrays of the size of a model, that the clients send. In
# each round of CoPreFL this is 8: each of the 4 clients sends a model and a gradient.

# %%
import pandas as pd

rounds = pd.DataFrame(start.history.rounds()).T
shown = [
    "train_loss",
    "query-loss",
    "query-loss-variance",
    "meta-loss",
    "models-up",
]
rounds.loc[[1, 5, 10, 20], shown].round(3)

# %% [markdown]
# How good is each starting model for a client that did not take part in the pre-training? The
# spirals of a new client are rotated further. This client trains on its own data for 15 epochs,
# from each starting model:

# %%
# %matplotlib inline
import matplotlib.pyplot as plt


def accuracies(arrays, partition_id=5, epochs=15):
    model = task.Net()
    model.load_state_dict(arrays)
    training, test = load_data(partition_id, 4, 32)
    found = [task.test(model, test, "cpu")[1]]
    for _ in range(epochs):
        task.train(model, training, 1, 0.1, "cpu")
        found.append(task.test(model, test, "cpu")[1])
    return found


torch.manual_seed(0)
starts = {
    "random": task.Net().state_dict(),
    "fedavg": result.arrays.to_torch_state_dict(),
    "coprefl": start.arrays.to_torch_state_dict(),
}
figure, place = plt.subplots(figsize=(6, 3), layout="constrained")
colours = {"random": "#A3A3A3", "fedavg": "#0072B2", "coprefl": "#D55E00"}
for name, arrays in starts.items():
    percent = [100 * one for one in accuracies(arrays)]
    place.plot(percent, label=name, color=colours[name])
place.set(xlabel="epoch", ylabel="accuracy %")
_ = place.legend(frameon=False)

# %% [markdown]
# In this run, the client reaches a higher accuracy from each of the two pre-trained models than
# from random weights. One small task cannot decide which of the two models is better.
# [Recipes](../recipes.md) compare methods over several seeds.
#
# To do the same under `flwr run`, change three files of the app as in [this
# diff](../../examples/own_app.diff). [The guide](../how-to/flower-app.md) explains the changes.
