# %% [markdown]
# # Gallery
#
# Twelve tasks, each with its lines of Python, a picture, and what was found in the run that drew
# it. Every heading links to the guide. The runs are small, and each has one seed: a finding is true
# of its run and decides nothing about methods ([the claims](../claims.md) do). All sections use
# these names:

# %%
# %matplotlib inline
import sys
import torch
from torch import nn

import coprefl_flwr as cp

sys.path.append("../targets")  # the programs of two sections


def net(classes=80):
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()),
        nn.Linear(16 * 6 * 6, classes),
    )


data = cp.load_dataset("glyphs")  # images of 100 characters
clients = cp.partition(data, clients=50, alpha=0.3, only=range(80))
tasks = cp.tasks(data, number=3, classes=10, clients=10, only=range(80, 100))
how = {"participants": 10, "learning_rate": 0.1, "quiet": True}

# %% tags=["finding"]
import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#A3A3A3"
plt.rcParams["figure.figsize"] = (7, 2.4)
plt.rcParams["figure.constrained_layout.use"] = True


def bars(values, label, colours=(GREY, BLUE, ORANGE, GREEN), spec=".1f"):
    """Draw a bar for each name, with its number."""
    _, place = plt.subplots()
    names = list(values)[::-1]
    numbers = [values[name] for name in names]
    drawn = place.barh(
        names, numbers, color=colours[: len(names)][::-1], height=0.6
    )
    place.bar_label(drawn, fmt=f"{{:{spec}}}", padding=3)
    place.margins(x=0.1)
    place.set_xlabel(label)
    place.spines[["top", "right"]].set_visible(False)
    plt.show()


def means(result, column="accuracy"):
    """Return {start: its mean over the tasks}."""
    return result.summary([column])[column].to_dict()


# %% [markdown]
# ## [Your own data](../how-to/data.md)
#
# Any torch `Dataset`, divided among clients by a scheme, by groups such as writers, or by your own
# function.

# %%
spread = {
    alpha: cp.partition(data, clients=12, alpha=alpha, only=range(10))
    for alpha in (0.1, 10.0)
}

# %% tags=["finding"]
figure, places = plt.subplots(1, 2, sharey=True)
largest = {}
for place, (alpha, own) in zip(places, spread.items(), strict=True):
    counts = np.array(
        [np.bincount(samples.labels, minlength=10) for samples in own]
    )
    largest[alpha] = 100 * (counts.max(axis=1) / counts.sum(axis=1)).mean()
    bottom = np.zeros(len(counts))
    for number, column in enumerate(counts.T):
        colour = plt.get_cmap("tab10")(number)
        place.bar(
            range(len(counts)), column, bottom=bottom, color=colour, width=0.8
        )
        bottom += column
    place.set_title(f"alpha = {alpha:g}", fontsize=10)
    place.set_xlabel("client")
places[0].set_ylabel("samples by class")
plt.show()
print(
    f"With `alpha=0.1` the most frequent class of a client has {largest[0.1]:.0f} % of its "
    f"samples in the mean, and with `alpha=10` {largest[10.0]:.0f} %."
)

# %% [markdown]
# ## [Your own model](../how-to/model.md)
#
# Any `nn.Module`. A task replaces its last linear layer.


# %%
def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 80))
    )


results = []
for model in (perceptron(), net()):
    start = cp.pretrain("fedavg", model, clients, rounds=20, **how)
    starts = {"random": model, "fedavg": start}
    results.append(cp.evaluate_starts(starts, tasks, rounds=10, quiet=True))

# %% tags=["finding"]
flat, deep = map(means, results)
bars(
    {
        "perceptron, random": flat["random"],
        "perceptron, FedAvg": flat["fedavg"],
        "convolutions, random": deep["random"],
        "convolutions, FedAvg": deep["fedavg"],
    },
    "accuracy after ten rounds, %",
    (GREY, BLUE, GREY, BLUE),
)
print(
    f"FedAvg's start gives the perceptron {flat['fedavg'] - flat['random']:+.1f} points and the "
    f"convolutions {deep['fedavg'] - deep['random']:+.1f} points of accuracy."
)

