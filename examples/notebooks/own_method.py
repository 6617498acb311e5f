# %% [markdown]
# # A method of your own
#
# A round is a generator: it yields an exchange, is sent the clients' replies, and returns the new
# global arrays. This method takes only a part of the way to the clients' mean, and pulls it back to
# the first weights, as a leash does. The base class samples clients, checks replies, repeats failed
# rounds and writes checkpoints.

# %%
# %matplotlib inline
from dataclasses import dataclass

import torch
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.arrays import cast_like, weights_of
from coprefl_flwr.federation import Exchange, Mean
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class Leash(cp.RoundStrategy):
    """Goes `step` of the way to the clients' mean, and `pull` of it back."""

    step: float = option(1.0, "part of the way to the mean", above=0, maximum=2)
    pull: float = option(0.1, "part of the way back", minimum=0, maximum=1)

    roles = ("pretraining", "task")

    def round(self, ctx, arrays):
        replies = yield Exchange("train", arrays, ctx.sample(), Mean())
        mean, old = replies.arrays, weights_of(arrays)
        if "first" not in ctx.state:
            ctx.state["first"] = {name: w.copy() for name, w in old.items()}
        first = ctx.state.get("first", {})
        moved = {n: w + self.step * (mean[n] - w) for n, w in old.items()}
        moved = {n: w + self.pull * (first[n] - w) for n, w in moved.items()}
        squares = [((moved[n] - first[n]) ** 2).sum() for n in moved]
        metrics = replies.mean_metrics() | {
            "distance": float(sum(squares)) ** 0.5
        }
        # What is no weight, such as BatchNorm's statistics, is the mean itself.
        return cast_like(mean | moved, arrays), metrics


# %% [markdown]
# What a method keeps from round to round is in `ctx.state`, so a resumed run continues with it.
# Options have limits. A value outside them is refused in one line:

# %%
try:
    Leash(pull=2)
except cp.errors.SettingsError as error:
    print(error)

# %% [markdown]
# Studies rely on several properties of a method: the same numbers on one node and on four, and the
# same bytes after a run was killed and resumed. `check_methods` tests them. In a shell the command
# is `coprefl check-method leash.py:Leash`.

# %%
from coprefl_flwr.testing import check_methods

cp.register("method", "leash", Leash)
failed = check_methods(["leash"], flower=False)

# %% [markdown]
# How good is its start, compared with FedAvg's? The tasks must be hard enough to show a difference.
# These have 10 classes, so guessing reaches 10 %. After 20 rounds a random start reaches about 55
# %. The tasks were chosen by the random start alone, before any method was run on them.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()),
        )
        self.last = nn.Linear(16 * 6 * 6, 80)

    def forward(self, images):
        return self.last(self.body(images))


data = cp.load_dataset("glyphs")
clients = cp.partition(data, clients=50, alpha=0.5, only=range(80))
methods = {
    "fedavg": cp.FedAvg(participants=10),
    "leash": Leash(participants=10, pull=0.1),
    "short leash": Leash(participants=10, pull=0.5),
}
starts = {"random": Net()} | {
    name: cp.pretrain(method, Net(), clients, rounds=20, learning_rate=0.1)
    for name, method in methods.items()
}
tasks = cp.tasks(data, number=3, classes=10, clients=10, only=range(80, 100))
result = cp.evaluate_starts(starts, tasks, rounds=20, evaluate_every=0)
print(result)

# %%
result.plot()

# %% [markdown]
# What this means: in this run, the short leash (`pull=0.5`) keeps the start between the random one
# and FedAvg's, in every column of the table. The difference between FedAvg and `pull=0.1` is about
# the standard deviation over the tasks. One seed decides nothing. A recipe makes the same
# comparison over several seeds and tests the difference.
