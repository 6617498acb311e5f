"""Adapters from Python and in studies: starts, their files, tasks, other networks, own apps."""

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.models import load_saved_model
from tests.common.checks import refusal
from tests.common.data import images

peft = pytest.importorskip("peft")
DATA = images()
OPTIONS = {"rounds": 3, "quiet": True, "local_steps": 3, "batch_size": 8, "learning_rate": 0.1}


def base(seed=0, classes=8):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU()
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(10, classes))


def adapted(by="mean", network=None, targets=("1", "3"), alpha=16, rank=4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = {"target_modules": [*targets], "r": rank, "lora_alpha": alpha}
        config = peft.LoraConfig(**config, modules_to_save=["5"])
        return cp.average_adapters(peft.get_peft_model(network or base(), config), by)


def pretrained(folder, by, method="coprefl:support-fraction=0.5", **more):
    return cp.pretrain(
        method, adapted(by), cp.partition(DATA, 4, "iid"), checkpoint=folder, **{**OPTIONS, **more}
    )


@pytest.mark.parametrize("by", ["mean", "ffa", "exact"])
def test_start_is_a_folder_that_peft_loads(tmp_path, by):
    start = pretrained(tmp_path / "start", by)
    network = base()
    file = tmp_path / "start" / "base_correction.safetensors"
    assert file.exists() == (by == "exact")
    for name, added in load_file(file).items() if by == "exact" else ():
        assert added.abs().max() > 1e-5
        network.get_parameter(name).data += added
    with warnings.catch_warnings(action="error"):
        loaded = peft.PeftModel.from_pretrained(network, str(tmp_path / "start"))
    inputs = torch.rand(7, 1, 6, 6)
    assert torch.allclose(loaded.eval()(inputs), start.eval()(inputs), atol=1e-6)
    assert not torch.allclose(adapted(by).eval()(inputs), start(inputs), atol=1e-2)
    assert same_outputs(cp.load_start(adapted(by), tmp_path / "start"), start)


def same_outputs(one, other):
    inputs = torch.rand(7, 1, 6, 6)
    return torch.allclose(one.eval()(inputs), other.eval()(inputs), rtol=0, atol=1e-6)


def test_start_is_refused_by_a_network_with_other_adapters(tmp_path):
    start = pretrained(tmp_path / "start", "mean", rounds=1)
    exact = pretrained(tmp_path / "exact", "exact", rounds=1)
    peft_only = tmp_path / "peft"
    peft_only.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tmp_path / "start" / name, peft_only)
    assert same_outputs(cp.load_start(adapted(), peft_only), start)
    assert not same_outputs(start, exact)
    others = {
        "it belongs to the frozen weights of PeftModel with": adapted(network=base(seed=1)),
        "its adapters have r = 4, those of this network 2": adapted(rank=2),
        "its adapters have lora_alpha = 16, those of this network 4": adapted(alpha=4),
        "not in the same layers: base_model.model.3": adapted(targets=["1"]),
        "it is of adapters, and this network has none": base(),
    }
    for line, network in others.items():
        assert line in refusal(cp.load_start, network, tmp_path / "start")
        if "base" not in line and "frozen" not in line:
            assert line in refusal(cp.load_start, network, peft_only)
    line = refusal(cp.load_start, adapted(), tmp_path / "exact")
    assert "it was averaged by exact, this network is not" in line
    some = peft_only / "adapter_model.safetensors"
    from safetensors.torch import save_file

    save_file({n: t for n, t in load_file(some).items() if ".3.lora" not in n}, some)
    assert "not in the same layers: base_model.model.3" in refusal(
        cp.load_start, adapted(), peft_only
    )


@pytest.mark.parametrize("by", ["ffa", "exact"])
def test_run_that_continues_trains_as_many_weights_and_ends_equal(tmp_path, by):
    whole = pretrained(tmp_path / "whole", by)
    pretrained(tmp_path / "parts", by, rounds=1)
    parts = pretrained(tmp_path / "parts", by)
    trained = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (whole, parts)]
    factors = 4 * (12 + 10) + (0 if by == "ffa" else 4 * (36 + 12))
    assert trained == [factors + 11 * 8] * 2
    for name in ("model.safetensors", "adapter_model.safetensors", "adapter_config.json"):
        first, second = ((tmp_path / f / name).read_bytes() for f in ("whole", "parts"))
        assert first == second, name


def test_fresh_heads_and_adapters_are_trained_in_tasks(tmp_path):
    """All arrays of a task's end differ from its beginning."""
    starts = {by: pretrained(tmp_path / by, "exact", method=by) for by in ("fedavg", "coprefl")}
    starts["random"] = adapted("exact")
    tasks, results = cp.tasks(DATA, 2, 3, 2, "iid"), []
    for folder in ("one", "two"):
        options = {**OPTIONS, "checkpoint": tmp_path / folder}
        results.append(cp.evaluate_starts(starts, tasks, **options).rows)
    assert results[0].equals(results[1])
    assert len(results[0]) == 3 * 2 * 2


def test_method_whose_update_is_no_mean_of_models_is_refused_before_work():
    for method in (
        "fedavgm",
        "fedadam",
        "qffl",
        "scaffold",
        "fedmeta",
        "fedavg:aggregation=median",
    ):
        line = refusal(pretrained, None, "exact", method=method)
        assert line.startswith(f"adapter, average = exact: the update of {method} is no mean of")
        pretrained(None, "ffa", method=method, rounds=1)
    assert "is no mean of models" in refusal(
        pretrained, None, "exact", method=cp.FedAdam(participants=2)
    )
    pretrained(None, "exact", method="cyclic:rounds=1+fedavg")
    line = refusal(cp.average_adapters, base(), "exact")
    assert line == (
        "average = exact: Sequential has no adapters of LoRA; make them by get_peft_model"
    )
    assert "unknown average 'exakt': did you mean 'exact'?" in refusal(
        cp.average_adapters, adapted(), "exakt"
    )


@pytest.mark.ray
def test_workers_train_the_same_adapters(tmp_path):
    starts = [pretrained(tmp_path / str(n), "exact", workers=n) for n in (1, 2)]
    assert same_outputs(*starts)
