"""A personalised study: methods that give every client a model of its own, over frozen features."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data.division import DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning import AdamTraining, LocalTraining
from coprefl_flwr.methods import PERSONALISED, with_role
from coprefl_flwr.models import build_model, head_names
from coprefl_flwr.models.lightweight import lightweight_model, projection_head
from coprefl_flwr.models.network import Network
from coprefl_flwr.options import declared
from coprefl_flwr.report.figures.similarity import LOCAL
from coprefl_flwr.rounds.progress import PERSONAL_KIND
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.identity import contents, hash_of, values_of
from coprefl_flwr.studies.personal_data import PERSONAL, PersonalSettings, personal_data
from coprefl_flwr.studies.phases import (
    Phase,
    TrainingSettings,
    check_all_used,
    entries,
    folder_of,
    read_phase,
)
from coprefl_flwr.studies.settings import FolderSettings, ModelSettings, Settings
from coprefl_flwr.studies.stage import ABOUT, RunSettings, Stage, Store
from coprefl_flwr.studies.study import Study, not_set, versions

GLOBAL = "global.safetensors"
"""The global arrays: a model, a body, or prototypes."""

HEEDED = ("dataset", "data-dir", "image-size", "alpha", "min-samples", "test-every")
"""Settings of data that hold for a personalised study too; its clients hold datasets whole."""


class Personalised(Study):
    """A personalised study, built from its settings.

    Raises a SettingsError for a method that is not one of a personalised study, an option that no
    method here has, or a setting that such a study does not heed.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.run, self.model = settings.part(RunSettings), settings.part(ModelSettings)
        self.personal, self.training = settings.part(PersonalSettings), _trained(settings)
        self.short, data = dict(settings.short), settings.part(DataSettings)
        not_set(settings, DataSettings, "a personalised study does not heed it", HEEDED)
        self.test_every = data.test_every
        self.data = personal_data(
            self.personal,
            self.personal.personal_datasets or data.dataset,
            data.data_dir,
            data.image_size,
            data.alpha,
            data.min_samples,
            self.run.seed,
        )
        names = entries(settings.part(FolderSettings).method, list(with_role(PERSONALISED)))
        self.phases = {name: self._phase(name) for name in names}
        self._networks: dict[str, Network] = {}
        check_all_used(self.short, list(self.phases.values()))
        self.methods = [PersonalStage(self, name) for name in self.phases]
        self.stages = [*self.methods]

    def _phase(self, name: str) -> Phase:
        """Read one entry of `method`."""
        phase = read_phase("method", name, PERSONALISED, self.training, self.short)
        if self.personal.from_scratch and phase.method.strategy_class.network != "classifier":
            raise SettingsError(
                f"backbones = scratch: {phase.name} trains a head on features, no network",
                "backbones",
            )
        return phase

    # ---- networks ------------------------------------------------------------------------------

    def network(self, name: str) -> Network:
        """Return what a method's clients train, which this process's clients share."""
        if name not in self._networks:
            module, head = self._module(self.phases[name])
            classes, shape = self.data.num_classes, self.data.input_shape
            self._networks[name] = Network(self.model.model, module, classes, shape, head)
        return self._networks[name]

    def _module(self, phase: Phase) -> tuple[nn.Module, frozenset[str]]:
        """Return a network with its first weights, and the names of its last layer's arrays."""
        classes, shape, key = self.data.num_classes, self.data.input_shape, (self.run.seed, "model")
        if self.personal.from_scratch:
            named = (self.model.model, classes, shape, self.model.norm)
            head = head_names(*named)
            return build_model(*named, key), head
        norm = self.personal.head_norm
        if phase.method.strategy_class.network == "projection":
            return projection_head(shape[0], norm or "none", key), frozenset()
        head = frozenset({"classifier.weight", "classifier.bias"})
        return lightweight_model(shape[0], classes, norm or "batch", key), head

    # ---- checks --------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise a SettingsError if something cannot be had as set; loads the data."""
        _ = self.data.images
        for method in self.methods:
            method.arrays()

    # ---- the clients' side ---------------------------------------------------------------------

    def hosted(self, population: str) -> int:
        """Return how many clients there are, each of which any node can run."""
        return self.data.num_clients

    def client(self, client_id: int, config: Mapping[str, Any]) -> TorchClient:
        """Return a client of the method that a message names."""
        name = str(config["method"])
        phase, network = self.phases[name], self.network(name)
        held = self.data.client_data(client_id, Path(str(config["feature-dir"])))
        noise = self.personal.noise() if self.personal.noise_on == "prototypes" else None
        offered = {
            "state": ClientState(str(config["state-dir"])),
            "initial": network.arrays,
            "noise": noise,
        }
        return phase.method.client(
            phase.options,
            network.module,
            held.train,
            offered,
            test=held.test,
            training=_adam(phase.training),
        )


