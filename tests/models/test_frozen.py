"""Which names travel, and which modules run in eval mode."""

import pytest
import torch
from torch import nn

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models import buffer_names, build_model
from coprefl_flwr.models.frozen import base_of, set_trainable, train_mode, travelling
from tests.common.networks import tiny_model

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def layers(**named):
    """Return a network of layers with these names."""
    network = nn.Sequential()
    for name, layer in named.items():
        network.add_module(name, layer)
    return network


def of_eval(network):
    """Return the names of the modules that are in eval mode while the network trains."""
    return [name for name, module in train_mode(network).named_modules() if not module.training]


def test_all_tensors_of_a_trained_network_travel():
    """BatchNorm without parameters trains, as it is not inside of a frozen module."""
    network = layers(norm=nn.BatchNorm1d(4, affine=False), body=tiny_model(), drop=nn.Dropout())
    assert list(travelling(network)) == list(network.state_dict())
    assert base_of(network) == {}
    assert of_eval(network) == []


def test_frozen_module_includes_all_inside_of_it():
    """Layers without parameters in a frozen module do not travel and are in eval mode."""
    inner = layers(fc=nn.Linear(4, 4), norm=nn.BatchNorm1d(4, affine=False), drop=nn.Dropout())
    network = layers(body=inner.requires_grad_(False), norm=nn.BatchNorm1d(4), head=nn.Linear(4, 2))
    names = [f"norm.{name}" for name in ("weight", "bias", *STATISTICS)]
    assert list(travelling(network)) == [*names, "head.weight", "head.bias"]
    of_base = [f"body.norm.{name}" for name in STATISTICS]
    assert list(base_of(network)) == ["body.fc.weight", "body.fc.bias", *of_base]
    assert of_eval(network) == ["body", "body.fc", "body.norm", "body.drop"]
    assert buffer_names(network) == {f"norm.{name}" for name in STATISTICS}


def test_parameter_without_a_gradient_does_not_freeze_its_module():
    network = layers(norm=nn.BatchNorm1d(4), head=nn.Linear(4, 2))
    network.norm.weight.requires_grad_(False)
    assert list(base_of(network)) == ["norm.weight"]
    assert of_eval(network) == []
    network.norm.bias.requires_grad_(False)
    assert list(travelling(network)) == ["head.weight", "head.bias"]
    assert of_eval(network) == ["norm"]


def test_module_with_two_names_is_frozen_under_both():
    body = layers(fc=nn.Linear(4, 4), norm=nn.BatchNorm1d(4)).requires_grad_(False)
    network = layers(body=body, again=body.norm, head=nn.Linear(4, 2))
    assert list(travelling(network)) == ["head.weight", "head.bias"]
    assert of_eval(network) == ["body", "body.fc", "body.norm"]


def test_low_rank_adapter_travels_alone():
    """The base of an adapter is frozen; FFA-LoRA freezes the matrix A, too."""

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(6, 6).requires_grad_(False)
            self.a = nn.Parameter(torch.randn(2, 6), requires_grad=False)
            self.b = nn.Parameter(torch.zeros(6, 2))

    assert list(travelling(layers(one=Adapted(), two=Adapted()))) == ["one.b", "two.b"]


def test_patterns_name_what_is_trained():
    network = build_model("resnet8", 5, (3, 16, 16))
    set_trainable(network, "fc.*, layer?.bn?.bias")
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    assert trained == [
        name for name, _ in network.named_parameters() if name in travelling(network)
    ]
    assert trained[-2:] == ["fc.weight", "fc.bias"]
    assert len(trained) == 8
    set_trainable(network, "layer3.conv1.weight")
    assert list(travelling(network)) == ["layer3.conv1.weight"]
    # The stem, two blocks, and of the third block what is next to the trained convolution.
    assert {"bn1", "layer2.bn1", "layer3.bn1"} < set(of_eval(network))


@pytest.mark.parametrize(
    ("patterns", "pattern", "near"),
    [("head.*", "head.*", "known are 1.weight"), ("4.*,2.weigth", "2.weigth", "mean '2.weight'")],
)
def test_pattern_without_a_parameter_is_refused(patterns, pattern, near):
    with pytest.raises(SettingsError) as error:
        set_trainable(tiny_model(), patterns)
    assert str(error.value).startswith(f"trainable = {patterns}: unknown parameter '{pattern}': ")
    assert near in str(error.value)
    assert error.value.keys == ("trainable",)
