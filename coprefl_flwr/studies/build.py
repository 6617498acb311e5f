"""Settings become a study here alone; whoever runs or takes part in one gets it here."""

import contextlib
import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from flwr.serverapp import Grid

from coprefl_flwr.data import Datasets, DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import expanded, remove_named, write_atomically
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, RANDOM, TASK, with_role
from coprefl_flwr.options import Value, declared
from coprefl_flwr.studies.architecture import BuiltArchitecture
from coprefl_flwr.studies.client_metrics import ClientMetrics
from coprefl_flwr.studies.identity import texts_of, values_of
from coprefl_flwr.studies.measurements import StartLoss, own_measurements
from coprefl_flwr.studies.method import KEEP, NO_METHODS, START, Method
from coprefl_flwr.studies.personal_data import FEATURE_FILE, PersonalSettings, personal_data
from coprefl_flwr.studies.personalised import PersonalStage
from coprefl_flwr.studies.phases import (
    Phase,
    TrainingSettings,
    check_all_used,
    one_phase,
    read_phase,
)
from coprefl_flwr.studies.populations import Clients, Tasks
from coprefl_flwr.studies.pretraining import Pretraining, Start
from coprefl_flwr.studies.results import write_results
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.sources import DividedSource, Spread
from coprefl_flwr.studies.stage import RunSettings, check_folders
from coprefl_flwr.studies.starts import comparison
from coprefl_flwr.studies.store import Layout, Store
from coprefl_flwr.studies.study import SETTINGS, Study, check_place, run, with_run_name
from coprefl_flwr.studies.task_settings import TaskSettings
from coprefl_flwr.studies.tasks import Downstream

logger = logging.getLogger("flwr.coprefl")

REFUSED = {
    "participants": "all clients of a personalised study take part",
    "momentum": "a personalised study trains by Adam",
    "client-wrapper": "clients are wrapped in a pre-training, not in a personalised study",
    "stop-at-loss": "its methods have no model of everybody to stop at",
    "clients": "how many a personalised study has is personal-clients",
}
"""Settings that a personalised study does not heed, and why."""

OF_TASK_DATA = (
    "tasks",
    "task-classes",
    "task-clients",
    "task-partition",
    "task-alpha",
    "task-train-fraction",
)
"""Settings of the tasks by which their data is drawn."""

HEEDED = ("dataset", "data-dir", "relabel", "image-size", "alpha", "min-samples", "test-every")
"""Settings of data that hold for a personalised study too; its clients hold datasets whole."""


def build(settings: Settings) -> Study:
    """Return the study of these settings, held once per process while a user's files stay the same.

    It is another one after a change of folder, from which a relative `output-dir` counts.

    Raises a SettingsError for what can be seen without loading data: an unknown method or option,
    an entry of `method` named twice, an option that no method has, a setting that is not heeded.
    """
    return _built(settings, texts_of(settings), Path.cwd())


@functools.lru_cache(maxsize=8)
def _built(settings: Settings, _: tuple[str, ...], __: Path) -> Study:
    return personalised(settings) if settings.study == PERSONALISED else starts(settings)


def starts(settings: Settings) -> Study:
    """Return the study of starting models that settings describe."""
    _not_set(settings, declared(PersonalSettings), "set study = personalised to use it")
    of_run, data = settings.part(RunSettings), settings.part(DataSettings)
    of_tasks, config = settings.part(TaskSettings), settings.to_config()
    training, short = settings.part(TrainingSettings), dict(settings.short)
    settings.method.check([RANDOM, *with_role(PRETRAINING)])
    clients, tasks = populations(data, of_tasks, of_run.seed)
    architecture = BuiltArchitecture(settings.model, settings.norm, clients.source, of_run.seed)
    made = [
        Pretraining(
            start_of(method, training, short),
            clients,
            architecture,
            of_run,
            keeps_head=of_tasks.head == KEEP,
            test_every=data.test_every,
            settings=config,
        )
        for method in settings.method
    ]
    how = downstream(of_tasks, training, short, ClientMetrics(of_run.client_metrics))
    phases = [phase for start in made for phase in start.phases]
    check_all_used(short, [*phases, how.trained, *([how.head] if how.head else [])])
    if len(tasks):
        how.trained.check_aggregation("task-method", of_tasks.task_clients)
    measurements = own_measurements(of_tasks.measurements)
    if of_tasks.start_loss:
        measurements = [StartLoss, *measurements]
    stages = comparison(made, tasks, how, measurements)
    return Study(stages, config, _root(settings))


def populations(data: DataSettings, tasks: TaskSettings, seed: int) -> tuple[Clients, Tasks]:
    """Return the clients of the pre-training and of the tasks, which load data when asked for it.

    They are held once per process for the last dozens of settings. Where a file of the user's own
    has changed, they are made anew.
    """
    of_tasks = {key: one for key, one in values_of(tasks).items() if key in OF_TASK_DATA}
    return _populations(data, tuple(of_tasks.items()), seed, texts_of(values_of(data) | of_tasks))


