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
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.models.adapters import Adapter
from coprefl_flwr.models.base import base_hash
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.tasks import architecture_of_tasks
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
    for number, given in enumerate((tmp_path / "start", start)):
        saved = cp.save_start(given, tmp_path / f"saved-{number}")
        assert same_outputs(cp.load_start(adapted(by), saved), start)
        assert (saved / "adapter_config.json").is_file()


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
        "lora_B.default.weight' has shape (12, 4), but the model has (12, 2)": adapted(rank=2),
        "its adapters have lora_alpha = 16, those of this network 4": adapted(alpha=4),
        "'base_model.model.3.lora_B.default.weight' is not in the model": adapted(targets=["1"]),
        "those of this network None": base(),
    }
    for line, network in others.items():
        assert line in refusal(cp.load_start, network, tmp_path / "start")
        if "base" not in line and "frozen" not in line:
            assert line in refusal(cp.load_start, network, peft_only)
    line = refusal(cp.load_start, adapted(), tmp_path / "exact")
    assert "lora_correction' is not in the model" in line
    some = peft_only / "adapter_model.safetensors"
    from safetensors.torch import save_file

    save_file({n: t for n, t in load_file(some).items() if ".3.lora" not in n}, some)
    assert "'base_model.model.3.lora_B.default.weight' is missing" in refusal(
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
    starts = {by: pretrained(tmp_path / by, "exact", method=by) for by in ("fedavg", "coprefl")}
    starts["random"] = adapted("exact")
    tasks, results = cp.tasks(DATA, 2, 3, 2, "iid"), []
    network = architecture_of_tasks(starts, None, tasks, 0, keeps_head=False).make(3)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in adapted().named_parameters() if p.requires_grad}
    assert len(trained) == 6
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
    pretrained(None, "exact", method="fedetf", rounds=1)
    line = refusal(cp.average_adapters, base(), "exact")
    assert line.startswith("average = exact: Sequential needs plain adapters of peft's LoRA")
    assert "unknown average 'exakt': did you mean 'exact'?" in refusal(
        cp.average_adapters, adapted(), "exakt"
    )


@pytest.mark.ray
def test_workers_train_the_same_adapters(tmp_path):
    starts = [pretrained(tmp_path / str(n), "exact", workers=n) for n in (1, 2)]
    assert same_outputs(*starts)


# ---- studies ------------------------------------------------------------------------------------


def perceptron(classes, input_shape):
    layers = nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, classes)
    return nn.Sequential(nn.Flatten(), *layers)


LORA = "lora:rank=4,alpha=16,targets=1&3"


def study_of(settings, **changes):
    changes = {"model": f"{__name__}:perceptron", "adapter": LORA, **changes}
    return build(Settings.from_config({**settings.to_config(), **changes}))


@pytest.mark.parametrize("by", ["mean", "ffa", "exact"])
def test_study_trains_adapters_and_the_last_layer_in_both_phases(tiny_settings, by):
    method = "random fedavg coprefl"
    study = study_of(
        tiny_settings, method=method, adapter=f"{LORA},average={by}", **{"task-rounds": 1}
    )
    start, task = study.stages[0], study.stages[-1]
    head = {f"base_model.model.5.modules_to_save.default.{name}" for name in ("weight", "bias")}
    factors = {f"base_model.model.{n}.lora_{f}.default.weight" for n in "13" for f in "AB"}
    trained = {n for n in factors | head if by != "ffa" or "lora_A" not in n}
    for stage in (start, task):
        parameters = stage.module.named_parameters()
        assert {name for name, p in parameters if p.requires_grad} == trained
        assert start.architecture.head & trained == head
    assert base_hash(start.module) == base_hash(task.module)
    folder = run_study(LocalGrid(client_app(study.client), nodes=2), study)
    network = perceptron(start.architecture.num_classes, None)
    arrays, about = load_saved_model(folder / "starts" / "fedavg")
    assert about["adapter"] == f"{LORA},average={by}"
    assert ("base_model.model.1.lora_correction" in arrays) == (by == "exact")
    loaded = peft.PeftModel.from_pretrained(network, str(folder / "starts" / "fedavg"))
    for name in trained:
        assert np.array_equal(loaded.get_parameter(name).detach().numpy(), arrays[name]), name
    drawn, _ = load_saved_model(folder / "starts" / "random")
    assert all((drawn[name] == 0).all() for name in trained if "lora_B" in name)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert {row["start"] for row in rows} == {"random", "fedavg", "coprefl"}


