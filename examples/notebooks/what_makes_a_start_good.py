# %% [markdown]
# # What makes a start good
#
# Two starts can end a pre-training with the same loss and be worth different accuracies later.
# `diagnostics=True` measures, at each start and on each task's clients, what papers hold to explain
# it:
#
# - *gradient diversity*: how far the clients' gradients point apart; 1 / clients where they agree;
# - *hessian*: the largest eigenvalue of the loss, its sharpest direction;
# - *barrier*: how much worse the loss is on the line between two clients' models after a round;
# - *probe*: how well a linear layer on the frozen features does, in percent.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import torch
from torch import nn

import coprefl_flwr as cp


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


# %% [markdown]
# Starts that differ in how long, and how, they were trained:

# %%
data = cp.load_dataset("glyphs")
clients = cp.partition(data, clients=50, alpha=0.3, only=range(80))
methods = {
    "fedavg, 3 rounds": (cp.FedAvg(participants=10), 3),
    "fedavg, 15 rounds": (cp.FedAvg(participants=10), 15),
    "cyclic, 15 rounds": (cp.Cyclic(participants=10), 15),
    "coprefl, 15 rounds": (cp.CoPreFL(gamma=0.5, participants=10), 15),
}
starts = {"random": Net()} | {
    name: cp.pretrain(method, Net(), clients, rounds=rounds, learning_rate=0.1)
    for name, (method, rounds) in methods.items()
}

# %%
tasks = cp.tasks(data, number=2, classes=5, clients=5, only=range(80, 100))
result = cp.evaluate_starts(starts, tasks, rounds=5, evaluate_every=0, diagnostics=True)
print(result)

# %% [markdown]
# What was measured stands in `result.rounds`, in the rows of the phase `diagnosis`:

# %%
measures = ["gradient-diversity", "hessian", "barrier", "probe"]
diagnosed = result.rounds[result.rounds.phase == "diagnosis"]
table = diagnosed.groupby("start", sort=False)[measures].mean()
table["accuracy"] = result.summary()["accuracy"]
table.round(2)

# %% [markdown]
# The barrier is 0 throughout: in a round of five steps these clients do not come apart. Of the
# others, each point is a start in a task: what was measured before its first round, and where
# its clients end.

# %%
ends = result.rows.groupby(["start", "task"]).accuracy.mean()
shown = ["gradient-diversity", "hessian", "probe"]
figure, places = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
for place, measure in zip(places, shown, strict=True):
    for start, part in diagnosed.groupby("start", sort=False):
        place.scatter(part[measure], ends[start][part.task], label=start)
    place.set_xlabel(measure)
places[0].set_ylabel("accuracy in the end %")
_ = figure.legend(*places[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)

# %% [markdown]
# Ten points of one seed show where to look, and decide nothing: more seeds and tasks are a recipe,
# with the columns `gradient-diversity`, `hessian`, `barrier` and `probe` and the figure
# `diagnostics`.