# %% [markdown]
# ## [Another loss](../how-to/loss.md)
#
# A function of outputs and targets that returns a scalar. Here it predicts prices in regions
# ([the table](../../examples/targets/regression.py)), of which one in twenty has a slip of the
# decimal point.

# %%
import regression

houses, region = regression.table()
features, price = (tensor.clone() for tensor in houses.tensors)
slips = torch.rand(len(price), generator=torch.manual_seed(0)) < 0.05
price[slips & (region < 20)] *= 10
known, new = [
    torch.utils.data.TensorDataset(features[part], price[part])
    for part in (region < 20, region >= 20)
]
asked = cp.partition(known, groups=region[region < 20].numpy())
starts = {"random": regression.network()}
for loss in (nn.functional.mse_loss, nn.functional.l1_loss):
    starts[loss.__name__] = cp.pretrain(
        "fedavg", regression.network(), asked, rounds=40, loss=loss, **how
    )

# %% tags=["finding"]
inputs, targets = new.tensors
errors = {
    name: regression.absolute_error(start(inputs).detach(), targets)
    for name, start in starts.items()
}
labels = dict(
    zip(
        ("random", "squared error", "absolute error"),
        errors.values(),
        strict=True,
    )
)
bars(labels, "error in new regions, without training there", spec=".2f")
print(
    f"On correct prices of six new regions, the model of the squared error is wrong by "
    f"{errors['mse_loss']:.2f} in the mean, and that of the absolute error by "
    f"{errors['l1_loss']:.2f} (random weights: {errors['random']:.2f})."
)

# %% [markdown]
# ## [Targets that are not classes](../how-to/targets.md)
#
# Numbers, several labels, or a class for each pixel, as in this
# [segmentation](../../examples/targets/segmentation.py) of images from 20 scanners.

# %%
import segmentation

images, scanner = segmentation.scenes(20, 0, 1.0)
scanners = cp.partition(images, groups=scanner)
start = cp.pretrain(
    "fedavg",
    segmentation.network(),
    scanners,
    rounds=40,
    local_steps=5,
    **how | {"learning_rate": 0.3},
)

# %% tags=["finding"]
images, scanner = segmentation.scenes(2, 1, 0.6)
inputs, targets = images.tensors
outputs = start(inputs).detach()
figure, places = plt.subplots(3, 8, figsize=(7, 2.8))
rows = (inputs[::8, 0], targets[::8], outputs.argmax(dim=1)[::8])
for line, shown, name in zip(
    places, rows, ("image", "truth", "found"), strict=True
):
    for place, picture in zip(line, shown, strict=True):
        place.imshow(picture, cmap="gray")
        place.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
plt.show()
print(
    f"On two new scanners with less contrast, the start without training there has a mean overlap "
    f"(intersection over union) of {segmentation.overlap(outputs, targets):.0f} %."
)

# %% [markdown]
# ## [Adapters](../how-to/adapters.md)
#
# A frozen transformer below adapters of `peft`: only adapters and the last layer are trained and
# sent.

# %%
import peft
from transformers import ViTConfig, ViTForImageClassification

sizes = {"image_size": 28, "patch_size": 7, "num_channels": 1}
layers = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
config = ViTConfig(**sizes, **layers, num_attention_heads=4, num_labels=80)
torch.manual_seed(0)
lora = peft.LoraConfig(
    r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"]
)
models = {
    "whole model": ViTForImageClassification(config),
    "adapters": peft.get_peft_model(ViTForImageClassification(config), lora),
}
sent = {}
for name, model in models.items():
    _, history = cp.pretrain(
        "fedavg", model, clients, rounds=2, history=True, **how
    )
    sent[name] = history["client-bytes-up"].mean() / 10 / 1000

# %% tags=["finding"]
bars(sent, "kB that a client sends in a round", (GREY, ORANGE), spec=".0f")
print(
    f"A client sends {sent['adapters']:.0f} kB instead of {sent['whole model']:.0f} kB: "
    f"{100 * sent['adapters'] / sent['whole model']:.0f} %."
)

# %% [markdown]
# ## [Your own method](../how-to/method.md)
#
# A round is a generator. This one moves only a part of the way to the clients' mean.

# %%
from dataclasses import dataclass

from coprefl_flwr.arrays import cast_like, weights_of
from coprefl_flwr.federation import Exchange, Mean


