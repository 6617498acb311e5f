# %% [markdown]
# # A start in ten lines
#
# Clients pre-train a starting model together, and other clients begin their own training from this
# model. The data are small images of 100 letters and signs, which are part of the package. 80 of
# these classes are for the pre-training. The start is then tested on tasks with the other 20
# classes.

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
# The network can be any PyTorch module. Each task replaces its last linear layer by a new layer.


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
# There are one hundred clients, each with few classes: the classes are drawn from a Dirichlet
# distribution with `alpha=0.5`. CoPreFL trains on a part of each client's samples, and uses the
# other samples for its meta step.

# %%
clients = cp.partition(data, clients=100, alpha=0.5, only=range(80))
start = cp.pretrain(
    cp.CoPreFL(gamma=0.5, participants=20), Net(), clients, rounds=20
)

# %% [markdown]
# `start` is a copy of the module with pre-trained weights. How good is this start? Three tasks run
# ten rounds of FedAvg, once from the random start and once from this start. Each task has five
# unseen classes and ten clients:

# %%
tasks = cp.tasks(data, number=3, classes=5, clients=10, only=range(80, 100))
result = cp.evaluate_starts(
    {"random": Net(), "coprefl": start}, tasks, rounds=10
)
print(result)

# %% [markdown]
# `result.rows` has a row for each client, and `result.rounds` has a row for each round. These plots
# show the distribution of the thirty clients' accuracies, and the learning curves:

# %%
result.plot()

# %%
result.curves()

# %% [markdown]
# The start is an ordinary module: `torch.save(start.state_dict(), "start.pt")` saves its weights.
# `result.rows` is a DataFrame. This table shows the mean accuracy of each start in each task:

# %%
result.rows.groupby(["start", "task"]).accuracy.mean().unstack().round(1)