def test_start_of_adapters_of_another_study(tiny_settings, tmp_path):
    """The last layer of the start may be for other classes."""
    study = study_of(tiny_settings, method="fedavg")
    folder = run_study(LocalGrid(client_app(study.client), nodes=2), study) / "starts" / "fedavg"
    given = study_of(tiny_settings, method=f"random file:{folder}")
    given.check()
    arrays = given.stages[1].initial()
    saved, _ = load_saved_model(folder)
    for name, array in saved.items():
        assert np.array_equal(arrays[name], array), name
    other = study_of(tiny_settings, method=f"random file:{folder}", adapter="")
    with pytest.raises(SettingsError, match="those of this network None"):
        other.check()


@pytest.mark.parametrize(
    ("adapter", "line"),
    [
        ("lora:rank=4", "name its targets, out of the layers 1, 3$"),
        ("lora:targets=1&4", "unknown target '4': known are 1, 3"),
        ("lora:targets=5", "unknown target '5': known are 1, 3"),
        ("lore:targets=1", "unknown adapter 'lore': did you mean 'lora'"),
        ("lora:rank=0,targets=1", "rank = 0: must be at least 1"),
        ("lora:average=men,targets=1", "unknown value 'men': did you mean 'mean'"),
        ("lora:ranks=2,targets=1", "unknown option 'ranks': did you mean 'rank'"),
    ],
)
def test_wrong_adapter_is_refused_in_one_line(tiny_settings, adapter, line):
    with pytest.raises(SettingsError, match=line) as error:
        study_of(tiny_settings, adapter=adapter).check()
    assert error.value.keys == ("adapter",)
    assert "\n" not in str(error.value)


def test_adapter_of_a_recipe_is_a_mapping():
    written = {"type": "lora", "rank": 4, "alpha": 16, "targets": ["query", "value"]}
    adapter = Adapter.read(written)
    assert str(adapter) == "lora:rank=4,alpha=16,targets=query&value"
    assert adapter == Adapter.read(str(adapter))
    assert adapter.lora.targets == "query value"
    assert Adapter.read({"type": "lora", "targets": [0, 2]}).lora.targets == "0 2"


# ---- models of transformers ---------------------------------------------------------------------


@pytest.fixture
def vit(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 12, "image_size": 6, "patch_size": 3, "num_channels": 1}
    config = transformers.ViTConfig(**sizes)
    config.save_pretrained(tmp_path / "config")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    return tmp_path


def test_model_of_a_folder_with_adapters(tiny_settings, vit):
    weights = load_file(vit / "vit" / "model.safetensors")
    adapters = {"vit": "lora:rank=2,targets=q_proj&v_proj,average=exact", "config": ""}
    for name, adapter in adapters.items():
        settings = {"model": f"hf:{vit / name}", "adapter": adapter, "method": "random fedavg"}
        study = study_of(tiny_settings, **settings)
        stage = study.stages[0]
        inner = stage.module.base_model.model if adapter else stage.module
        embedding = inner.vit.embeddings.cls_token
        assert torch.equal(embedding, weights["vit.embeddings.cls_token"]) == (name == "vit")
        run_study(LocalGrid(client_app(study.client), nodes=2), study)


def test_remote_code_and_other_formats_are_refused_in_one_line(tiny_settings, vit):
    file = vit / "vit" / "config.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"auto_map": {"AutoModel": "code.py:Net"}}))
    lines = {"vit": "its config asks for other code, which is never run"}
    (vit / "config" / "pytorch_model.bin").touch()
    lines |= {
        "config": "convert pytorch_model.bin to safetensors",
        "none": "config.json cannot be read",
    }
    for name, line in lines.items():
        with pytest.raises(SettingsError, match=line):
            study_of(tiny_settings, model=f"hf:{vit / name}", adapter="").check()
