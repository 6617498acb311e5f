"""The network architecture of a study of starting models, for any number of classes."""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from coprefl_flwr.arrays import checksum_of
from coprefl_flwr.data import Samples
from coprefl_flwr.data.inputs import Inputs, mapped
from coprefl_flwr.errors import SettingsError, about_settings, logger, prefixed, wrong_type
from coprefl_flwr.federation import HeadLayer
from coprefl_flwr.learning.user_functions import described
from coprefl_flwr.models import computing, model_arrays, outputs_of
from coprefl_flwr.models.arrays import check_weights
from coprefl_flwr.models.base import base_hash
from coprefl_flwr.models.build import Network, build_model, head_names, head_of
from coprefl_flwr.models.copies import sharing_base, unwrapped
from coprefl_flwr.models.frozen import base_of, set_trainable, travelling
from coprefl_flwr.models.heads import last_linear, outputs_and_representation
from coprefl_flwr.models.networks import seeded
from coprefl_flwr.object_code import network_hash
from coprefl_flwr.seeds import Key
from coprefl_flwr.studies.hashes import content_hashes
from coprefl_flwr.studies.populations import Source

CPU = torch.device("cpu")

Factory = Callable[[int], nn.Module]
"""A function that makes a network from a number of classes."""


class Architecture:
    """An architecture, which makes networks for the pre-training and for tasks.

    Parameters
    ----------
    name : str
        Name of the network in error messages.
    factory : Factory
        A function that makes the network from a number of classes. Random weights are drawn from
        the seed.
    source : Source
        The samples, which determine the input shape.
    seed : int
        Seed of the random weights.
    classes : int, optional
        Number of classes of the network. If it is None, the source's number of classes is used.
    """

    def __init__(
        self, name: str, factory: Factory, source: Source, seed: int, classes: int | None = None
    ) -> None:
        self.name, self.factory, self.source, self.seed = name, factory, source, seed
        self.classes, self._shared = classes, dict[int, nn.Module]()
        self.fixed = frozenset[str]()  # Names of parameters that are not trained.

    def make(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        """Return a network for a number of classes, with random weights.

        The seed and `key` determine the weights. By default, the network is the pre-training's
        network with the initial weights. All networks have the frozen weights of this network,
        except those whose shapes depend on the number of classes.
        """
        network = self.drawn(num_classes or self.num_classes, key or ("model",))
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name not in self.fixed)
        own = base_of(network)
        if own and (key or num_classes not in (None, self.num_classes)):
            base = base_of(self.shared(self.num_classes)).items()
            same = {n: t for n, t in base if n in own and t.shape == own[n].shape}
            network.load_state_dict(same, strict=False)
        return network

    def with_fixed_head(self) -> "Architecture":
        """Return this architecture with a last layer that is frozen at its initial weights.

        It is the head, or if there is none the `nn.Linear` that is called last. Raises a
        SettingsError if there is neither.
        """
        other = copy.copy(self)
        other.fixed, other._shared = self.head, {}
        if not self.head:
            network = self.make()
            layer, _ = self._last_linear(network)
            of_layer = network.get_submodule(layer).named_parameters(layer)
            other.fixed = frozenset(name for name, _ in of_layer)
        return other

    def drawn(self, num_classes: int, key: Key) -> nn.Module:
        """Return a network whose weights are all drawn from the seed and `key`."""
        with seeded((self.seed, *key)):
            return self.factory(num_classes)

    @functools.cached_property
    def head(self) -> frozenset[str]:
        """Names of the head's arrays (shapes depend on the number of classes); may be empty."""
        return head_of(self.make, self.num_classes)

    def about(self) -> dict[str, Any]:
        """Return the settings of the architecture by key; empty for a network from a program."""
        return {}

    def identity(self) -> Mapping[str, Any]:
        """Return the inputs of the network. Equal identities mean equal initial networks.

        The identity has a hash of the head's weights, or of all weights if there is no head. The
        weights outside the head come from a starting model, which has a separate identity. It also
        has a hash of the layers and their code, and of the frozen weights if there are any.
        """
        return self._hashes | self.base

    @functools.cached_property
    def _hashes(self) -> dict[str, str]:
        network = self.make()
        arrays = model_arrays(network)
        counted = self.head or arrays.keys()
        weights = checksum_of({n: arrays[n] for n in arrays if n in counted})
        return {"weights": weights, "network": network_hash(network)}

    @functools.cached_property
    def base(self) -> dict[str, Any]:
        """The entry `base` of `model.json`: the frozen weights; empty if nothing is frozen."""
        value = base_hash(self.shared(self.num_classes))
        return {"base": {"hash": value, "network": self.name}} if value else {}

    @property
    def num_classes(self) -> int:
        """Number of classes of the network; its number of outputs if there are no classes."""
        return self.classes or len(self.source.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width), or (length,) for text."""
        return self.source.dataset.shape

    def shared(self, num_classes: int) -> nn.Module:
        """Return the network that all clients of a process share, and load weights into."""
        if num_classes not in self._shared:
            self._shared[num_classes] = self.make(num_classes)
        return self._shared[num_classes]

    def of_pretraining(self) -> Network:
        """Return the pre-training's network, with its name, classes, input shape and head."""
        return Network(self.name, self.make(), self.num_classes, self.input_shape, self.head)

    def head_layer(self, num_classes: int) -> HeadLayer:
        """Return the last linear layer of a task's network: the `nn.Linear` that is called last.

        Raises a SettingsError if there is no such layer, or if its outputs are not the classes, as
        that of a model of transformers which classifies each token and returns the last one.
        """
        network = self.make(num_classes)
        layer, features = self._last_linear(network)
        parts = [f"{layer}.weight", *{f"{layer}.bias"} & self.head]
        is_last = {*parts} <= self.head & travelling(network).keys()
        if not is_last or features != network.get_submodule(layer).in_features:
            problem = f"{layer}, the nn.Linear that is called last, does not output the classes"
            raise SettingsError(f"head: {problem}, or is frozen; set head = fresh or keep", "head")
        return HeadLayer(layer, *parts)

    def _last_linear(self, network: nn.Module) -> tuple[str, int]:
        """Return the name of the `nn.Linear` that is called last, and its number of features.

        Raises a SettingsError if there is no such layer.
        """
        sample = mapped(Tensor.contiguous, self.source.dataset.inputs(np.zeros(1, np.int64), CPU))
        layer = last_linear(network, sample)
        return layer, outputs_and_representation(network, sample, layer)[1].shape[1]

    def check(self, what: str, samples: Samples, *, needs_head: bool = False) -> None:
        """Raise a SettingsError if the network does not fit the samples.

        Error messages call the network `what`. With `needs_head`, the shape of the last layer must
        depend on the number of classes.
        """
        network, classes = self.make(), self.num_classes
        shape = _outputs(network, what, samples).shape
        if samples.dataset.has_classes and shape[1] < classes:
            raise SettingsError(f"{what} has {shape[1]} outputs, but there are {classes} classes")
        if needs_head and not self.head:
            problem = f"{what} has the same shapes for {classes} and {classes + 1} classes"
            raise SettingsError(f"{problem}: its last layer needs one output for each class")


