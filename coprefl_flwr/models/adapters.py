"""Adapters (LoRA) of a network: how they are made and averaged, and the files that `peft` loads."""

import copy
import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn
from torch.nn.functional import linear

from coprefl_flwr.arrays import CORRECTION, Arrays
from coprefl_flwr.errors import SettingsError, check_name, prefixed, unknown
from coprefl_flwr.files import read_json, write_atomically
from coprefl_flwr.models.arrays import check_same_model, load_arrays
from coprefl_flwr.models.copies import named_as
from coprefl_flwr.models.hugging_face import library
from coprefl_flwr.named import Choice
from coprefl_flwr.options import Checked, checked_options, declared, option

MEAN, FFA, EXACT = AVERAGES = ("mean", "ffa", "exact")
"""Ways to average adapters, as in `average_adapters`."""

CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
BASE = "base_correction.safetensors"
FILES = (CONFIG, ADAPTER, BASE)
"""Files of a start of adapters: two of `peft`, and what `exact` has added to the base's weights."""

PREFIX = "base_model.model."
"""Start of the names in a network of `peft`, before those of the network inside."""

KINDS = ("Linear", "Conv1D", "Conv2d", "Embedding")
"""Classes of layers that can have adapters."""

_CORRECTION = CORRECTION.removeprefix(".")


@dataclass(frozen=True, kw_only=True)
class Lora(Checked):
    """The options of LoRA (Hu et al. 2022, arxiv.org/abs/2106.09685): W x + s B A x."""

    rank: int = option(8, "rank r: A is (r, in), B is (out, r)", minimum=1)
    alpha: float = option(16.0, "the scale is s = alpha / rank", above=0)
    targets: str = option("", "names of the layers, or ends of names")
    average: str = option(MEAN, "how adapters are averaged", choices=AVERAGES)
    dropout: float = option(0.0, "dropout of the input of A", minimum=0, maximum=0.99)
    rank_stabilised: bool = option(False, "the scale is s = alpha / sqrt(rank)")


@dataclass(frozen=True)
class Adapter(Choice):
    """Adapters by their type, with the options of `Lora`, as in `lora:rank=8,targets=query&value`.

    In a recipe, they are a mapping of `type` and the options; `targets` is a list. Raises a
    SettingsError for an unknown type or option, and a wrong value.
    """

    key = "type"

    def __post_init__(self) -> None:
        check_name("adapter", self.name, ["lora"], "", "adapter")
        _ = self.lora

    @functools.cached_property
    def lora(self) -> Lora:
        """The options, checked."""
        options = self.arguments
        targets = options.get("targets", ())
        of_layers = targets if isinstance(targets, tuple) else (targets,)
        options["targets"] = " ".join(map(str, of_layers))  # A number is the name of a layer too.
        with prefixed(f"adapter = {self}", "adapter"):
            return Lora(**checked_options(options, declared(Lora)))

    def added_to(self, network: nn.Module, trained: Collection[str]) -> nn.Module:
        """Return the network with new adapters, as a `PeftModel`.

        The layers with the names in `trained` are trained as a whole; all else is frozen. Raises a
        SettingsError if there are no targets, or no layer for one of them.
        """
        peft = library("peft")
        lora, targets = self.lora, self.lora.targets.split()
        layers = {n for n, m in network.named_modules() if type(m).__name__ in KINDS} - {*trained}
        wrong = [t for t in targets if not any(f".{n}".endswith(f".{t}") for n in layers)]
        if wrong or not targets:
            shown = sorted({n if (end := n.rpartition(".")[2]).isdigit() else end for n in layers})
            problem = f"name its targets, out of the layers {', '.join(shown)}"
            problem = unknown("target", wrong[0], shown) if wrong else problem
            raise SettingsError(f"adapter = {self}: {problem}", "adapter")
        config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            use_rslora=lora.rank_stabilised,
            target_modules=targets,
            modules_to_save=sorted(trained),
        )
        return average_adapters(peft.get_peft_model(network, config), lora.average)


