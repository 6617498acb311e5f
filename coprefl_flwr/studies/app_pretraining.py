"""The stage of a pre-training whose clients are a ClientApp of a Python program."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from coprefl_flwr.arrays import Arrays, checksum_of
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.strategy import ROUNDS
from coprefl_flwr.models import buffer_names, model_arrays, save_model
from coprefl_flwr.object_code import code_hash, network_hash
from coprefl_flwr.options import Option
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.method import Method, parts_of
from coprefl_flwr.studies.own_method import name_of
from coprefl_flwr.studies.provenance import versions
from coprefl_flwr.studies.stage import RunOptions, TrainingStage
from coprefl_flwr.studies.store import Store

NODES = Option("nodes", "nodes", 0, (int,), "nodes of a ClientApp", minimum=1)


class AppPretraining(TrainingStage):
    """A pre-training whose clients are a ClientApp.

    Parameters
    ----------
    method : Method
        The method of the strategy object that runs all rounds.
    network : nn.Module
        The network with the first weights.
    rounds : int
        Number of rounds. A Schedule states its rounds itself, so this number is not used.
    nodes : int
        Number of nodes that the app runs on.

    Raises a SettingsError for a number of rounds or nodes below 1.
    """

    phase, has_client_rows = "pretraining", False

    def __init__(self, method: Method, network: nn.Module, rounds: int, nodes: int) -> None:
        self.nodes, name = NODES.checked(nodes, "nodes"), name_of(method)
        # The model is evaluated on tasks instead.
        self._strategy = method.strategy(evaluate_every=0)
        parts = parts_of(self._strategy, ROUNDS.checked(rounds, "rounds"))
        of_run, title = RunOptions(seed=self._strategy.seed), f"pre-training {name}"
        super().__init__(of_run, title, name, name, sum(number for _, number in parts))
        self.first, self._buffers = model_arrays(network), buffer_names(network)
        self._code = [network_hash(network), code_hash(*(type(part) for part, _ in parts))]

    def identity(self) -> Mapping[str, Any]:
        """Return the method, the initial network and the number of nodes; not the app."""
        model = [checksum_of(self.first), *self._code]
        return {"method": self._strategy.options(), "model": model, "nodes": self.nodes}

    @property
    def key(self) -> str:
        """Return the method's name. It needs no hash, because the store has no other stage."""
        return self.start

    def strategy(self) -> RoundStrategy:
        """Return the strategy of the pre-training."""
        return self._strategy

    def buffers(self) -> Collection[str]:
        """Return the names of the network's buffers."""
        return self._buffers

    def initial(self, store: Store) -> Arrays:
        """Return the first weights of the network."""
        return self.first

    def save_extras(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Write the starting model and `model.json`; return no further columns."""
        save_model(folder, arrays, {"start": self.start, "versions": versions()})
        return {}