class BuiltArchitecture(Architecture):
    """The architecture of a built-in network (by its name) or of your network (by its place)."""

    def __init__(self, name: str, norm: str, source: Source, seed: int, *trained: Any) -> None:
        super().__init__(name, self.make, source, seed)
        self.norm, self.trainable, self.adapter = norm, *trained

    @about_settings("model")
    def drawn(self, num_classes: int, key: Key) -> nn.Module:
        """Build a network with random weights; only `trainable` is trained, if it is set.

        Or only adapters and the last layer.
        """
        seed_key = self.seed, *key
        network = build_model(self.name, num_classes, self.input_shape, self.norm, seed_key)
        if self.adapter:
            whole = {name.rpartition(".")[0] for name in self.own_head}
            with seeded((*seed_key, "adapter")):
                network = self.adapter.added_to(network, whole)
        if self.trainable:
            set_trainable(network, self.trainable)
        return network

    @functools.cached_property
    def own_head(self) -> frozenset[str]:
        """Names of the head's arrays in the network without adapters."""
        return head_names(self.name, self.num_classes, self.input_shape, self.norm)

    @functools.cached_property
    def head(self) -> frozenset[str]:
        """Names of the head's arrays: their shapes depend on the number of classes."""
        return head_of(self.make, self.num_classes) if self.adapter else self.own_head

    def about(self) -> dict[str, Any]:
        """Return the settings `model` and `norm`, and `trainable` and `adapter` if they are set."""
        trained = {"trainable": self.trainable, "adapter": self.adapter and str(self.adapter)}
        return {"model": self.name, "norm": self.norm} | {k: v for k, v in trained.items() if v}

    def identity(self) -> Mapping[str, Any]:
        """Return the settings `about`, and a hash of the user's file if there is one."""
        return {**self.about(), "contents": content_hashes([self.name])}


def checked_network(what: str, network: Any, example: str) -> nn.Module:
    """Return a network without the wrappers of `torch.compile` and DataParallel.

    Error messages call the object `what`, and show `example` for a wrong type.

    Raises a SettingsError if an object is not an nn.Module, if its weights cannot be arrays, or if
    it cannot be copied.
    """
    if not isinstance(network, nn.Module):
        if isinstance(network, type) and issubclass(network, nn.Module):
            example = f"{network.__name__}()"
        raise wrong_type(what, network, "a network, an nn.Module", example)
    inner = unwrapped(network)
    check_weights(inner, what)
    sharing_base(network, what)
    return inner


