"""The pre-training on a Flower ClientApp of the caller's own, whose training is its own too."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from coprefl_flwr.arrays import Arrays, checksum_of
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.progress import PRETRAINING_KIND
from coprefl_flwr.federation.strategy import ROUNDS
from coprefl_flwr.models import model_arrays, save_model
from coprefl_flwr.options import Option
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.own_method import name_of
from coprefl_flwr.studies.pretraining import parts_of
from coprefl_flwr.studies.provenance import versions
from coprefl_flwr.studies.stage import RunOptions, Store, TrainingStage

NODES = Option("nodes", "nodes", 0, (int,), "nodes of a ClientApp", minimum=1)


class AppPretraining(TrainingStage):
    """A pre-training whose clients are a ClientApp.

    Parameters
    ----------
    strategy : RoundStrategy
        Runs all rounds; it is copied.
    network : nn.Module
        Has the first weights.
    rounds : int
        Rounds; a Schedule has rounds of its own.
    nodes : int
        Nodes that the app runs on.

    Raises a SettingsError for a number of rounds or nodes below 1.
    """

    kind, phase, measures = PRETRAINING_KIND, "pretraining", False

    def __init__(
        self, strategy: RoundStrategy, network: nn.Module, rounds: int, nodes: int
    ) -> None:
        self.nodes = NODES.checked(nodes, "nodes")
        parts, name = parts_of(strategy, ROUNDS.checked(rounds, "rounds")), name_of(strategy)
        of_run, title = RunOptions(seed=strategy.seed), f"pre-training {name}"
        super().__init__(of_run, title, name, name, sum(number for _, number in parts))
        self.given, self.first = copy.deepcopy(strategy), model_arrays(network)
        self.given.evaluate_every = 0  # Tasks say what a start is worth.

    def identity(self) -> Mapping[str, Any]:
        """Return what the model depends on, except for the app."""
        weights = checksum_of(self.first)
        return {"method": self.given.options(), "model": weights, "nodes": self.nodes}

    @property
    def key(self) -> str:
        """Return its name, which is enough: its folder has no other stage."""
        return self.start

    def strategy(self) -> RoundStrategy:
        """Return the strategy."""
        return self.given

    def initial(self, store: Store) -> Arrays:
        """Return the network's weights."""
        return self.first

    def keep(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Write the starting model."""
        save_model(folder, arrays, {"start": self.start, "versions": versions()})
        return {}