@dataclass(kw_only=True, eq=False)
class PartWay(cp.RoundStrategy):
    step: float = 0.5

    def round(self, ctx, arrays):
        replies = yield Exchange("train", arrays, ctx.sample(), Mean())
        mean, old = replies.arrays, weights_of(arrays)
        moved = {n: w + self.step * (mean[n] - w) for n, w in old.items()}
        return cast_like(mean | moved, arrays), replies.mean_metrics()


curves = {}
for step in (0.25, 0.5, 1.0):
    _, curves[f"step {step}"] = cp.pretrain(
        PartWay(step=step, participants=10),
        *(net(), clients, 30),
        **{"learning_rate": 0.1, "history": True, "quiet": True},
    )

# %% tags=["finding"]
_, place = plt.subplots()
for (name, curve), colour in zip(
    curves.items(), (GREY, ORANGE, BLUE), strict=True
):
    place.plot(curve["round"], curve["loss"], label=name, color=colour)
place.set(xlabel="round", ylabel="training loss")
place.legend(frameon=False)
place.spines[["top", "right"]].set_visible(False)
plt.show()
last = {name: curve["loss"].tail(5).mean() for name, curve in curves.items()}
print(
    f"In the last five of 30 rounds the training loss is {last['step 0.25']:.2f} with a quarter of "
    f"the step, {last['step 0.5']:.2f} with half, and {last['step 1.0']:.2f} with the whole step "
    "(FedAvg)."
)

# %% [markdown]
# ## [Your own metric](../how-to/metric.md)
#
# A function of outputs and targets, which each client of a task computes.


# %%
def worst_class(logits, labels):
    hits = logits.argmax(dim=1) == labels
    found = [hits[labels == c].double().mean() for c in labels.unique()]
    return 100 * float(torch.stack(found).min())


start = cp.pretrain("fedavg", net(), clients, rounds=20, **how)
result = cp.evaluate_starts(
    {"random": net(), "fedavg": start},
    tasks,
    rounds=20,
    client_metrics=worst_class,
    quiet=True,
)

# %% tags=["finding"]
mean, worst = means(result), means(result, "metric:worst_class")
bars(
    {
        "random, all classes": mean["random"],
        "random, worst class": worst["random"],
        "FedAvg, all classes": mean["fedavg"],
        "FedAvg, worst class": worst["fedavg"],
    },
    "% recognised, mean over the clients",
    (GREY, GREY, BLUE, BLUE),
)
print(
    f"From FedAvg's start, clients recognise {mean['fedavg']:.0f} % of their images, but only "
    f"{worst['fedavg']:.0f} % of those of their worst class."
)

# %% [markdown]
# ## [Existing weights](../how-to/start.md)
#
# Weights that were trained elsewhere are compared like any other start; here, on images of
# fractals, which are nobody's data.

# %%
fractals = cp.load_dataset("fractals", image_size=28)
of_fractals = cp.partition(fractals, clients=50, only=range(80))
starts = {
    "random": net(),
    "fractals": cp.pretrain("fedavg", net(), of_fractals, 40, **how),
    "characters": cp.pretrain("fedavg", net(), clients, 40, **how),
}
result = cp.evaluate_starts(starts, tasks, rounds=10, quiet=True)

# %% tags=["finding"]
mean = means(result)
bars(mean, "accuracy after ten rounds, %")
print(
    f"The start that only saw fractals is {mean['fractals'] - mean['random']:+.1f} points from "
    f"random weights, and the start of the clients' characters "
    f"{mean['characters'] - mean['random']:+.1f} points."
)

# %% [markdown]
# ## [Choose a start](../how-to/choose.md)
#
# Several starts are tried on draws of your clients and tasks, with as few runs as it needs.

# %%
chosen = cp.choose_start(
    ["random", "coprefl", "cyclic:rounds=2+fedavg", "fedavg"],
    clients,
    cp.tasks(data, number=1, classes=10, clients=10, only=range(80, 100)),
    net(),
    rounds=10,
    pretraining={"participants": 10, "learning_rate": 0.1},
    downstream={"rounds": 5},
    quiet=True,
)

# %% tags=["finding"]
print(chosen.answer)
chosen.plot()

