"""A personalised study: methods that give every client a model of its own, over frozen features."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.progress import PERSONAL_KIND
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning import AdamTraining, LocalTraining
from coprefl_flwr.models import build_model, head_names
from coprefl_flwr.models.lightweight import lightweight_model, projection_head
from coprefl_flwr.models.network import Network
from coprefl_flwr.report.figures.similarity import LOCAL
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.client_metrics import ClientMetrics
from coprefl_flwr.studies.identity import contents, hash_of, values_of
from coprefl_flwr.studies.kept import ABOUT
from coprefl_flwr.studies.method import Method, folder_of
from coprefl_flwr.studies.personal_data import (
    PERSONAL,
    PersonalData,
    PersonalSettings,
    client_data,
)
from coprefl_flwr.studies.phases import (
    PRECISION,
    Phase,
    check_precisions,
)
from coprefl_flwr.studies.stage import FEATURES, STATES, RunSettings, Stage, Store
from coprefl_flwr.studies.study import Study, made_by

GLOBAL = "global.safetensors"
"""The global arrays: a model, a body, or prototypes."""


class Personalised(Study):
    """A personalised study.

    Parameters
    ----------
    personal : PersonalSettings
        What the clients have in the place of a network of everybody.
    data : PersonalData
        What they hold.
    methods : Sequence[Method]
        In the order of the table.
    phases : Mapping[str, Phase]
        Of each method's text, how it is run.
    model : (str, str)
        The network of clients that train one from scratch, and its normalisation.
    test_every : int
        Rounds between evaluations; 0: after the last only.

    Other parameters are as in `Study`.
    """

    def __init__(
        self,
        personal: PersonalSettings,
        data: PersonalData,
        methods: Sequence[Method],
        phases: Mapping[str, Phase],
        model: tuple[str, str],
        test_every: int,
        run: RunSettings,
        metrics: ClientMetrics,
        root: Path,
        config: Mapping[str, Any],
        run_name: str = "run",
    ) -> None:
        super().__init__(run, metrics, root, config, run_name)
        self.personal, self.data, self.phases = personal, data, phases
        self.model, self.test_every = model, test_every
        self.network = functools.cache(self._network)
        self.stages = [PersonalStage(self, one) for one in methods]

    def _network(self, name: str) -> Network:
        """Return what a method's clients train, which all clients of a process share."""
        classes, shape, key = self.data.num_classes, self.data.input_shape, (self.run.seed, "model")
        (model, model_norm), norm = self.model, self.personal.head_norm or "batch"
        if self.personal.from_scratch:
            head = head_names(model, classes, shape, model_norm)
            module = build_model(model, classes, shape, model_norm, key)
        elif self.phases[name].algorithm.client_class.network == "projection":
            head, module = frozenset(), projection_head(shape[0], norm, key)
        else:
            head = frozenset({"classifier.weight", "classifier.bias"})
            module = lightweight_model(shape[0], classes, norm, key)
        return Network(model, module, classes, shape, head)

    def first_arrays(self, name: str) -> Arrays:
        """Return the global arrays that a method begins with: what travels, and no more."""
        return self.phases[name].algorithm.strategy_class.initial(self.network(name))

    def check(self) -> None:
        """Raise a SettingsError if something cannot be had as set; loads the data."""
        check_precisions(list(self.phases.values()))
        _ = self.data.images
        self.metrics.check(self.data.num_classes)
        for name, phase in self.phases.items():
            self.first_arrays(name)
            phase.check_aggregation("method", self.data.num_clients)

    def client_of_method(self, client_id: int, config: Mapping[str, Any]) -> TorchClient:
        """Return a client of the method that a message names."""
        stage = self.stage_of(config)
        phase, network = stage.phase_of(int(config["server-round"])), self.network(stage.start)
        held = client_data(self.data, client_id, self.folder_of(config, FEATURES))
        offered = {
            "state": ClientState(self.folder_of(config) / STATES),
            "initial": network.arrays,
            "noise": self.personal.noise("prototypes"),
        }
        own, training = phase.options, adam(phase.training)
        return phase.algorithm.client(
            own, network.module, held.train, offered, test=held.test, training=training
        )


