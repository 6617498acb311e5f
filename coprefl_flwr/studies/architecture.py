"""The network of a study of starting models, for any number of classes."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import HeadLayer
from coprefl_flwr.models import build_model, head_names, with_fresh_head
from coprefl_flwr.models.build import Network
from coprefl_flwr.models.heads import last_linear
from coprefl_flwr.studies.identity import contents, texts_of
from coprefl_flwr.studies.sources import Source

CPU = torch.device("cpu")


class Architecture(ABC):
    """Makes the network of the pre-training, and of tasks with another number of classes."""

    def __init__(self, name: str, source: Source, seed: int) -> None:
        self.name, self.source, self.seed = name, source, seed
        self._shared: dict[int, nn.Module] = {}

    @abstractmethod
    def make(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        """Return a network for the pre-training's classes, or others; `key` draws its weights."""

    @property
    @abstractmethod
    def head(self) -> frozenset[str]:
        """Names of the arrays whose shape depends on the number of classes."""

    def about(self) -> dict[str, Any]:
        """Return the settings that it was made of, by key."""
        return {}

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return what the network depends on: the same identity, the same first weights."""

    @property
    def num_classes(self) -> int:
        """Classes of the pre-training."""
        return len(self.source.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width), or (length,) of a text."""
        return self.source.dataset.shape

    def shared(self, num_classes: int) -> nn.Module:
        """Return the network into which all clients of a process load weights."""
        if num_classes not in self._shared:
            self._shared[num_classes] = self.make(num_classes)
        return self._shared[num_classes]

    def of_pretraining(self) -> Network:
        """Return the network of the pre-training, with what a method may ask of it."""
        return Network(self.name, self.make(), self.num_classes, self.input_shape, self.head)

    def with_fresh_head(self, start: Arrays, num_classes: int, population: str) -> Arrays:
        """Return a starting model under a new head, which is the same for every starting model."""
        return with_fresh_head(start, self.make(num_classes, population, "model"), self.head)

    def head_layer(self, num_classes: int, named: str = "") -> HeadLayer:
        """Return the last linear layer of a task's network: the one called `named`, or called last.

        Raises a SettingsError if there is none, or it does not give the classes.
        """
        sample = self.source.dataset.inputs(np.zeros(1, np.int64), CPU)
        found = last_linear(self.make(num_classes), sample, named)
        has_bias = f"{found}.bias" in self.head
        if f"{found}.weight" not in self.head:
            problem = f"head-layer = {named or 'not set'}: {found} does not give the classes"
            raise SettingsError(f"{problem}; of those arrays there are {', '.join(self.head)}")
        return HeadLayer(found, f"{found}.weight", f"{found}.bias" if has_bias else "")


class BuiltArchitecture(Architecture):
    """A network of this package by its name, or of a user's own by its place."""

    def __init__(self, name: str, norm: str, source: Source, seed: int) -> None:
        super().__init__(name, source, seed)
        self.norm = norm

    def make(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        """Build the network; not set, the key is that of the pre-training's first weights."""
        classes, seed_key = num_classes or self.num_classes, (self.seed, *(key or ("model",)))
        return build_model(self.name, classes, self.input_shape, self.norm, seed_key)

    @property
    def head(self) -> frozenset[str]:
        """Names of the arrays whose shape depends on the number of classes."""
        text = texts_of({"model": self.name})
        return _head_names(self.name, self.num_classes, self.input_shape, self.norm, text)

    def about(self) -> dict[str, Any]:
        """Return the settings `model` and `norm`."""
        return {"model": self.name, "norm": self.norm}

    def identity(self) -> Mapping[str, Any]:
        """Return these settings, and the content of a user's own file."""
        return {**self.about(), "contents": contents([self.name])}


@functools.lru_cache(maxsize=16)
def _head_names(
    model: str, num_classes: int, shape: tuple[int, ...], norm: str, _: tuple[str, ...]
) -> frozenset[str]:
    """Return `head_names`, for which networks are built, once for all runs of a comparison."""
    return head_names(model, num_classes, shape, norm)
