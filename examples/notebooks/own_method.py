# %% [markdown]
# # A method of your own
#
# A round is a generator: it yields an exchange, is sent the clients' replies, and returns the new
# global arrays. This method takes only a part of the way to the clients' mean, and pulls it back to
# the first weights, as a leash does. Sampling, checks of replies, repeats of failed rounds and
# checkpoints are the base class's.

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
    """Goes `step` of the way to the clients' mean, and `pull` of the way to the first weights."""

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
        length = sum(float(((moved[n] - first[n]) ** 2).sum()) for n in moved) ** 0.5
        # What is no weight, such as BatchNorm's statistics, is the mean itself.
        return cast_like(mean | moved, arrays), replies.mean_metrics() | {"distance": length}


# %% [markdown]
# What a method carries from round to round stands in `ctx.state`, so that a resumed run goes on
# with it. Its options say what is allowed, and what is not is refused in one line:

# %%
try:
    Leash(pull=2)
except cp.errors.SettingsError as error:
    print(error)

# %% [markdown]
# Does it keep what studies rely on: the same numbers on one node and on four, seeds, states, a run
# that is killed and resumed? `check-method` tries; from a shell it is `coprefl check-method
# leash.py:Leash`.

# %%
from coprefl_flwr.testing import check_methods

cp.register("method", "leash", Leash)
failed = check_methods(["leash"], flower=False)

# %% [markdown]
# And what is its start worth, next to FedAvg's?


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU())
        self.last = nn.Linear(64, 80)

    def forward(self, images):
        return self.last(self.body(images))


data = cp.load_dataset("glyphs")
clients = cp.partition(data, clients=50, alpha=0.5, only=range(80))
methods = {
    "fedavg": cp.FedAvg(participants=10),
    "leash": Leash(participants=10, pull=0.1),
    "short leash": Leash(participants=10, pull=0.5),
}
starts = {
    name: cp.pretrain(method, Net(), clients, rounds=20, learning_rate=0.1)
    for name, method in methods.items()
}
tasks = cp.tasks(data, number=3, classes=5, clients=10, only=range(80, 100))
result = cp.evaluate_starts({"random": Net()} | starts, tasks, rounds=10, evaluate_every=0)
print(result)

# %%
result.plot()
