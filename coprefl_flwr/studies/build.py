"""Build a study from settings. No other module converts settings into stages of a study."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.data import Dataset, Datasets, DataSettings, Samples
from coprefl_flwr.data.splits import SERVER_RESERVE
from coprefl_flwr.errors import SettingsError, about_settings
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, RANDOM, TASK
from coprefl_flwr.options import Value
from coprefl_flwr.studies.architecture import BuiltArchitecture
from coprefl_flwr.studies.hashes import content_hashes, values_of
from coprefl_flwr.studies.known_methods import in_role, with_role
from coprefl_flwr.studies.measurements import ClientMetrics, StartLoss, own_measurements
from coprefl_flwr.studies.method import KEEP, Method
from coprefl_flwr.studies.personal_data import PersonalData, PersonalOptions
from coprefl_flwr.studies.personalised import PersonalStage
from coprefl_flwr.studies.populations import Clients, Source
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.settings import Settings, TaskDataSettings, TaskSettings
from coprefl_flwr.studies.stage import RunOptions, Stage
from coprefl_flwr.studies.study import Study
from coprefl_flwr.studies.task_data import Tasks
from coprefl_flwr.studies.tasks import Downstream, comparison
from coprefl_flwr.studies.training_options import TrainingOptions


def build(settings: Settings) -> Study:
    """Return the study of these settings. A relative `output-dir` is below the current folder.

    A process builds a study once, and again if registered code that it names has changed. Its
    studies share datasets and clients.

    Raises a SettingsError for errors that are visible without loading data: an unknown method or
    option, a method that is named twice, or a setting that this kind of study does not use.
    """
    registered = str({name: text for name, (_, text) in plugins.REGISTERED.items()})
    # 1 and True are equal as options, but not as texts.
    return _built(settings, str(settings.method), Path.cwd(), registered)


@functools.lru_cache(maxsize=8)
def _built(settings: Settings, _: str, __: Path, registered: str) -> Study:
    settings.check_used()
    of_kind = _personalised if settings.study == PERSONALISED else _starts
    config, root = settings.to_config(), Path(settings.output_dir).expanduser().resolve()
    return Study(of_kind(settings, config, registered), config, root)


def _starts(settings: Settings, config: Mapping[str, Value], registered: str) -> Sequence[Stage]:
    """Return the stages of a study of starting models."""
    of_run, data = settings.part(RunOptions), settings.part(DataSettings)
    of_tasks, task_data = settings.part(TaskSettings), settings.part(TaskDataSettings)
    training = settings.part(TrainingOptions)
    settings.method.check([RANDOM, *with_role(PRETRAINING)])
    methods = [in_role("method", one, PRETRAINING, training) for one in settings.method]
    phases = [phase for method in methods for phase in method.trained]
    if data.server_reserve is None and any(phase.uses_server_data for phase in phases):
        data = replace(data, server_reserve=SERVER_RESERVE)
    clients, tasks = populations(data, task_data, settings.draw, registered)
    model = settings.model, settings.norm
    trained = settings.trainable, settings.adapter
    architecture = BuiltArchitecture(*model, clients.source, of_run.seed, *trained)
    starts = [
        Pretraining(
            method,
            clients,
            architecture,
            of_run,
            keeps_head=of_tasks.head == KEEP,
            test_every=data.test_every,
            loss=training.loss,
            settings=config,
        )
        for method in methods
    ]
    metrics = ClientMetrics(of_run.client_metrics)
    how = downstream(of_tasks, task_data.task_clients, training, metrics)
    measurements = own_measurements(of_tasks.measurements)
    if of_tasks.start_loss:
        measurements = [StartLoss, *measurements]
    return comparison(starts, tasks, how, measurements)


def _personalised(
    settings: Settings, config: Mapping[str, Value], registered: str
) -> Sequence[Stage]:
    """Return the stages of a personalised study."""
    of_run, data = settings.part(RunOptions), settings.part(DataSettings)
    training, personal = settings.part(TrainingOptions), settings.part(PersonalOptions)
    settings.method.check(list(with_role(PERSONALISED)))
    methods = [_personal_method(one, training, settings) for one in settings.method]
    clients = _personal_data(registered, personal, data, settings.draw, training.precision)
    model, metrics = (settings.model, settings.norm), ClientMetrics(of_run.client_metrics)
    return [
        PersonalStage(method, clients, model, data.test_every, of_run, metrics, config)
        for method in methods
    ]


SAMPLE_SETTINGS = ("dataset", "samples-per-class", "relabel", "image-size", "pretraining-domains")
TASK_SAMPLE_SETTINGS = ("task-dataset", "task-reserve", "downstream-domains")
"""Keys of the settings on which samples depend: of both phases, and further keys of the tasks."""


@dataclass(frozen=True, eq=False)
class DividedSource(Source):
    """The classes and samples of one phase: phase 0 is the pre-training, 1 the tasks."""

    datasets: Datasets
    phase: int

    @property
    def dataset(self) -> Dataset:  # type: ignore[override]
        """The dataset of the phase."""
        return self.datasets.loaded[self.phase]

    @property
    def classes(self) -> tuple[int, ...]:  # type: ignore[override]
        """The indices of the phase's classes in the dataset, ascending."""
        return self.datasets.classes[self.phase]

    def samples(self, classes: tuple[int, ...]) -> Samples:
        """Return all samples of these classes, except samples reserved for the other phase."""
        return self.datasets.samples(self.phase, classes)

    def identity(self) -> Mapping[str, Any]:
        """Return the datasets' settings, hashes of the datasets' files, and the classes."""
        settings, about = self.datasets.settings, dict[str, Any](seed=self.datasets.seed)
        files, keys = [settings.dataset], [*SAMPLE_SETTINGS]
        if self.phase or settings.task_reserve:  # Some samples are reserved for the tasks.
            files.append(settings.task_dataset)
            keys += TASK_SAMPLE_SETTINGS
            about["downstream"] = self.datasets.classes[1]
        values = values_of(settings)
        # The shape counts: grey images become colour images if the tasks' dataset has colour.
        about |= {"classes": self.classes, "shape": self.dataset.shape}
        return about | {key: values[key] for key in keys} | {"contents": content_hashes(files)}


