# %% [markdown]
# # What makes a start good
#
# Two starts can have the same pre-training loss and still lead to different accuracies in the
# tasks. Papers explain this by several quantities. `diagnostics=True` measures these quantities at
# each start, on the clients of each task:
#
# - *gradient diversity*: how different the clients' gradients are; 1 / (number of clients) if all
#   are equal;
# - *hessian*: the largest eigenvalue of the loss's Hessian, the curvature in the sharpest
#   direction;
# - *barrier*: how much larger the loss is on the line between two clients' models after a round;
# - *probe*: the accuracy of a linear layer on the frozen features, in percent.

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
# The starts in this notebook differ in their method and in the length of their pre-training:

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
result = cp.evaluate_starts(
    starts, tasks, rounds=5, evaluate_every=0, diagnostics=True
)
print(result)

# %% [markdown]
# The measurements are in `result.rounds`, in the rows of the phase `diagnosis`. We leave out the
# barrier. It is 0 for all starts, because the clients' models stay close to each other in a round
# of five steps.

# %%
measures = ["gradient-diversity", "hessian", "probe"]
diagnosed = result.rounds[result.rounds.phase == "diagnosis"]
table = diagnosed.groupby("start", sort=False)[measures].mean()
table["accuracy"] = result.summary()["accuracy"]
table.round(2)

# %% [markdown]
# Each point of the figure is a start in a task. Its x is a measurement before the first round, and
# its y is the final accuracy.

# %%
colours = ["#A3A3A3", "#009E73", "#0072B2", "#56B4E9", "#D55E00"]
ends = result.rows.groupby(["start", "task"]).accuracy.mean()
figure, places = plt.subplots(
    1, 3, figsize=(9, 3), sharey=True, layout="constrained"
)
for place, measure in zip(places, measures, strict=True):
    groups = diagnosed.groupby("start", sort=False)
    for (start, part), colour in zip(groups, colours, strict=True):
        final = ends[start][part.task]
        place.scatter(part[measure], final, label=start, color=colour)
    place.set_xlabel(measure)
places[0].set_ylabel("accuracy in the end %")
_ = figure.legend(
    *places[0].get_legend_handles_labels(), loc="outside lower center", ncols=5
)

# %% [markdown]
# Ten points of one seed are too few for a conclusion. They only suggest which quantities are worth
# measuring. A recipe can use more seeds and tasks, with the columns `gradient-diversity`,
# `hessian`, `barrier` and `probe`, which `examples/units_figure.py` draws.
