"""Frozen networks: the features are equal to the outputs of the same network in plain torch."""

import json

import pytest
import torch
from torch import nn
from torchvision import models

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.models.backbones import fitted, load_backbone
from coprefl_flwr.models.base import base_hash
from coprefl_flwr.models.frozen import set_trainable


def saved(folder, name="resnet8", shape=(3, 12, 12), **changes):
    model = build_model(name, 5, shape)
    channels = shape[0]
    about = {"model": name, "num-classes": 5, "input-shape": list(shape), "norm": "batch"}
    about |= {"pixel-mean": [0.4] * channels, "pixel-std": [0.2] * channels, **changes}
    save_model(folder, model_arrays(model), {k: v for k, v in about.items() if v is not None})
    return model.eval()


@pytest.mark.parametrize("file", ["", "model.safetensors"])
def test_saved_model_of_this_package_is_a_frozen_backbone(tmp_path, file):
    model = saved(tmp_path)
    model.fc = nn.Identity()
    backbone = load_backbone(str(tmp_path / file))
    images = torch.rand(4, 3, 12, 12)
    assert (backbone.size, backbone.shape) == (64, (3, 12, 12))
    assert torch.equal(backbone.features(images), model((images - 0.4) / 0.2))
    assert not backbone.network.training
    assert not any(p.requires_grad for p in backbone.network.parameters())


def test_saved_model_of_which_a_part_was_trained_is_completed_by_its_study(tmp_path):
    """The frozen part is drawn from the study's seed."""
    model = build_model("resnet8", 5, (3, 12, 12), seed_key=(3, "model")).eval()
    set_trainable(model, "fc.*, layer3.*")
    with torch.no_grad():
        model.layer3.conv1.weight.mul_(2)
    settings = {"seed": 3}
    about = {"model": "resnet8", "num-classes": 5, "input-shape": [3, 12, 12], "norm": "batch"}
    about |= {"pixel-mean": [0.4] * 3, "pixel-std": [0.2] * 3, "settings": settings}
    about["trainable"] = "fc.*, layer3.*"
    about["base"] = {"hash": base_hash(model), "network": "resnet8"}
    save_model(tmp_path, model_arrays(model), about)
    backbone, images = load_backbone(str(tmp_path)), torch.rand(4, 3, 12, 12)
    settings["seed"] = 4
    save_model(tmp_path, model_arrays(model), about)
    with pytest.raises(SettingsError, match="belongs to the frozen weights of resnet8 with the"):
        load_backbone(str(tmp_path))
    model.fc = nn.Identity()
    assert torch.equal(backbone.features(images), model((images - 0.4) / 0.2))


def test_fitting_of_colours_and_size_by_hand():
    red = torch.zeros(1, 3, 2, 2)
    red[:, 0] = 1
    assert fitted(red, (1, 2, 2)).flatten().tolist() == pytest.approx([0.299] * 4)
    grey = torch.rand(2, 1, 4, 4)
    assert torch.equal(fitted(grey, (3, 4, 4)), grey.repeat(1, 3, 1, 1))
    checked = torch.tensor([[0.0, 1.0], [1.0, 0.0]])[None, None]
    assert fitted(checked, (1, 1, 1)).flatten().tolist() == pytest.approx([0.5])


def test_torchvision_network_with_weights_of_a_user(tmp_path):
    """The model has as many classes as the file.

    Images are enlarged to ImageNet's 224 pixels.
    """
    model = models.resnet18(num_classes=7).eval()
    weights = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save(weights, tmp_path / "weights.pth")  # As DataParallel names them.
    backbone = load_backbone(f"resnet18={tmp_path / 'weights.pth'}")
    assert (backbone.size, backbone.shape) == (512, (3, 224, 224))
    images = torch.rand(2, 3, 224, 224)
    model.fc = nn.Identity()
    mean, std = (torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406],
                                                        [0.229, 0.224, 0.225]))  # fmt: skip
    with torch.no_grad():
        assert torch.equal(backbone.features(images), model((images - mean) / std))


def test_unusable_backbone_is_refused(tmp_path):
    weights = tmp_path / "weights.pth"
    torch.save(models.resnet18(num_classes=3).state_dict(), weights)
    saved(tmp_path / "text", **{"pixel-mean": None})
    lines = {
        "resnet19": r"backbone 'resnet19': unknown network 'resnet19': did you mean 'resnet18'\?",
        "nowhere/model": "no saved model in 'nowhere/model'",
        f"resnet18={tmp_path}/no.pth": "there is no file",
        f"resnet34={weights}": "the weights do not fit the model: array",
        f"squeezenet1_0={weights}": "squeezenet1_0 has no nn.Linear of which the file has",
        str(tmp_path / "text"): "its model.json has no pixel-mean",
    }
    for name, line in lines.items():
        with pytest.raises(SettingsError, match=line) as caught:
            load_backbone(name)
        assert "\n" not in str(caught.value), name


def test_code_named_in_model_json_is_not_run_unless_allowed(tmp_path, monkeypatch):
    """A folder may be from anyone, and building the model would run the code that it names."""
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
        "from coprefl_flwr.models import build_model\n\n\n"
        "def net(num_classes, input_shape):\n"
        "    return build_model('resnet8', num_classes, input_shape)\n"
    )
    saved(tmp_path / "given")
    about = json.loads((tmp_path / "given" / "model.json").read_text())
    about["model"] = f"{tmp_path / 'evil.py'}:net"
    (tmp_path / "given" / "model.json").write_text(json.dumps(about))
    for allowed in ("", "my_lab"):
        monkeypatch.setenv("COPREFL_ALLOW", allowed)
        with pytest.raises(SettingsError, match=r"evil.py:net: COPREFL_ALLOW must list it"):
            load_backbone(str(tmp_path / "given"))
        assert not mark.exists()
    monkeypatch.setenv("COPREFL_ALLOW", f"my_lab,{tmp_path}/evil.py")
    assert load_backbone(str(tmp_path / "given")).size == 64
    assert mark.exists()
