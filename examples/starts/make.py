"""Make the starts of this folder, each with its card.

python examples/starts/make.py [--text TEXT.txt] [NAME ...]

Without names, all starts are made; `shakespeare` needs the text of his plays, in blocks that begin
with a line `NAME:`. On one machine, with one thread, the same versions give the same bytes.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.models import build_model
from coprefl_flwr.studies.provenance import versions

HERE = Path(__file__).parent
TEXT = "shakespeare"

GLYPHS = {
    "glyphs-fedavg": "fedavg",
    "glyphs-fedadam": "fedadam:global-learning-rate=0.01",
    "glyphs-fedetf": "fedetf",
    "glyphs-cyclic-fedavg": "cyclic:rounds=8+fedavg:rounds=32",
    "glyphs-coprefl": "coprefl:gamma=0.5,meta-learning-rate=0.04,learning-rate=0.2,local-steps=6",
}
"""Methods of the starts that clients with characters train; the rates are of startbench."""

CLASSES, FRACTALS = 80, 150
"""Characters of the pre-training; the others are for tasks. Fractals, out of 1,000."""

SHAPE = (1, 28, 28)

LENET = """\
from collections import OrderedDict

from torch import nn

model = nn.Sequential(
    OrderedDict(
        conv1=nn.Conv2d(1, 6, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(6, 16, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(256, 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        fc3=nn.Linear(84, CLASSES),
    )
)
"""
"""Code of the package's network `lenet5`, for readers who do not have the package."""

READER = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 16)
        self.gru = nn.GRU(16, 96, batch_first=True)
        self.fc = nn.Linear(96, CHARACTERS)

    def forward(self, text):  # (b, n) numbers of characters; logits (b, n, CHARACTERS) of the next
        return self.fc(self.gru(self.embedding(text))[0])


model = Net()
"""

ABOUT_GLYPHS = """\
80 of the 100 embedded characters of the package coprefl-flwr (`cp.load_dataset("glyphs")`), which a
program draws: 120 images of each, at 50 clients whose proportions of the characters come from a
Dirichlet distribution (0.5). They are about nobody."""

ABOUT_FRACTALS = """\
The first 150 of the 1,000 embedded fractals of the package coprefl-flwr
(`cp.load_dataset("fractals")`), which a program draws from random equations, at 28 x 28 pixels.
They are about nobody, and all in one place."""

ABOUT_TEXT = """\
Plays of Shakespeare: the text of 20 of the speakers with at least 1,500 characters, each a client.
A sample is 64 characters, as numbers: the places of the characters in this string of Python. The
next character is predicted.

```
{}
```"""

NOT_FOR_IMAGES = """\
Anything but experiments: the images are simple, and the network is small. It was not tested on
photographs or on handwriting."""

NOT_FOR_TEXT = """\
Anything but experiments: it writes no sentences, and the plays have the views of their time."""

LICENSE = {"license": "apache-2.0", "data_license": "apache-2.0, as the package"}


def network_of(code: str) -> nn.Module:
    """Return the network `model` of a card's code, with weights of the seed 0."""
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(code, names)
    model: nn.Module = names["model"]
    return model


def glyph_tasks() -> cp.Tasks:
    """Return eight tasks, each of 5 of the 20 other characters at 10 clients."""
    rest = range(CLASSES, 100)
    return cp.tasks(cp.load_dataset("glyphs"), number=8, classes=5, clients=10, only=rest)


def measured(name: str, start: nn.Module | Path, first: nn.Module) -> cp.StartsResult:
    """Return the results of a start of images, and of its network with its first weights."""
    how = {"learning_rate": 0.1, "local_steps": 5, "batch_size": 20, "evaluate_every": 0}
    starts = {"random": first, name: start}
    return cp.evaluate_starts(starts, glyph_tasks(), 4, seed=0, quiet=True, **how)


def image_start(name: str, folder: Path) -> None:
    """Make a start of images in the new folder `folder`, measure it, and save it."""
    classes = FRACTALS if name == "fractals" else CLASSES
    first = build_model("lenet5", classes, SHAPE)
    how: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 20, "quiet": True}
    if name == "fractals":
        data = cp.load_dataset("fractals", image_size=28)
        clients = cp.partition(data, 1, "iid", only=range(classes))
        how |= {"local_steps": 100, "batch_size": 32, "learning_rate": 0.05, "momentum": 0.9}
        method, rounds, about = "centralised", 32, ABOUT_FRACTALS
    else:
        clients = cp.partition(cp.load_dataset("glyphs"), 50, alpha=0.5, only=range(classes))
        how |= {"local_steps": 8, "participants": 10}
        method, rounds, about = GLYPHS[name], 40, ABOUT_GLYPHS
    cp.pretrain(method, first, clients, rounds, checkpoint=folder, **how)
    without_machine(folder, model="lenet5", norm="batch")
    result = measured(name, folder, first)
    code = LENET.replace("CLASSES", str(classes))
    how = {"method": "Trained in one place:"} if name == "fractals" else {}
    how |= {"network": code, "not_for": NOT_FOR_IMAGES, "result": result, **LICENSE}
    cp.save_start(folder, HERE / name, name=name, data=about, **how)


def text_start(text: Path, folder: Path) -> None:
    """Make the start of Shakespeare's text in the new folder `folder`, measure it, and save it."""
    sys.path.append(str(HERE.parent / "text"))
    from speakers import OF_TASK, percent_correct, read, samples

    texts, characters = read(text)
    code = READER.replace("CHARACTERS", str(len(characters)))
    clients = cp.partition(samples(texts[:20], characters), scheme="natural")
    tasks = cp.tasks(samples(texts[20:][: 3 * OF_TASK], characters), scheme="natural")
    how: dict[str, Any] = {"optimiser": "adam", "loss": "next-token", "quiet": True}
    first = network_of(code)
    of_start = {"learning_rate": 1e-2, "local_steps": 8, "batch_size": 16, "participants": 10}
    cp.pretrain("fedavg", first, clients, 40, checkpoint=folder, **of_start, **how)
    without_machine(folder)
    starts = {"random": first, TEXT: folder}
    of_tasks = {"head": "keep", "evaluate_every": 0, "client_metrics": percent_correct}
    of_tasks |= {"learning_rate": 3e-3, "local_steps": 5, "batch_size": 16}
    result = cp.evaluate_starts(starts, tasks, 3, seed=0, **of_tasks, **how)
    about = ABOUT_TEXT.format(ascii(characters))
    more = {"license": "apache-2.0", "data_license": "none: the plays are in the public domain"}
    more |= {"network": code, "not_for": NOT_FOR_TEXT}
    cp.save_start(folder, HERE / TEXT, name=TEXT, data=about, result=result, **more)


def without_machine(folder: Path, **more: str) -> None:
    """Leave machine and commit out of `model.json`, so that it is the same after any commit."""
    file = folder / "model.json"
    about = json.loads(file.read_text())
    kept = {key: value for key, value in about.items() if key not in ("machine", "commit")}
    file.write_text(json.dumps(kept | more, indent=2, sort_keys=True) + "\n")


def main() -> None:
    """Make the starts that the command names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="starts; default: all")
    parser.add_argument("--text", type=Path, help=f"the text for {TEXT}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(versions())
    for name in arguments.names or [*GLYPHS, "fractals", *([TEXT] if arguments.text else [])]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / name
            if name == TEXT:
                text_start(arguments.text, folder)
            else:
                image_start(name, folder)
        print((HERE / name / "README.md").read_text().partition("## Results")[2].partition("`")[0])


if __name__ == "__main__":
    main()
