"""`pretrain`: a method, a module and clients become a starting model."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr import checksums
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients import client_app
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError, short, unknown
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.progress import PRETRAINING_KIND
from coprefl_flwr.federation.strategy import ROUNDS
from coprefl_flwr.front.arguments import check_module, checked_method
from coprefl_flwr.front.held import check, clients_of
from coprefl_flwr.front.running import (
    check_workers,
    grid_of,
    outputs_of,
    shown,
    store_for,
)
from coprefl_flwr.methods import PRETRAINING, Algorithm
from coprefl_flwr.models import (
    check_weights,
    load_arrays,
    load_saved_model,
    model_arrays,
    save_model,
)
from coprefl_flwr.options import declared
from coprefl_flwr.report import frames
from coprefl_flwr.strategies import RoundStrategy, Schedule, ServerRefined
from coprefl_flwr.studies.architecture import Architecture
from coprefl_flwr.studies.build import start_of
from coprefl_flwr.studies.method import START, Method
from coprefl_flwr.studies.phases import TRAINING_KEYS, Phase, TrainingSettings, made_phase
from coprefl_flwr.studies.populations import Clients
from coprefl_flwr.studies.pretraining import Pretraining, Start
from coprefl_flwr.studies.provenance import versions
from coprefl_flwr.studies.sources import Source
from coprefl_flwr.studies.stage import (
    RunSettings,
    Store,
    TrainingStage,
)
from coprefl_flwr.studies.store import Layout
from coprefl_flwr.studies.study import Study, run

USAGE = "cp.pretrain(method, model, clients)"

OF_RUN = ("rounds", "participants")
"""Settings of the training that `pretrain` and the strategy have arguments for."""


def pretrain(
    method: Strategy | str,
    model: nn.Module,
    clients: Clients | Sequence[Any] | ClientApp,
    rounds: int = 50,
    *,
    nodes: int = 0,
    workers: int = 1,
    checkpoint: str | Path | None = None,
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
        Keeps the run's state: the same call goes on with it after a stop, with the same numbers,
        and with more `rounds` where it is done. Of another method, model or clients the run begins
        anew, and the earlier files are moved into a folder `earlier-N` beside. At the end the
        folder holds the model too, and can be a start of `evaluate_starts`. The rounds'
        metrics are in its checkpoint.safetensors.rounds.jsonl, a line of JSON a round.
    quiet : bool
        Whether nothing is logged but warnings.
    history : bool
        Whether to return (nn.Module, DataFrame): a row a round, with its metrics and traffic.
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
    with shown([], quiet) as progress:
        stage: TrainingStage
        if isinstance(clients, ClientApp):
            stage = _OnApp(method, model, rounds, nodes, options)
            study, app = Study([stage]), clients
        else:
            stage = _pretraining(method, model, clients_of(clients), rounds, options)
            study, nodes = Study([stage]), workers
            app = client_app(study.client)
        stage.open_ended = checkpoint is not None
        study.check()
        with store_for(checkpoint, Layout.SINGLE) as store:
            study.root = store.base
            progress.add((stage.kind, stage.rounds) for stage in study.stages)
            with grid_of(app, nodes, workers) as grid:
                run(study, grid, store, progress)
            arrays, _ = load_saved_model(store.root)
            found = frames.frame(store.result(stage)["rounds"])
    made = copy.deepcopy(model)
    load_arrays(made, arrays)
    return (made, found) if history else made


class _Module(Architecture):
    """The module that is given, with its own last layer."""

    def __init__(self, given: nn.Module, source: Source, seed: int) -> None:
        super().__init__(type(given).__name__, source, seed)
        self.given = copy.deepcopy(given).cpu()

    def make(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        """Return a copy of the module, whatever the key."""
        return copy.deepcopy(self.given)

    @property
    def head(self) -> frozenset[str]:
        """No arrays: nothing replaces its last layer."""
        return frozenset()

    def identity(self) -> Mapping[str, Any]:
        """Return a hash of its weights."""
        return {"weights": checksums.of_arrays(model_arrays(self.given))}

    def check(self, sample: Samples) -> None:
        """Raise a SettingsError if the module does not take samples, or has too few outputs."""
        if not any(one.requires_grad for one in self.given.parameters()):
            raise SettingsError("model has no parameters that are trained (requires_grad)")
        outputs, classes = outputs_of(self.given, "model", sample).shape[1], self.num_classes
        if outputs < classes:
            line = f"model gives {outputs} numbers for a sample, and there are {classes} classes"
            raise SettingsError(f"{line}: its last layer needs at least as many")


def _pretraining(
    method: RoundStrategy | str,
    model: nn.Module,
    clients: Clients,
    rounds: int,
    options: Mapping[str, Any],
) -> Pretraining:
    """Return the pre-training of a module on clients that are given."""
    found = _checked(method, options)
    if isinstance(method, RoundStrategy):
        of_run = RunSettings(seed=method.seed)
    else:
        of_run = RunSettings(seed=check("seed", found.pop("seed", 0), "seed"))
    known = declared(TrainingSettings)
    own = {
        known[k].name: known[k].checked(one, known[k].name)
        for k, one in found.items()
        if k in known
    }
    training = TrainingSettings(rounds=rounds, participants=len(clients), **own)
    of_client = {key: one for key, one in found.items() if key not in known}
    architecture = _Module(model, clients.source, of_run.seed)
    start = (
        _given(method, training, of_client, len(clients))
        if isinstance(method, RoundStrategy)
        else _named(method, training)
    )
    architecture.check(clients[0])
    return Pretraining(start, clients, architecture, of_run)


def _given(
    method: RoundStrategy, training: TrainingSettings, of_client: Mapping[str, Any], clients: int
) -> Start:
    """Return the start that a strategy makes."""
    phases = [
        phase_of(
            one,
            PRETRAINING,
            training,
            of_client,
            rounds=rounds,
            participants=one.participants or clients,
        )
        for one, rounds in _parts(method, training.rounds)
    ]
    name = _name(method)
    return Start(name, name, phases, strategy=method)


def _named(text: str, training: TrainingSettings) -> Start:
    """Return the start that the text of a method describes."""
    method = Method.parse(text)
    if method == START or method.is_made_elsewhere:
        raise SettingsError(f"method = {text!r}: it trains nothing; use the module as it is")
    return start_of(method, training, {})


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


class _OnApp(TrainingStage):
    """A pre-training on a ClientApp of the caller's own."""

    kind, phase, measures = PRETRAINING_KIND, "pretraining", False

    def __init__(
        self,
        method: RoundStrategy | str,
        model: nn.Module,
        rounds: int,
        nodes: int,
        options: Mapping[str, Any],
    ) -> None:
        if not isinstance(method, RoundStrategy):
            raise SettingsError(f"method = {method!r}: with a ClientApp, give a strategy")
        if options:
            line = f"{', '.join(options)}: the ClientApp trains as it is written"
            raise SettingsError(f"{line}; give these to it")
        if nodes < 1:
            raise SettingsError(f"nodes = {nodes}: a ClientApp needs the number of its nodes")
        total = sum(number for _, number in _parts(method, ROUNDS.checked(rounds, "rounds")))
        name = _name(method)
        super().__init__(RunSettings(seed=method.seed), f"pre-training {name}", name, name, total)
        self.method, self.first = copy.deepcopy(method), model_arrays(model)
        self.method.evaluate_every = 0  # What a start is worth, `evaluate_starts` says.
        self.nodes = nodes

    def identity(self) -> Mapping[str, Any]:
        """Return what the model depends on, besides the app."""
        weights = checksums.of_arrays(self.first)
        return {"method": self.method.options(), "model": weights, "nodes": self.nodes}

    @property
    def key(self) -> str:
        """Return its name: nothing else lies in its folder."""
        return self.start

    def strategy(self) -> RoundStrategy:
        """Return the strategy that was given."""
        return self.method

    def initial(self, store: Store) -> Arrays:
        """Return the module's weights."""
        return self.first

    def keep(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Write the starting model."""
        save_model(folder, arrays, {"start": self.start, "versions": versions()})
        return {}
