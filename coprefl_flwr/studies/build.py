"""Settings become a study here alone; whoever runs or takes part in one gets it here."""

import functools
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr.serverapp import Grid

from coprefl_flwr.data.division import DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.progress import Progress, quiet_flower
from coprefl_flwr.files import expanded, remove_named
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, RANDOM, TASK, with_role
from coprefl_flwr.options import Value, declared
from coprefl_flwr.studies import populations
from coprefl_flwr.studies.architecture import BuiltArchitecture
from coprefl_flwr.studies.client_metrics import ClientMetrics
from coprefl_flwr.studies.identity import texts_of, values_of
from coprefl_flwr.studies.method import NO_METHODS, START, Method
from coprefl_flwr.studies.personal_data import FEATURE_FILE, PersonalSettings, personal_data
from coprefl_flwr.studies.personalised import Personalised
from coprefl_flwr.studies.phases import (
    Phase,
    TrainingSettings,
    check_all_used,
    one_phase,
    read_phase,
)
from coprefl_flwr.studies.populations import TaskSettings
from coprefl_flwr.studies.pretraining import Start
from coprefl_flwr.studies.results import write_results
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import RunSettings, check_folders, run_stage
from coprefl_flwr.studies.starts import Starts
from coprefl_flwr.studies.study import Study, StudyFolder, own_folder, with_run_name

logger = logging.getLogger("flwr.coprefl")

REFUSED = {
    "participants": "all clients of a personalised study take part",
    "momentum": "a personalised study trains by Adam",
    "client-wrapper": "clients are wrapped in a pre-training, not in a personalised study",
    "stop-at-loss": "its methods have no model of everybody to stop at",
    "clients": "how many a personalised study has is personal-clients",
}
"""Settings that a personalised study does not heed, and why."""

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


def starts(settings: Settings) -> Starts:
    """Return the study of starting models that settings describe."""
    _not_set(settings, declared(PersonalSettings), "set study = personalised to use it")
    run, data = settings.part(RunSettings), settings.part(DataSettings)
    tasks = settings.part(TaskSettings)
    training, short = settings.part(TrainingSettings), dict(settings.short)
    clients = populations.populations(data, tasks, run.seed)
    architecture = BuiltArchitecture(settings.model, settings.norm, clients.datasets, run.seed)
    settings.method.check([RANDOM, *with_role(PRETRAINING)])
    made = [start_of(one, training, dict(settings.short)) for one in settings.method]
    of_tasks = task_training(tasks, training)
    chosen = one_phase("task-method", tasks.task_method)
    task_phase, head_phase = read_phase("task-method", chosen, TASK, of_tasks, short), None
    if tasks.head not in NO_METHODS:
        head_phase = read_phase("head", one_phase("head", tasks.head), HEAD, of_tasks, short)
    phases = [phase for start in made for phase in start.phases]
    check_all_used(short, [*phases, task_phase, *([head_phase] if head_phase else [])])
    return Starts(
        clients,
        architecture,
        made,
        tasks,
        task_phase,
        run,
        ClientMetrics(run.client_metrics),
        _root(settings),
        settings.to_config(),
        settings.run_name or "run",
        head_phase=head_phase,
    )


def start_of(method: Method, training: TrainingSettings, short: Mapping[str, Value]) -> Start:
    """Return how a method makes a starting model; `training` and `short` as in `read_phase`."""
    name, label = str(method), method.portable
    if method.is_made_elsewhere:
        return Start(name, label, given=name)
    chosen = () if method == START else method.phases
    phases = [read_phase("method", one, PRETRAINING, training, short) for one in chosen]
    return Start(name, label, phases)


def task_training(tasks: TaskSettings, training: TrainingSettings) -> TrainingSettings:
    """Return how clients of the tasks train: plain SGD (CoPreFL, appendix B.3)."""
    return TrainingSettings(
        rounds=max(tasks.task_rounds, 1),
        participants=tasks.task_clients,
        local_steps=tasks.task_local_steps,
        local_epochs=tasks.task_local_epochs,
        batch_size=training.batch_size,
        learning_rate=tasks.task_learning_rate,
        precision=training.precision,
    )


def personalised(settings: Settings) -> Personalised:
    """Return the personalised study of settings; refuses those that such a study does not heed."""
    for key, why in REFUSED.items():
        _not_set(settings, [key], why)
    unheeded = [key for key in declared(DataSettings) if key not in HEEDED]
    _not_set(settings, unheeded, "a personalised study does not heed it")
    run, data = settings.part(RunSettings), settings.part(DataSettings)
    personal = settings.part(PersonalSettings)
    training, short = settings.part(TrainingSettings), dict(settings.short)
    settings.method.check(list(with_role(PERSONALISED)))
    phases = {str(one): _personal_phase(one, training, settings) for one in settings.method}
    check_all_used(short, list(phases.values()))
    return Personalised(
        personal,
        personal_data(personal, data, run.seed, training.precision),
        settings.method,
        phases,
        (settings.model, settings.norm),
        data.test_every,
        run,
        ClientMetrics(run.client_metrics),
        _root(settings),
        settings.to_config(),
        settings.run_name or "run",
    )


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
    study = build(settings)
    study.check()
    store = StudyFolder(study.root / settings.run_name)
    check_folders(study.stages, store)
    with own_folder(settings):
        logger.info("results go to %s", store.root)
        progress = Progress()
        progress.add((stage.kind, stage.rounds) for stage in study.stages)
        with quiet_flower():
            for stage in study.stages:
                run_stage(stage, grid, store, progress)
        remove_named(store.root / "features", FEATURE_FILE)
        write_results(study, store, store.root)
        return store.root