class PersonalStage(Stage):
    """A method that gives every client a model of its own."""

    kind, phase = PERSONAL_KIND, "personalised"

    def __init__(self, study: Personalised, name: str) -> None:
        self.study, self.of = study, study.phases[name]
        path, rounds = f"methods/{folder_of(name)}", self.of.training.rounds
        super().__init__(study.run, name, path, name, name, rounds)

    def strategy(self) -> RoundStrategy:
        """Make the strategy: every client takes part in every round, or it is repeated."""
        run = self.run.of_strategy(
            PERSONAL,
            run_name=self.study.run_name,
            min_replies=self.study.data.num_clients,
            evaluate_every=self.study.test_every or self.rounds,
        )
        return self.of.method.strategy(self.of.options, _adam(self.of.training), **run)

    def arrays(self) -> Arrays:
        """Return the global arrays that the method begins with: what travels, and no more."""
        return self.of.method.strategy_class.initial(self.study.network(self.method))

    def initial(self, store: Store) -> Arrays:
        """Return what the method begins with."""
        return self.arrays()

    def clients(self) -> Sequence[str]:
        """Return the dataset of each client."""
        data = self.study.data
        return [data.domain_of(client).name for client in range(data.num_clients)]

    def keep(self, folder: Path, arrays: Arrays, strategy: RoundStrategy | None) -> dict[str, Any]:
        """Write the global arrays and every client's prototypes; return what a client sends.

        The paper's "# of Comm Params" (Table 2) leaves out biases and BatchNorm.
        """
        prototypes = strategy.kept_arrays("local", {}) if strategy else {}
        for file, some in ((GLOBAL, arrays), (LOCAL, prototypes)):
            if some:
                plain = {name: np.asarray(array, order="C") for name, array in some.items()}
                write_atomically(folder / file, safetensors.numpy.save(plain))
        about = {"phases": [self.of.about()], "settings": self.study.config, "versions": versions()}
        write_atomically(folder / ABOUT, json.dumps(about, indent=1).encode())
        return {
            "weights-sent": sum(array.size for array in arrays.values() if array.ndim > 1),
            "numbers-sent": sum(array.size for array in arrays.values()),
        }

    def key(self) -> str:
        """Return the method's name and a hash."""
        return f"{self.of.name}-{hash_of(self._identity())}"

    def _identity(self) -> dict[str, Any]:
        return self._of_features() | {
            **values_of(self.study.model),
            "test-every": self.study.test_every,
            "method": self.of.identity(),
            "min-replies": self.run.min_replies,
        }

    def features(self) -> str:
        """Return a hash of what the clients' features depend on."""
        return hash_of(self._of_features())

    def _of_features(self) -> dict[str, Any]:
        settings, data = self.study.personal, self.study.data
        found = values_of(settings) | {
            "seed": self.run.seed,
            "dataset": data.datasets,
            "image-size": data.image_size,
        }
        if settings.shift != "feature":  # Else nothing is dealt by Dirichlet(alpha).
            found |= {"alpha": data.alpha, "min-samples": data.min_samples}
        backbones = [name.partition("=")[2] or name for name in settings.backbones.split()]
        named = [*data.datasets.split(), *backbones, self.study.model.model]
        return found | {"contents": contents(named)}


def _trained(settings: Settings) -> TrainingSettings:
    """Return how the methods train; refuse what they do not heed."""
    for key, why in {
        "participants": "all clients of a personalised study take part",
        "momentum": "a personalised study trains by Adam",
    }.items():
        if getattr(settings, key) != declared(Settings)[key].default:
            raise SettingsError(f"{key} = {getattr(settings, key)}: {why}", key)
    if settings.clients != Settings.clients:
        raise SettingsError(
            f"clients = {settings.clients}: how many a personalised study has is personal-clients",
            "clients",
        )
    return settings.part(TrainingSettings)


def _adam(training: TrainingSettings) -> AdamTraining:
    """Return how clients train: Adam, 1e-3, weight decay 1e-4, one epoch (section 5.1)."""
    values = {one.name: getattr(training, one.name) for one in fields(LocalTraining)}
    if training.local_steps is None and training.local_epochs is None:
        values["local_epochs"] = 1
    return AdamTraining(**values)
