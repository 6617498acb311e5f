"""`pretrain`: a method, a module and clients become a starting model."""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr import checksums
from coprefl_flwr.arrays import Arrays, from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError, short, unknown
from coprefl_flwr.federation.checkpoint import History
from coprefl_flwr.federation.progress import PRETRAINING_KIND
from coprefl_flwr.federation.strategy import ROUNDS
from coprefl_flwr.front.arguments import check_module, checked_method
from coprefl_flwr.front.held import Clients, as_arguments, clients_of
from coprefl_flwr.front.running import (
    check_workers,
    folder_for,
    grid_of,
    hash_of_samples,
    outputs_of,
    shown,
)
from coprefl_flwr.methods import PRETRAINING, Algorithm
from coprefl_flwr.models import check_weights, load_arrays, model_arrays, save_model
from coprefl_flwr.options import declared
from coprefl_flwr.strategies import RoundStrategy, Schedule, ServerRefined
from coprefl_flwr.studies import populations as of_studies
from coprefl_flwr.studies.method import Method, Methods
from coprefl_flwr.studies.phases import TRAINING_KEYS, Phase, TrainingSettings, made_phase
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import FOLDER, STAGE
from coprefl_flwr.studies.starts import Starts
from coprefl_flwr.studies.study import versions

logger = logging.getLogger("flwr.coprefl")

USAGE, CHECKPOINT = "cp.pretrain(method, model, clients)", "checkpoint.safetensors"
CHECKPOINT_EVERY = 5
"""Rounds between checkpoints, where a folder for them is given."""

OF_RUN = ("rounds", "participants")
"""Settings of the training that `pretrain` and the strategy have arguments for."""

ARGUMENTS = {key: key.replace("-", "_") for key in TRAINING_KEYS}
"""What settings are called in `pretrain`, in messages."""


def pretrain(
    method: Strategy | str,
    model: nn.Module,
    clients: Clients | Sequence[Any] | ClientApp,
    rounds: int = 50,
    *,
    nodes: int = 0,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    history: bool = False,
    **options: Any,
) -> Any:
    """Return a copy of `model` that a method has pre-trained across clients.

    With `history=True` return it and the rounds' metrics, which `plot_history` draws:
    `start, history = cp.pretrain(..., history=True)`.

    Parameters
    ----------
    method : Strategy or str
        Such as `CoPreFL(gamma=0.5, participants=20)`, one of your own, one of Flower's own (with
        `participants` and `seed` as `of_flower` takes them), or a text as in recipes:
        "coprefl:gamma=0.5", "cyclic:rounds=5+fedavg". Its `seed` is that of all random choices
        (`seed` in `options` for a text).
    model : nn.Module
        The network and its first weights; it stays as it is.
    clients : Clients, a list of datasets (one a client), or a Flower ClientApp
        The ClientApp of an app of your own runs on `nodes` nodes.
    rounds : int
        Pre-training rounds T; of each phase of "A+B". A Schedule has its own.
    workers : int
        How many processes the clients run in: 1 is this one, more are processes of one thread each
        on Ray (see `grids.RayGrid`), with the same numbers up to rounding.
    checkpoint : path of a folder, optional
        Keeps the run's state, so that `resume=True` goes on with it after a stop, with the same
        numbers. A run that is done there is not done again, and goes on with more `rounds`. At the
        end the folder holds the model too, and can be a start of `evaluate_starts`. The rounds'
        metrics are in its checkpoint.safetensors.rounds.jsonl, a line of JSON a round.
    quiet : bool
        Whether nothing is logged but warnings.
    history : bool
        Whether to return (nn.Module, History): `history.rounds()` has a dict of metrics a round.
    **options
        Local training, as `local_steps=5`, `local_epochs`, `learning_rate=0.05`, `batch_size`,
        `precision="bf16"`; `client_wrapper="attackers.py:SignFlip", client_wrapper_share=0.3`; and
        options of the method's client, such as CoPreFL's `support_fraction`.

    Raises
    ------
    SettingsError
        Before any work, for what cannot be.
    RunFailedError
        If the clients failed a round too often.
    """
    method = checked_method(method, USAGE)
    check_module(model, "model", f": {USAGE}")
    check_weights(model, "model")
    check_workers(workers)
    with shown([], quiet) as progress, as_arguments(ARGUMENTS):
        if isinstance(clients, ClientApp):
            study, job = None, _of_app(method, model, clients, rounds, nodes, options)
        else:
            study = _Study(method, model, clients_of(clients), rounds, options)
            job = _of_study(study, workers)
        with folder_for(checkpoint, resume, job.about) as folder:
            if study:
                study.root = folder
            file = folder / CHECKPOINT
            progress.add([(PRETRAINING_KIND, job.rounds)])
            part = progress.begin(job.title, PRETRAINING_KIND, job.rounds, job.switch)
            try:
                with grid_of(job.app, job.nodes, workers) as grid:
                    result = job.strategy.start(
                        grid,
                        to_record(job.first, copy=False),
                        job.rounds,
                        train_config=ConfigRecord(dict(job.told)),
                        checkpoint=file if checkpoint else None,
                        checkpoint_every=CHECKPOINT_EVERY,
                        resume=file.exists(),
                        hooks=[part],
                    )
            finally:
                progress.end(part)
            arrays = from_record(result.arrays)
            if study:
                study.tell_trouble(result.history)
            if checkpoint:
                save_model(folder, arrays, {**job.made, "versions": versions()})
    made = copy.deepcopy(model)
    load_arrays(made, arrays)
    return (made, result.history) if history else made