class PersonalStage(Stage):
    """A method that gives every client a model of its own."""

    kind, phase, timed = PERSONAL_KIND, "personalised", True

    def __init__(self, study: Personalised, method: Method) -> None:
        name, path = str(method), f"methods/{folder_of(method.portable)}"
        self.study, self.of = study, study.phases[name]
        super().__init__(study.run, name, path, name, self.of.training.rounds)

    def phase_of(self, server_round: int) -> Phase:
        """Return its one phase."""
        return self.of

    def strategy(self) -> RoundStrategy:
        """Make the strategy: every client takes part in every round, or it is repeated."""
        run = self.run.of_strategy(
            PERSONAL,
            run_name=self.study.run_name,
            clients=self.study.data.num_clients,
            min_replies=self.study.data.num_clients,
            evaluate_every=self.study.test_every or self.rounds,
        )
        return self.of.algorithm.strategy(self.of.options, adam(self.of.training), **run)

    def initial(self, store: Store) -> Arrays:
        """Return what the method begins with."""
        return self.study.first_arrays(self.start)

    def at_once(self) -> int:
        """Return its clients, all of which take part in every round."""
        return self.study.data.num_clients

    def clients(self) -> Sequence[str]:
        """Return the dataset of each client."""
        data = self.study.data
        return [data.domain_of(client).name for client in range(data.num_clients)]

    def keep(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Write the global arrays and every client's prototypes; return what a client sends.

        The paper's "# of Comm Params" (Table 2) leaves out biases and BatchNorm.
        """
        prototypes = state.get("local", {})
        for file, some in ((GLOBAL, arrays), (LOCAL, prototypes)):
            if some:
                plain = {name: np.asarray(array, order="C") for name, array in some.items()}
                write_atomically(folder / file, safetensors.numpy.save(plain))
        about = {"phases": [self.of.about()], "settings": self.study.config, **made_by()}
        write_atomically(folder / ABOUT, json.dumps(about, indent=1).encode())
        return {
            "weights-sent": sum(array.size for array in arrays.values() if array.ndim > 1),
            "numbers-sent": sum(array.size for array in arrays.values()),
        }

    @property
    def key(self) -> str:
        """Return the method's name and a hash."""
        found = self._of_features() | dict(zip(("model", "norm"), self.study.model, strict=True))
        found |= {"test-every": self.study.test_every, "min-replies": self.run.min_replies}
        found |= self.study.metrics.identity()
        return f"{self.of.name}-{hash_of(found | {'method': self.of.identity()})}"

    def features(self) -> str:
        """Return a hash of what the clients' features depend on."""
        return hash_of(self._of_features())

    def _of_features(self) -> dict[str, Any]:
        settings, names = self.study.personal, self.study.data.datasets
        data = self.study.data.source
        found = values_of(settings) | {"seed": self.run.seed, "dataset": names}
        found |= {"image-size": data.image_size, "relabel": data.relabel}
        found[PRECISION] = self.study.data.precision
        if settings.shift != "feature":  # Else nothing is dealt by Dirichlet(alpha).
            found |= {"alpha": data.alpha, "min-samples": data.min_samples}
        backbones = [name.partition("=")[2] or name for name in settings.backbones.split()]
        named = [*names.split(), *backbones, self.study.model[0]]
        return found | {"contents": contents(named)}


def adam(training: LocalTraining) -> AdamTraining:
    """Return how its clients train: Adam, 1e-3, weight decay 1e-4, one epoch (section 5.1)."""
    values = {one.name: getattr(training, one.name) for one in fields(LocalTraining)}
    if training.local_steps is None and training.local_epochs is None:
        values["local_epochs"] = 1
    return AdamTraining(**values)
