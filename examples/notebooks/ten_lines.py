# %% [markdown]
# # A start in ten lines
#
# Clients learn a starting model together, and other clients begin their own training from it. Here
# the clients hold small pictures of 100 letters and signs that come with the package: 80 of them
# are for the pre-training. The start is then tested on tasks of the other 20.

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
# The network is any module. Each task replaces its last linear layer by a new one.


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
start = cp.pretrain(
    cp.CoPreFL(gamma=0.5, participants=20), Net(), clients, rounds=20
)

# %% [markdown]
# `start` is a copy of the module with other weights. How good is it? Three tasks of five unseen
# classes, with ten clients each, run ten rounds of FedAvg from the random and from this start:

# %%
tasks = cp.tasks(data, number=3, classes=5, clients=10, only=range(80, 100))
result = cp.evaluate_starts(
    {"random": Net(), "coprefl": start}, tasks, rounds=10
)
print(result)

# %% [markdown]
# `result.rows` has a row for each client, and `result.rounds` has one for each round. The
# distribution of the thirty clients' accuracies:

# %%
result.plot()

# %%
result.curves()

# %% [markdown]
# The start is an ordinary module: `torch.save(start.state_dict(), "start.pt")` saves it.
# `result.rows` is a DataFrame:

# %%
result.rows.groupby(["start", "task"]).accuracy.mean().unstack().round(1)