@dataclass(frozen=True)
class _Job:
    """What is run: a strategy from the `first` arrays, and the clients' app for so many nodes.

    `about` is what a resumed run must have in common with it, `made` what its model's file says of
    it, and `told` what its messages say besides.
    """

    strategy: RoundStrategy
    first: Arrays
    rounds: int
    app: ClientApp
    nodes: int
    about: Mapping[str, Any]
    made: Mapping[str, Any]
    title: str
    switch: int = 0
    told: Mapping[str, str] = field(default_factory=dict)


class _Study(Starts):
    """One pre-training, of a module and clients that are given."""

    def __init__(
        self,
        method: RoundStrategy | str,
        model: nn.Module,
        clients: Clients,
        rounds: int,
        options: Mapping[str, Any],
    ) -> None:
        self.given, self.method, self.clients = copy.deepcopy(model).cpu(), method, clients
        self._made_of = (method, self.given, clients, rounds, options)
        found = _checked(method, options)
        seed = method.seed if isinstance(method, RoundStrategy) else found.pop("seed", 0)
        training = {key: one for key, one in found.items() if key in TRAINING_KEYS}
        self.of_client = {key: one for key, one in found.items() if key not in TRAINING_KEYS}
        settings = Settings.from_config(
            {
                "method": "random",
                "tasks": 0,
                "rounds": rounds,
                "seed": seed,
                "clients": len(clients),
                "participants": len(clients),
                "min-samples": 2,
                "server-reserve": clients.populations.data.server_reserve,
                **training,
            }
        )
        super().__init__(settings)
        self._check_model()
        self.check()

    def __reduce__(self) -> tuple[Any, ...]:
        """Make it anew in another process, which has the same folder."""
        return _Study, self._made_of, {"root": self.root}

    def made_populations(self) -> of_studies.Populations:
        return self.clients.populations

    def made_starts(self, methods: Methods) -> Mapping[str, Pretraining]:
        start = _Start(self)
        return {start.start: start}

    def network(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        return copy.deepcopy(self.given)

    @property
    def head(self) -> frozenset[str]:
        return frozenset()

    def _check_model(self) -> None:
        """Raise a SettingsError if the module does not take the samples, or has fewer outputs."""
        if not any(one.requires_grad for one in self.given.parameters()):
            raise SettingsError("model has no parameters that are trained (requires_grad)")
        outputs = outputs_of(self.given, "model", self.clients[0]).shape[1]
        classes = self.num_classes
        if outputs < classes:
            line = f"model gives {outputs} numbers for a sample, and there are {classes} classes"
            raise SettingsError(f"{line}: its last layer needs at least as many")

    def about(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with this."""
        [start] = self.starts.values()
        phases = [phase.identity() for phase in start.phases]
        phases[-1].pop("rounds", None)  # A run that is done goes on with more.
        return {
            "method": phases,
            "model": checksums.of_arrays(model_arrays(self.given)),
            "clients": hash_of_samples(self.clients.samples),
            "seed": self.run.seed,
        }

    def tell_trouble(self, history: History) -> None:
        """Log a warning if the loss says that nothing was learnt."""
        [start] = self.starts.values()
        losses = {number: m["loss"] for number, m in history.rounds().items() if "loss" in m}
        if trouble := start.trouble_of(losses, self.num_classes):
            logger.warning("%s: %s", start.title, trouble)


class _Start(Pretraining):
    """A pre-training by a strategy that is given, or by what a text names."""

    def __init__(self, study: _Study) -> None:
        self.front, given = study, study.method
        text = _name(given) if isinstance(given, RoundStrategy) else given
        super().__init__(study, Method.parse(text))

    def made_phases(self, study: Starts, method: Method) -> Sequence[Phase]:
        given, front = self.front.method, self.front
        if isinstance(given, RoundStrategy):
            return [
                phase_of(
                    one,
                    PRETRAINING,
                    study.training,
                    front.of_client,
                    rounds=rounds,
                    participants=one.participants or len(front.clients),
                )
                for one, rounds in _parts(given, study.training.rounds)
            ]
        phases = super().made_phases(study, method)
        if not phases:
            raise SettingsError(
                f"method = {str(method)!r}: it trains nothing; use the module as it is"
            )
        return phases

    def strategy(self) -> RoundStrategy:
        """Return the strategy that was given, with a study's name for its clients."""
        if not isinstance(self.front.method, RoundStrategy):
            return super().strategy()
        made = copy.deepcopy(self.front.method)
        made.population, made.clients = of_studies.PRETRAINING, len(self.front.clients)
        made.evaluate_every = 0  # What a start is worth, `evaluate_starts` says.
        return made


def _checked(method: RoundStrategy | str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by key, or raise a SettingsError for one that nobody here has."""
    known = [key for key in TRAINING_KEYS if key not in OF_RUN]
    if isinstance(method, RoundStrategy):
        if method.clients is not None:
            line = f"clients = {short(repr(method.clients))} of the strategy"
            raise SettingsError(f"{line}: leave it out, the clients here are those that are given")
        for strategy, _ in _parts(method, 1):
            used = method_of(strategy)
            if PRETRAINING not in used.roles:
                roles = " and ".join(used.roles)
                raise SettingsError(f"{used.label} is a method of the role {roles}: no start")
            known += declared(used.client_class)
    else:
        known.append("seed")
    found = {name.replace("_", "-"): value for name, value in options.items()}
    for key in found:
        if key not in known:
            names = [one.replace("-", "_") for one in known]
            raise SettingsError(unknown("option", key.replace("-", "_"), names))
    return found


def _parts(strategy: RoundStrategy, rounds: int) -> list[tuple[RoundStrategy, int]]:
    """Return the strategies that run one after another, with their rounds."""
    if not isinstance(strategy, Schedule):
        return [(strategy, rounds)]
    return [(one, number) for one, number in strategy.phases]


def method_of(strategy: RoundStrategy) -> Algorithm:
    """Return a strategy's class as a method, whose client is asked for."""
    inner = strategy.inner if isinstance(strategy, ServerRefined) else strategy
    return Algorithm(inner.name or type(inner).__name__, type(inner))


def _name(strategy: RoundStrategy) -> str:
    """Return what progress calls a strategy."""
    return "+".join(method_of(one).label for one, _ in _parts(strategy, 1))


def phase_of(
    strategy: RoundStrategy,
    role: str,
    training: TrainingSettings,
    options: Mapping[str, Any],
    **more: int,
) -> Phase:
    """Return the phase of a strategy that is given, with the `options` of its client by key.

    `more` are settings of its training.
    """
    method = method_of(strategy)
    inner = strategy.inner if isinstance(strategy, ServerRefined) else strategy
    of_client = declared(method.client_class)
    given = {
        key: getattr(inner, one.name) for key, one in method.options.items() if key not in of_client
    }
    given |= {key: one for key, one in options.items() if key in of_client}
    return made_phase(method, role, {**given, **more}, training, {})


def _of_study(study: _Study, nodes: int) -> _Job:
    """Return the run of a study's one start."""
    [start] = study.starts.values()
    made = {
        "start": start.start,
        "phases": [phase.about() for phase in start.phases],
        "num-classes": study.num_classes,
        "classes": list(study.clients.classes),
    }
    app = client_app(lambda _, client_id, config: study.client(client_id, config))
    return _Job(
        start.strategy(),
        start.weights(),
        start.rounds,
        app,
        nodes,
        study.about(),
        made,
        start.title,
        start.switch,
        {STAGE: start.path, FOLDER: "clients"},
    )


def _of_app(
    method: RoundStrategy | str,
    model: nn.Module,
    app: ClientApp,
    rounds: int,
    nodes: int,
    options: Mapping[str, Any],
) -> _Job:
    """Return the run of a strategy on a ClientApp of the caller's own."""
    if not isinstance(method, RoundStrategy):
        raise SettingsError(f"method = {method!r}: with a ClientApp, give a strategy")
    if options:
        line = f"{', '.join(options)}: the ClientApp trains as it is written"
        raise SettingsError(f"{line}; give these to it")
    if nodes < 1:
        raise SettingsError(f"nodes = {nodes}: a ClientApp needs the number of its nodes")
    strategy, first = copy.deepcopy(method), model_arrays(model)
    strategy.evaluate_every = 0  # What a start is worth, `evaluate_starts` says.
    weights = checksums.of_arrays(first)
    about = {"method": strategy.options(), "model": weights, "nodes": nodes}
    total = sum(number for _, number in _parts(method, ROUNDS.checked(rounds, "rounds")))
    name = _name(strategy)
    return _Job(strategy, first, total, app, nodes, about, {"start": name}, f"pre-training {name}")