@functools.lru_cache(maxsize=64)
def populations(
    data: DataSettings, tasks: TaskDataSettings, seed: int, _: str = ""
) -> tuple[Clients, Tasks]:
    """Return the pre-training's clients, and the tasks, drawn by `seed`; loaded at first use."""
    datasets = Datasets(data, seed)
    clients = Clients(
        DividedSource(datasets, 0),
        data,
        seed,
        server_reserve=data.server_reserve or 0.0,
        server_share=data.server_share,
        tested=bool(data.test_every),
    )
    spread_of_tasks = replace(
        data, clients=tasks.task_clients, partition=tasks.task_partition, alpha=tasks.task_alpha
    )
    downstream_tasks = Tasks(
        DividedSource(datasets, 1), spread_of_tasks, tasks.tasks, tasks.task_classes, seed=seed
    )
    return clients, downstream_tasks


def downstream(
    tasks: TaskSettings, clients: int, training: TrainingOptions, metrics: ClientMetrics
) -> Downstream:
    """Return how tasks with `clients` clients run; the default is SGD (CoPreFL, appendix B.3)."""
    with about_settings("task-local-epochs"):
        of_tasks = TrainingOptions(
            rounds=max(tasks.task_rounds, 1),
            participants=clients,
            local_steps=tasks.task_local_steps,
            local_epochs=tasks.task_local_epochs,
            batch_size=training.batch_size,
            learning_rate=tasks.task_learning_rate,
            precision=training.precision,
            loss=training.loss,
            optimiser=tasks.task_optimiser,
            accumulation=training.accumulation,
            augment=training.augment,
            together=training.together,
        )
    trained = in_role("task-method", tasks.task_method, TASK, of_tasks)
    head = in_role("head", tasks.head, HEAD, of_tasks)
    return Downstream(
        trained,
        tasks.task_rounds,
        head if head.role else None,
        keeps_head=tasks.head == KEEP,
        evaluate_every=tasks.task_evaluate_every,
        diagnostics=tasks.diagnostics,
        metrics=metrics,
    )


_personal_data = functools.lru_cache(maxsize=4)(lambda _, *parts: PersonalData(*parts))


def _personal_method(method: Method, training: TrainingOptions, settings: Settings) -> Method:
    """Return a personalised method in its role; a SettingsError if it does not fit the study."""
    method = in_role("method", method, PERSONALISED, training)
    if settings.from_scratch and method.client_class.network != "classifier":
        raise SettingsError(f"backbones = scratch: {method.label} trains on features", "backbones")
    return method