def copies_of(network: nn.Module) -> Factory:
    """Return a function that copies a network to the CPU; it ignores the number of classes."""
    original = sharing_base(network).cpu()
    return lambda _: sharing_base(original)


def with_new_last_layer(what: str, network: nn.Module, samples: Samples) -> Factory:
    """Return a function that copies a network and replaces the `nn.Linear` that is called last.

    The new layer has an output for each class; without classes, as many as the replaced layer.
    Error messages call the network `what`.

    Raises a SettingsError if the network's outputs do not come from a plain `nn.Linear`.
    """
    original = sharing_base(network).cpu()
    outputs = _outputs(original, what, samples)[0].shape[-1:].numel()
    name = last_linear(original, _batch_of_two(samples))
    last: Any = original.get_submodule(name)
    extra = 0 if samples.dataset.has_classes else last.out_features - len(samples.dataset.classes)

    def make(classes: int) -> nn.Module:
        changed, bias = sharing_base(original), last.bias is not None
        old = changed.get_submodule(name)
        new = nn.Linear(last.in_features, classes + extra, bias, dtype=last.weight.dtype)
        # A layer may have several names, such as "classifier" and "net.3".
        for alias, layer in [*changed.named_modules(remove_duplicate=False)]:
            if layer is old and alias:
                changed.set_submodule(alias, new)
        return changed if name else new

    more = last.out_features + 1
    with seeded(("starts",)):
        sizes = _outputs(make(more - extra), what, samples)[0].shape[-1:].numel()
    plain = type(last) is nn.Linear and isinstance(last.weight, nn.Parameter)
    if not plain or last.out_features != outputs or sizes != more:
        line = f"its outputs are not those of a plain nn.Linear, which {name} would have to be"
        raise SettingsError(f"{what}: {line}; pass network=, which makes a task's network")
    return make


def factory_of_tasks(
    starts: Mapping[str, nn.Module], samples: Samples, *, keeps_head: bool
) -> Factory:
    """Return a function that makes the network of tasks, from starts by their names.

    Tasks without classes that keep the last layer have a copy of the network.

    Raises a SettingsError if two starts differ in layers, in code or in what is trained. If only
    attributes of the user's layers differ, such as counters, those of the first start are used,
    and a warning is logged.
    """
    copied_whole = keeps_head and not samples.dataset.has_classes
    factories = {
        name: copies_of(start)
        if copied_whole
        else with_new_last_layer(f"start {name!r}", start, samples)
        for name, start in starts.items()
    }
    with seeded(("starts",)):
        made = {name: make(len(samples.dataset.classes)) for name, make in factories.items()}
    first, *others = made
    for other in others:
        both = f"starts {first!r} and {other!r} differ in"
        if len({network_hash(made[n], own_attributes=False) for n in (first, other)}) > 1:
            raise SettingsError(f"{both} layers, code or requires_grad: pass network=")
        if network_hash(made[first]) != network_hash(made[other]):
            logger.warning("%s attributes of layers; tasks use those of %r", both, first)
    return factories[first]


def checked_factory(network: Any, classes: int) -> Factory:
    """Return `network`, whose networks lose their wrappers, after a call `network(classes)`.

    Raises a SettingsError if `network` is not a function, or if its result is not a network.
    """
    if isinstance(network, nn.Module) or not callable(network):
        raise wrong_type("network", network, "a function of num_classes", "lambda n: Net(n)")
    checked_network(f"network({classes})", network(classes), "Net(classes)")
    return lambda number: unwrapped(network(number))


def _batch_of_two(samples: Samples) -> Inputs:
    """Return the inputs of the first sample twice, in the memory format of most data loaders."""
    return mapped(Tensor.contiguous, samples.batch(np.zeros(2, np.int64), CPU)[0])


@torch.no_grad()
def _outputs(network: nn.Module, what: str, samples: Samples) -> Tensor:
    """Return the outputs for two samples, (2, classes), in eval mode; else a SettingsError.

    Without classes, they are (2, ...).
    """
    inputs = _batch_of_two(samples)
    chosen = " (in Python, columns= chooses the inputs)" * isinstance(inputs, dict)
    fails = f"{what} fails for a batch of samples, {described(inputs)}{chosen}"
    with prefixed(fails, of=Exception), computing(network):  # The caller's code may raise any.
        outputs = outputs_of(network.eval(), inputs)
    any_shape, is_tensor = not samples.dataset.has_classes, isinstance(outputs, Tensor)
    if not is_tensor or outputs.shape[:1] != (2,) or not (any_shape or outputs.ndim == 2):
        given = tuple(outputs.shape) if is_tensor else type(outputs).__name__
        needed = "(2, ...)" if any_shape else "(2, classes)"
        raise SettingsError(f"{what} gives {given} for a batch of 2; must give {needed}")
    return cast(Tensor, outputs)
