"""The hash of code that a program passes as objects."""

import functools
import importlib
import os
import subprocess
import sys
from dataclasses import dataclass
from types import MethodType, ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.object_code import code_hash, is_users, network_hash

PROGRAM = """
from torch import nn
LIMIT, NAMES = {limit}, {{"b", "a", "c"}}

def helper(x):{comment}
    return {helper}

def of(k):
    def metric(logits, labels, scale={scale}):
        return helper(LIMIT) * k * scale if "a" in {{"a", "b", "c"}} else NAMES
    return metric

class Base:
    rate = {rate}
    @staticmethod
    def step(x): return {step}

class Own(Base):
    @property
    def half(self): return super().rate / 2

metric = of({k})
"""
VALUES = {"limit": 1, "comment": "", "helper": "x", "scale": 1.0, "rate": 0.1, "step": "x", "k": 1}


def made(**changes):
    """Return the objects of the program with other values."""
    names = {"__name__": "own"}
    exec(PROGRAM.format(**{**VALUES, **changes}), names)
    return names


OF_METRIC = [{"limit": 2}, {"helper": "x + 1"}, {"scale": 2.0}, {"k": 2}]
OF_CLASS = [{"rate": 0.2}, {"step": "x + 1"}]


@pytest.mark.parametrize("change", OF_METRIC + OF_CLASS, ids=str)
def test_hash_changes_with_all_that_the_code_depends_on(change):
    """The body, a helper, a constant, a default, a closure, a base class; and of nothing else."""
    same, other = made(comment="  # A comment."), made(**change)
    for name, changes in (("metric", OF_METRIC), ("Own", OF_CLASS)):
        first = code_hash(made()[name])
        assert code_hash(same[name]) == first
        assert (code_hash(other[name]) != first) == (change in changes)


def test_hash_includes_arguments_of_a_partial_and_attributes():
    metric, kind = made()["metric"], made()["Own"]
    hashes = {code_hash(functools.partial(metric, scale=scale)) for scale in (1, 2)}
    one, other = kind(), kind()
    other.k = 3
    assert len(hashes | {code_hash(one), code_hash(other)}) == 4


def cached(scale):
    @functools.cache
    def metric(logits):
        return scale * logits

    return metric


def by_module(scale):
    helpers = ModuleType("helpers")
    exec(f"def scaled(x): return {scale} * x", vars(helpers))
    names = {"helpers": helpers, "__name__": "own"}
    exec("def metric(x): return helpers.scaled(x)", names)
    return names["metric"]


VALUES_OF = {
    "a method": lambda scale: MethodType(made(k=scale)["metric"], "an object"),
    "a cached function": cached,
    "a function of a module": by_module,
    "a NumPy number": lambda scale: cached(np.float32(scale)),
    "a tensor": lambda scale: cached(torch.tensor([0.0, scale])),
    "a dtype": lambda scale: cached([torch.float32, torch.float64][scale - 1]),
}


@pytest.mark.parametrize("what", VALUES_OF)
def test_hash_changes_with_values(what):
    first, again, other = (code_hash(VALUES_OF[what](scale)) for scale in (1, 1, 2))
    assert first == again != other


def test_hash_of_a_users_module_is_that_of_the_code_that_runs(tmp_path, monkeypatch):
    """An edit of the file counts after a reload, as by `%autoreload`, or in a new process."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "module_of_a_user.py"
    text = "from torch import nn\ndef helper(x):\n    return x\n"
    text += "class Net(nn.Module):\n    def forward(self, x):\n        return helper(x)\n"
    file.write_text(text)
    module = importlib.import_module(file.stem)
    first = network_hash(module.Net())
    file.write_text(text.replace("return x", "return 2 * x"))
    assert network_hash(module.Net()) == first
    assert network_hash(importlib.reload(module).Net()) != first


def test_value_that_cannot_be_pickled_is_refused_in_one_line():
    with pytest.raises(SettingsError, match=r"metric: its changes would not be .*TypeError"):
        code_hash(cached(x for x in "abc"))
    with pytest.raises(SettingsError, match="a network or another object: its changes would not"):
        network_hash(Scaled(x for x in "abc"))


def test_hash_does_not_include_globals_that_the_code_changes():
    names = {"__name__": "own", "log": []}
    exec("def metric(x): log.append(x); return x", names)
    first = code_hash(names["metric"])
    names["metric"](1)
    assert code_hash(names["metric"]) == first


def test_code_of_packages_counts_by_its_name():
    assert not any(map(is_users, (cp.FedAvg, nn.Linear, nn.functional.relu, dataclass, torch)))
    assert is_users(made)
    assert code_hash(nn.Linear) == code_hash(nn.Linear) != code_hash(nn.Bilinear)


def test_hash_is_the_same_in_every_process():
    """Sets of texts have another order in each process."""
    program = f"{PROGRAM.format(**VALUES)}\nfrom coprefl_flwr.object_code import code_hash"
    program += "\nprint(code_hash(metric, Own))"
    printed = [
        subprocess.check_output(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1] != b"\n"


class Scaled(nn.Module):
    """A layer with attributes, a function and a buffer that is not stored."""

    def __init__(self, scale=1.0, act=torch.relu, shift=0.0, private=0):
        super().__init__()
        self.scale, self.act, self._private = scale, act, private
        self.register_buffer("shift", torch.tensor([shift]), persistent=False)

    def forward(self, x):
        return self.act(self.scale * x + self.shift)


class Twice(Scaled):
    """The same layer with another `forward`."""

    def forward(self, x):
        return 2 * super().forward(x)


CHANGES = {"scale": 2.0, "act": torch.tanh, "shift": 1.0, "private": 1}


def network(layer=nn.ReLU, frozen=False, p=0.1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), layer(), nn.Dropout(p), nn.Linear(4, 2))
    model[0].weight.requires_grad_(not frozen)
    return model


def test_hash_of_a_network_includes_its_code_and_attributes():
    networks = [
        network(),
        network(nn.Tanh),
        network(frozen=True),
        network(p=0.9),
        network(Scaled),
        network(Twice),
        *(network(functools.partial(Scaled, **{key: value})) for key, value in CHANGES.items()),
    ]
    assert len({network_hash(one) for one in networks}) == len(networks)
    trained = network()
    trained.load_state_dict({n: w + 1 for n, w in trained.state_dict().items()})
    assert network_hash(trained.eval()) == network_hash(network())
    counted = [network(Scaled), network(functools.partial(Scaled, private=1))]
    assert len({network_hash(one, own_attributes=False) for one in counted}) == 1
    # PyTorch keeps the weights of recurrent layers in private lists too.
    assert len({network_hash(nn.LSTM(2, 3)) for _ in range(2)}) == 1