def average_adapters(model: nn.Module, by: str) -> nn.Module:
    """Set how the adapters of a network of `peft` are averaged, and return the network.

    **Experimental since 0.3.** The files of a start whose adapters were averaged by "exact" may
    change.

    Parameters
    ----------
    model : nn.Module
        A network of `peft.get_peft_model` with LoRA. This object is changed.
    by : str
        "mean": the mean of A and the mean of B (FedIT, arxiv.org/abs/2305.05644), which is what
        happens without this function. "ffa": A stays as drawn, and B is trained (FFA-LoRA,
        arxiv.org/abs/2403.12313). "exact": the mean of A, the mean of B, and the base gains s
        (mean(B A) - mean(B) mean(A)) in every mean (FedEx-LoRA, arxiv.org/abs/2410.09432).
        This correction is a further array of each layer, (out, in).

    Raises
    ------
    SettingsError
        If the way is unknown, or if the network has no adapter for which it is defined.
    """
    check_name("average", by, AVERAGES, "", "adapter")
    layers = [layer for _, layer in _layers(model)]
    plain = all(type(one).__name__ == "Linear" and not one.lora_variant for one in layers)
    if not layers or not (by == MEAN or plain):
        needed = "plain adapters of peft's LoRA; ffa and exact need linear layers"
        raise SettingsError(f"average = {by}: {type(model).__name__} needs {needed}", "adapter")
    for layer in layers:
        if by == FFA:
            layer.lora_A.requires_grad_(False)
        if by == EXACT and not hasattr(layer, _CORRECTION):
            a = layer.lora_A[layer.active_adapters[0]].weight
            layer.register_buffer(_CORRECTION, a.new_zeros(layer.out_features, layer.in_features))
            layer.register_forward_hook(_corrected)
    return model


def is_exact(model: nn.Module) -> bool:
    """Return whether the adapters of a network are averaged by "exact"."""
    return any(hasattr(layer, _CORRECTION) for _, layer in _layers(model))


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (name, layer) of the layers with adapters."""
    yield from ((name, layer) for name, layer in model.named_modules() if hasattr(layer, "lora_A"))


def _corrected(layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
    """Return the outputs with the correction R: W x + s B A x + s R x."""
    correction = layer.lora_correction
    more = linear(inputs[0].to(correction.dtype), correction) * _scale(layer)
    return outputs + more.to(outputs.dtype)


def _scale(layer: Any) -> float:
    """Return s, which is alpha / r, or alpha / sqrt(r) if LoRA is rank-stabilised."""
    return float(layer.scaling[layer.active_adapters[0]])


# ---- files --------------------------------------------------------------------------------------


def save_adapters(folder: Path, model: Any, arrays: Arrays) -> None:
    """Write the files that `peft.PeftModel.from_pretrained` loads, if the network has adapters.

    `arrays` are loaded into the network. With "exact", BASE has what must be added to the base:
    {name of a weight: s R}, in the layout of the weight.
    """
    if not any(_layers(model)):
        return
    load_arrays(model, arrays)
    config = copy.copy(model.active_peft_config)
    if isinstance(targets := config.target_modules, set):
        config.target_modules = sorted(targets)  # The order of a set differs between processes.
    config.base_model_name_or_path, config.inference_mode = None, True
    config.save_pretrained(str(folder))
    tensors_of = library("peft").get_peft_model_state_dict
    files = {ADAPTER: tensors_of(model, save_embedding_layers=False)}
    for name, layer in _layers(model) if is_exact(model) else ():
        added, weight = _scale(layer) * layer.lora_correction, f"{name}.weight"
        of_base = files.setdefault(BASE, {})
        of_base[weight.removeprefix(PREFIX)] = added.T if layer.fan_in_fan_out else added
    for file, tensors in files.items():
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_atomically(folder / file, safetensors.torch.save(whole))


def check_adapters(folder: Path, tensors: Mapping[str, Tensor], model: nn.Module) -> None:
    """Raise a SettingsError if a start of adapters in a folder does not fit those of the network.

    `tensors` are the start's tensors. Its scale, targets, ranks and corrections must be equal.
    """
    if not (folder / CONFIG).is_file():
        return
    own, about = getattr(model, "active_peft_config", None), read_json(folder / CONFIG)
    for key in ("lora_alpha", "use_rslora"):
        if (its := about.get(key)) != (value := getattr(own, key, None)):
            raise SettingsError(f"its adapters have {key} = {its}, those of this network {value}")
    names = model.state_dict()
    theirs, mine = (
        {n: t for n, t in of.items() if ".lora_B." in n or n.endswith(CORRECTION)}
        for of in (named_as(names, tensors), names)
    )
    check_same_model(theirs, mine, "the adapters of this network")
