"""A personalised study: methods that train a separate model for every client.

The models are heads on frozen features, or whole networks on images.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import nn
from torch.utils.data import TensorDataset

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.data import as_samples
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning.loss import CROSS_ENTROPY
from coprefl_flwr.learning.optimisers import ADAM
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import build_model, head_names
from coprefl_flwr.models.build import Network
from coprefl_flwr.models.networks import lightweight_model, projection_head
from coprefl_flwr.named import folder_of
from coprefl_flwr.strategies import RoundReport, RoundStrategy
from coprefl_flwr.studies.hashes import hash_of
from coprefl_flwr.studies.measurements import ClientMetrics, logits_of
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.personal_data import PERSONAL, PersonalData
from coprefl_flwr.studies.provenance import made_by
from coprefl_flwr.studies.stage import ClientFolders, RunOptions, TrainingStage
from coprefl_flwr.studies.store import ABOUT, Store

GLOBAL = "global.safetensors"
"""File of the final global arrays: a model, a body (all layers except the head), or prototypes."""
LOCAL = "local.safetensors"
"""File of the padded prototypes of every client, which FedPCL writes."""


class PersonalStage(TrainingStage):
    """The stage of one method that trains a separate model for every client.

    Parameters
    ----------
    method : Method
        The method in its role.
    data : PersonalData
        The clients' samples, and the frozen networks that compute features.
    model : (str, str)
        The name and the normalisation of the network, for training from scratch.
    test_every : int
        Number of rounds between evaluations. 0 means only after the last round.
    run : RunOptions
        Options of running rounds, such as the seed and the timeout.
    metrics : ClientMetrics
        Your own metrics, which every client computes.
    settings : Mapping[str, Any]
        The settings of the study, which are written to `model.json`.
    """

    phase, timed, keeps_states = "personalised", True, True

    def __init__(
        self,
        method: Method,
        data: PersonalData,
        model: tuple[str, str],
        test_every: int,
        run: RunOptions,
        metrics: ClientMetrics,
        settings: Mapping[str, Any],
    ) -> None:
        self.method, self.data, self.model, self.test_every = method, data, model, test_every
        self.metrics, self.settings, self.phases = metrics, settings, [method]
        name, path = str(method), f"methods/{folder_of(method.without_folders)}"
        super().__init__(run, name, path, name, method.training.rounds)

    @functools.cached_property
    def network(self) -> Network:
        """The network that the clients train. All clients of a process share this module."""
        classes, shape = self.data.num_classes, self.data.input_shape
        key = (self.run_options.seed, "model")
        (model, model_norm), options = self.model, self.data.options
        norm = options.head_norm or "batch"
        if options.from_scratch:
            head = head_names(model, classes, shape, model_norm)
            module = build_model(model, classes, shape, model_norm, key)
        elif self.method.client_class.network == "projection":
            head, module = frozenset(), projection_head(shape[0], norm, key)
        else:
            head = frozenset({"classifier.weight", "classifier.bias"})
            module = lightweight_model(shape[0], classes, norm, key)
        return Network(model, module, classes, shape, head)

    @property
    def module(self) -> nn.Module:
        """The module of `network`."""
        return self.network.module

    @property
    def training(self) -> LocalTraining:
        """The local training: by default Adam, rate 1e-3, weight decay 1e-4, one epoch.

        FedPCL's section 5.1 states these values.
        """
        training, changes = self.method.training, dict[str, Any]()
        if training.local_steps is None and training.local_epochs is None:
            changes["local_epochs"] = 1
        if training.optimiser is None:
            changes["optimiser"] = ADAM
            if training.weight_decay is None:
                changes["weight_decay"] = 1e-4
        return replace(training, **changes)

    def check(self) -> None:
        """Load the data, and raise a SettingsError if a setting does not fit the data."""
        _ = self.data.images
        self.metrics.check(*logits_of(self.data.num_classes))
        self.initial()
        self.strategy()
        # Not the clients' features, which are computed later.
        sample = TensorDataset(torch.zeros(2, *self.data.input_shape), torch.arange(2))
        # FedPCL's network, which has no head, is trained with losses of its own.
        loss = self.training.loss if self.network.head else CROSS_ENTROPY
        replace(self.training, loss=loss).check(self.module, as_samples("features", sample))

    def client(self, client_id: int, server_round: int, folders: ClientFolders) -> NumPyClient:
        """Return a client of the method, with its features, state and metrics."""
        client = self.method.client(
            self.module,
            self.data.features_of(client_id, folders.features),
            self.training,
            state=ClientState(folders.states),
            initial=self.network.arrays,
            noise=self.data.options.noise("prototypes"),
        )
        client.metrics = self.metrics.functions
        return client

    def strategy(self) -> RoundStrategy:
        """Return a new strategy. If a client does not reply in a round, the round is repeated."""
        run = self.run_options.of_strategy(
            PERSONAL,
            clients=self.data.num_clients,
            min_replies=self.data.num_clients,
            evaluate_every=self.test_every or self.rounds,
        )
        return self.method.strategy(training=self.training, **run)

    def initial(self, store: Store | None = None) -> Arrays:
        """Return the initial global arrays: only the arrays that server and clients exchange."""
        return self.method.strategy_class.initial(self.network)

    def max_parallel_clients(self) -> int:
        """Return the number of clients, all of which take part in every round."""
        return self.data.num_clients

    def domains(self) -> Sequence[str]:
        """Return the name of each client's dataset."""
        every = range(self.data.num_clients)
        return [self.data.domain_of(client).name for client in every]

    def save_extras(self, folder: Path, report: RoundReport) -> dict[str, Any]:
        """Write the global arrays and all clients' prototypes; return the counts of sent elements.

        "numbers-sent" counts all elements of the global arrays. "weights-sent" leaves out arrays
        of one dimension (biases and BatchNorm), as the paper's "# of Comm Params" does (FedPCL,
        Table 2).
        """
        arrays, prototypes = report.arrays, report.state.get("local", {})
        for file, some in ((GLOBAL, arrays), (LOCAL, prototypes)):
            if some:
                plain = {name: np.asarray(array, order="C") for name, array in some.items()}
                write_atomically(folder / file, safetensors.numpy.save(plain))
        about = {"phases": [self.method.about()], "settings": self.settings, **made_by()}
        write_atomically(folder / ABOUT, json.dumps(about, indent=1).encode())
        return {
            "weights-sent": sum(array.size for array in arrays.values() if array.ndim > 1),
            "numbers-sent": sum(array.size for array in arrays.values()),
        }

    def identity(self) -> Mapping[str, Any]:
        """Return the inputs on which the results depend."""
        return {
            # The features' seed is that of the data.
            **({} if self.run_options.seed == self.data.seed else {"seed": self.run_options.seed}),
            "method": self.method.identity(),
            "features": self.data.identity(self.model[0]),
            "network": self.model,
            "test-every": self.test_every,
            "min-replies": self.run_options.min_replies,
            **self.metrics.identity(),
        }

    @property
    def key(self) -> str:
        """Return the method's name and a hash of the identity."""
        return f"{self.method.label}-{hash_of(self.identity())}"

    def features(self) -> str:
        """Return a hash of the inputs on which the clients' features depend."""
        return hash_of(self.data.identity(self.model[0]))