# %% [markdown]
# ## [Personalised models](../how-to/personalised.md)
#
# Each client ends with its own model. Half of a client's samples are for testing.

# %%
import tempfile

from coprefl_flwr import clients as kinds
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.models import model_arrays
from flwr.app import ArrayRecord

own = cp.partition(data, 10, alpha=0.3, only=range(20))
memory = ClientState(tempfile.mkdtemp())


def run(strategy, kind, first, **remembers):
    def client_fn(context, client_id):
        mine = own[client_id]
        train, test = (mine.take(range(n, len(mine), 2)) for n in (0, 1))
        return kind(net(20), train, test=test, **remembers)

    grid = LocalGrid(kinds.client_app(client_fn), nodes=10)
    return strategy.start(grid, ArrayRecord(first), 20).history.rounds()


often = {"seed": 0, "evaluate_every": 4}
more = {"state": memory, "initial": model_arrays(net(20))}
body = net(20)[:-1].state_dict()
histories = {
    "Solo": run(
        cp.Solo(run_name="solo", **often), kinds.SoloClient, {}, **more
    ),
    "FedAvg": run(cp.FedAvg(**often), kinds.TorchClient, net(20).state_dict()),
    "FedRep": run(
        cp.FedRep(run_name="fedrep", **often), kinds.FedRepClient, body, **more
    ),
}

# %% tags=["finding"]
_, place = plt.subplots()
last = {}
for (name, history), colour in zip(
    histories.items(), (GREY, BLUE, ORANGE), strict=True
):
    line = {
        at: 100 * one["evaluate-accuracy"]
        for at, one in history.items()
        if "evaluate-accuracy" in one
    }
    place.plot(
        list(line),
        list(line.values()),
        "o-",
        markersize=3,
        label=name,
        color=colour,
    )
    last[name] = line[max(line)]
place.set(xlabel="round", ylabel="accuracy of the clients %")
place.legend(frameon=False)
place.spines[["top", "right"]].set_visible(False)
plt.show()
print(
    f"One model for all (FedAvg) reaches {last['FedAvg']:.1f} %, models that are trained alone "
    f"{last['Solo']:.1f} %, and FedRep, which shares all layers except the last, "
    f"{last['FedRep']:.1f} %."
)

# %% [markdown]
# ## [Attacks](../how-to/attacks.md)
#
# Three of ten clients send their update times ten.

# %%
attack = {
    "client_wrapper": "../attacks/attackers.py:Scale",
    "client_wrapper_share": 0.3,
}
starts = {"random": net()}
for name, rule, options in (
    ("mean", "mean", {}),
    ("mean, attacked", "mean", attack),
    ("median, attacked", "median", attack),
):
    method = cp.FedAvg(participants=10, aggregation=rule)
    starts[name] = cp.pretrain(
        method, net(), clients, 20, learning_rate=0.1, quiet=True, **options
    )
result = cp.evaluate_starts(starts, tasks, rounds=10, quiet=True)

# %% tags=["finding"]
mean = means(result)
bars(mean, "accuracy after ten rounds, %")
print(
    f"Under this attack the mean's start reaches {mean['mean, attacked']:.1f} % and the median's "
    f"{mean['median, attacked']:.1f} % (the mean without attackers: {mean['mean']:.1f} %, random "
    f"weights: {mean['random']:.1f} %)."
)

# %% [markdown]
# ## [Privacy](../how-to/privacy.md)
#
# CoPreFL's clients clip their query gradients to length 1 and add Gaussian noise to them.

# %%
starts = {"random": net()}
for noise in (0.0, 0.01, 0.1):
    method = f"coprefl:query-clip=1,query-noise={noise}"
    starts[f"noise {noise:g}"] = cp.pretrain(method, net(), clients, 20, **how)
result = cp.evaluate_starts(starts, tasks, rounds=10, quiet=True)

# %% tags=["finding"]
mean = means(result)
bars(mean, "accuracy after ten rounds, %")
print(
    f"Noise of 0.01 changes the accuracy by {mean['noise 0.01'] - mean['noise 0']:+.1f} points, "
    f"and noise of 0.1 by {mean['noise 0.1'] - mean['noise 0']:+.1f}. No epsilon is computed."
)