@functools.lru_cache(maxsize=64)
def _populations(
    data: DataSettings, tasks: tuple[tuple[str, Any], ...], seed: int, _: tuple[str, ...]
) -> tuple[Clients, Tasks]:
    datasets, of_tasks = Datasets(data, seed), dict(tasks)
    spread = Spread(
        clients=data.clients,
        scheme=data.partition,
        alpha=data.alpha,
        classes_per_client=data.classes_per_client,
        min_samples=data.min_samples,
    )
    clients = Clients(
        DividedSource(datasets, 0),
        spread,
        seed,
        server_reserve=data.server_reserve,
        server_share=data.server_share,
        tested=bool(data.test_every),
    )
    spread_of_tasks = replace(
        spread,
        clients=of_tasks["task-clients"],
        scheme=of_tasks["task-partition"],
        alpha=of_tasks["task-alpha"],
    )
    made = Tasks(
        DividedSource(datasets, 1),
        spread_of_tasks,
        of_tasks["tasks"],
        of_tasks["task-classes"],
        of_tasks["task-train-fraction"],
        seed,
        {"number": "tasks", "classes": "task-classes", "only": "downstream-classes"},
    )
    return clients, made


def downstream(
    tasks: TaskSettings,
    training: TrainingSettings,
    short: Mapping[str, Value],
    metrics: ClientMetrics,
) -> Downstream:
    """Return how tasks are run: by plain SGD (CoPreFL, appendix B.3), with these methods."""
    of_tasks = TrainingSettings(
        rounds=max(tasks.task_rounds, 1),
        participants=tasks.task_clients,
        local_steps=tasks.task_local_steps,
        local_epochs=tasks.task_local_epochs,
        batch_size=training.batch_size,
        learning_rate=tasks.task_learning_rate,
        precision=training.precision,
    )
    chosen = one_phase("task-method", tasks.task_method)
    trained, head = read_phase("task-method", chosen, TASK, of_tasks, short), None
    if tasks.head not in NO_METHODS:
        head = read_phase("head", one_phase("head", tasks.head), HEAD, of_tasks, short)
    return Downstream(
        trained,
        tasks.task_rounds,
        head,
        keeps_head=tasks.head == KEEP,
        head_layer=tasks.head_layer,
        evaluate_every=tasks.task_evaluate_every,
        diagnostics=tasks.diagnostics,
        metrics=metrics,
    )


def start_of(method: Method, training: TrainingSettings, short: Mapping[str, Value]) -> Start:
    """Return how a method makes a starting model; `training` and `short` as in `read_phase`."""
    name, label = str(method), method.portable
    if method.is_made_elsewhere:
        return Start(name, label, given=name)
    chosen = () if method == START else method.phases
    phases = [read_phase("method", one, PRETRAINING, training, short) for one in chosen]
    return Start(name, label, phases)


def personalised(settings: Settings) -> Study:
    """Return the personalised study of settings; refuses those that such a study does not heed."""
    for key, why in REFUSED.items():
        _not_set(settings, [key], why)
    unheeded = [key for key in declared(DataSettings) if key not in HEEDED]
    _not_set(settings, unheeded, "a personalised study does not heed it")
    of_run, data = settings.part(RunSettings), settings.part(DataSettings)
    training, config = settings.part(TrainingSettings), settings.to_config()
    settings.method.check(list(with_role(PERSONALISED)))
    phases = {method: _personal_phase(method, training, settings) for method in settings.method}
    check_all_used(dict(settings.short), list(phases.values()))
    of_clients = personal_data(
        settings.part(PersonalSettings), data, of_run.seed, training.precision
    )
    model, metrics = (settings.model, settings.norm), ClientMetrics(of_run.client_metrics)
    stages = [
        PersonalStage(method, phase, of_clients, model, data.test_every, of_run, metrics, config)
        for method, phase in phases.items()
    ]
    return Study(stages, config, _root(settings))


def _personal_phase(method: Method, training: TrainingSettings, settings: Settings) -> Phase:
    """Return the phase of a personalised method, which has no other."""
    chosen, short = one_phase("method", method), dict(settings.short)
    phase = read_phase("method", chosen, PERSONALISED, training, short)
    network = phase.algorithm.client_class.network
    if settings.part(PersonalSettings).from_scratch and network != "classifier":
        problem = f"backbones = scratch: {phase.name} trains a head on features, no network"
        raise SettingsError(problem, "backbones")
    return phase


def _not_set(settings: Settings, keys: Iterable[str], why: str) -> None:
    """Raise a SettingsError if one of the settings is not at its default."""
    for key in keys:
        value = values_of(settings)[key]
        if value != declared(Settings)[key].default:
            raise SettingsError(f"{key} = {value}: {why}", key)


def _root(settings: Settings) -> Path:
    return expanded(settings.output_dir).resolve()


def run_study(grid: Grid, settings: Settings) -> Path:
    """Run the study in a folder of its own, and return that.

    Raises a SettingsError before any work, if something set cannot be used.
    Raises a RunFailedError if the clients failed a round too often; what was finished stays, and
    can be resumed.
    """
    settings = with_run_name(settings)
    study, option = build(settings), f"run-name = {settings.run_name}"
    study.check()
    store = Store(study.root / settings.run_name, Layout.PATH)
    check_place("output-dir", store.root)
    check_folders(study.stages, store)
    with store.owned(option):
        write_atomically(store.root / SETTINGS, yaml.safe_dump(settings.to_config()).encode())
        logger.info("results go to %s", store.root)
        run(study, grid, store, run_name=settings.run_name)
        for key in {stage.features() for stage in study.stages} - {""}:
            remove_named(store.shared(key), FEATURE_FILE)
            with contextlib.suppress(OSError):  # It holds others, of settings before these.
                store.shared(key).parent.rmdir()
        write_results(study, store, store.root)
        return store.root
