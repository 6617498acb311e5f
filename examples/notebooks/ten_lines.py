# %% [markdown]
# # A start in ten lines
#
# Clients learn a starting model together, and other clients begin their own training from it. Here
# the clients hold small pictures of 100 letters and signs that come with the package: 80 of them
# are for the pre-training, and what a start is worth is measured on tasks of the other 20.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import torch
from torch import nn

import coprefl_flwr as cp

data = cp.load_dataset("glyphs")  # or any torch Dataset of (input, label)
some = data.images[:: len(data.images) // 24][:24]
figure, places = plt.subplots(2, 12, figsize=(9, 1.6))
for place, image in zip(places.ravel(), some, strict=True):
    place.imshow(image.squeeze(), cmap="gray")
    place.axis("off")

# %% [markdown]
# The network is any module. Its last linear layer is the one that each task replaces by its own.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, stride=2), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten()),
        )
        self.last = nn.Linear(32 * 6 * 6, 80)

    def forward(self, images):
        return self.last(self.body(images))


# %% [markdown]
# One hundred clients, with few classes each: `alpha=0.5` of a Dirichlet distribution. CoPreFL
# trains on a part of what a client holds, and meta-updates the model on the rest.

# %%
clients = cp.partition(data, clients=100, alpha=0.5, only=range(80))
start = cp.pretrain(cp.CoPreFL(gamma=0.5, participants=20), Net(), clients, rounds=20)

# %% [markdown]
# `start` is a copy of the module with other weights. What is it worth? Three tasks of five unseen
# classes, ten clients each, ten rounds of FedAvg from either start:

# %%
tasks = cp.tasks(data, number=3, classes=5, clients=10, only=range(80, 100))
result = cp.evaluate_starts({"random": Net(), "coprefl": start}, tasks, rounds=10)
print(result)

# %% [markdown]
# A row per client stands in `result.rows`, and what happened round by round in `result.rounds`. How
# the accuracies of the thirty clients are spread:

# %%
result.plot()

# %%
result.curves()

# %% [markdown]
# The start is an ordinary module, so `torch.save(start.state_dict(), "start.pt")` keeps it.
# `result.rows` is a DataFrame:

# %%
result.rows.groupby(["start", "task"]).accuracy.mean().unstack().round(1)
