"""The settings of a study: one typed class, which joins the groups of settings.

Each group is a dataclass in the module that uses its settings. `flwr run` (run-config), recipes and
Python programs use the same settings. A key has hyphens, as in `run-name`. Run-config has no null:
the empty string means "not set". The options of a method are not settings of a study: they follow
the method's name, as in `method='coprefl:gamma=0.5'`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, TypeVar

from coprefl_flwr.data import DataSettings
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.learning.optimisers import Optimiser
from coprefl_flwr.methods import PERSONALISED
from coprefl_flwr.models.adapters import Adapter
from coprefl_flwr.named import Value
from coprefl_flwr.options import WORDS, Checked, check_declared, declared, option, same_option
from coprefl_flwr.studies.hashes import values_of
from coprefl_flwr.studies.known_methods import METHODS, Methods
from coprefl_flwr.studies.method import FRESH, Method
from coprefl_flwr.studies.personal_data import UNUSED, PersonalOptions
from coprefl_flwr.studies.stage import RunOptions
from coprefl_flwr.studies.task_data import Tasks
from coprefl_flwr.studies.tasks import TASK_RATE, Downstream
from coprefl_flwr.studies.training_options import TrainingOptions

Group = TypeVar("Group")

STARTS = "starts"


@dataclass(frozen=True, kw_only=True)
class FolderSettings(Checked):
    """The kind of study, its methods, the name of the run, and the folder of the results."""

    study: str = option(
        STARTS,
        "`starts`: initial models, compared on tasks; `personalised`: one model for each client",
        choices=(STARTS, PERSONALISED),
    )
    method: Methods = option(
        Methods.read("random fedavg coprefl"),
        "methods to compare, separated by spaces, with settings of their own as in "
        "`coprefl:gamma=0.25,rounds=20`; `cyclic+fedavg` runs the two one after the other",
    )
    run_name: str = option(
        "",
        "name of the run and of its folder, which the same name continues; not set: date and time",
        counts=False,
    )
    output_dir: str = option(
        "outputs",
        "folder of the runs' folders; relative to the folder where the SuperLink started",
        counts=False,
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Checked):
    """Settings of the network."""

    model: str = option(
        "femnist-cnn",
        "`resnet18`, `resnet8`, `lenet5`, `femnist-cnn`, `femnist-cnn-linear`, "
        "`fashion-mnist-cnn`, `char-lstm`, module:NAME, or `hf:FOLDER`, a model of transformers",
    )
    norm: str = option("batch", "normalisation of the ResNets", choices=("batch", "group"))
    trainable: str = option(
        "", "patterns of parameters to train, as `head.*, *.bias`; not set: as the network says"
    )
    adapter: Adapter | None = option(
        None,
        "adapters to train, with the last layer, as `lora:rank=8,alpha=16,targets=query&value`; "
        "`average` is `mean`, `ffa` or `exact`; not set: none",
        later=True,
    )


@dataclass(frozen=True, kw_only=True)
class TaskDataSettings(Checked):
    """Settings of the downstream tasks' data: numbers, classes, clients, partition, test split."""

    tasks: int = same_option(Tasks, "number", maximum=10**5)
    task_classes: int = same_option(Tasks, "classes")
    task_clients: int = option(
        10, "clients per task, |G|, all of whom take part in every round", minimum=1, maximum=10**6
    )
    task_partition: str = same_option(
        DataSettings, "partition", meaning="how a task's samples are distributed over its clients"
    )
    task_alpha: float = option(0.5, "concentration of a task's Dirichlet partition", above=0)


@dataclass(frozen=True, kw_only=True)
class TaskSettings(Checked):
    """Settings of the training, evaluation and measurements in the downstream tasks."""

    head: Method = option(
        FRESH,
        "last layer at the start of a task: `fresh` (random), `keep` (pre-trained, of the same "
        "classes), or computed from features in an extra round 0: `ncm`, `ridge`, `fedcgs`, "
        "`fedcof`, module:NAME",
    )
    diagnostics: bool = same_option(Downstream, "diagnostics")
    start_loss: bool = option(
        False,
        "measure each initial model's mean loss over the training samples of the pre-training",
    )
    measurements: str = option(
        "",
        "your own subclasses of `StartMeasurement`, module:NAME each, separated by spaces",
        takes=(WORDS,),
    )
    task_method: Method = option(
        Method.parse("fedavg"), "algorithm of the tasks, with its own settings as in `fedprox:mu=1`"
    )
    task_rounds: int = same_option(Downstream, "rounds")
    task_local_steps: int | None = option(
        None,
        "SGD steps of a client in a round of a task; not set: 5, unless `task-local-epochs` is set",
        unit="steps",
        minimum=1,
    )
    task_local_epochs: int | None = option(
        None, "passes of a client over its data in a round of a task", unit="epochs", minimum=1
    )
    task_learning_rate: float = option(TASK_RATE, "local learning rate in the tasks", above=0)
    task_optimiser: Optimiser | None = option(
        None, "optimiser in the tasks, as `optimiser`; not set: `sgd`", later=True
    )
    task_evaluate_every: int = same_option(Downstream, "evaluate_every")


OF_STARTS = (*UNUSED, *declared(TaskDataSettings), *declared(TaskSettings))
"""Keys of the settings of starting models and tasks, which a personalised study does not use."""


# The fields of the last base class come first.
@dataclass(frozen=True, kw_only=True)
class Settings(
    PersonalOptions,
    TaskSettings,
    TaskDataSettings,
    TrainingOptions,
    ModelSettings,
    DataSettings,
    RunOptions,
    FolderSettings,
):
    """All settings of a study. The module `build` turns them into a study."""

    def __post_init__(self) -> None:
        """Check each value and each group."""
        check_declared(self)
        for group in GROUPS:
            self.part(group)

    def part(self, group: type[Group]) -> Group:
        """Return one group of the settings, as an object of the group's class."""
        names = [field.name for field in fields(group)]  # type: ignore[arg-type]
        return group(**{name: getattr(self, name) for name in names})

    @property
    def draw(self) -> int:
        """The seed of clients and tasks: `data-seed`, or `seed` if it is not set."""
        return self.seed if self.data_seed is None else self.data_seed

    def check_used(self) -> None:
        """Raise a SettingsError if a setting is set that this kind of study does not use."""
        known = declared(Settings)
        for key in OF_STARTS if self.study == PERSONALISED else declared(PersonalOptions):
            value = getattr(self, known[key].name)
            if value != known[key].default:
                raise SettingsError(f"{key} = {value}: not used with study = {self.study}", key)

    def named(self) -> "Settings":
        """Return the settings with a run name; if the user set none, it is the date and time."""
        now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        return replace(self, run_name=self.run_name or now)

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> "Settings":
        """Make settings from hyphenated keys, as in run-config; raises `Option.read`'s errors."""
        for key in config:
            check_known(key)
        known = declared(cls)
        return cls(**{known[key].name: known[key].read(value) for key, value in config.items()})

    def to_config(self) -> dict[str, Value]:
        """Return the settings in the form of run-config: methods as strings, "" for not set."""
        return {key: _written(value) for key, value in values_of(self).items()}

    def changed(self) -> dict[str, Value]:
        """Return the settings that differ from their defaults and can change a result."""
        default, known = Settings().to_config(), declared(Settings)
        return {
            key: value
            for key, value in self.to_config().items()
            if value != default[key] and known[key].counts
        }

    def used(self) -> dict[str, Value]:
        """Return the settings that the study uses and that can change a result.

        A report lists methods, their options and seeds elsewhere, so they are left out.
        """
        elsewhere = {"method", "seed", "data-seed"}
        unused = set(declared(PersonalOptions) if self.study == STARTS else OF_STARTS)
        unused |= {key for key, option in declared(Settings).items() if not option.counts}
        values = self.to_config().items()
        return {key: value for key, value in values if key not in elsewhere | unused}


def _written(value: Any) -> Value:
    """Return a setting's value in the form of run-config: "" for None, methods as strings."""
    if value is None:
        return ""
    return str(value) if isinstance(value, Method | Methods) else value


GROUPS = tuple(reversed(Settings.__bases__))
"""The classes of the groups of settings, in the order of the fields."""


def check_known(key: str) -> None:
    """Raise a SettingsError if there is no setting with this key; it names a method's option."""
    if key in declared(Settings):
        return
    having = [name for name, method in METHODS.items() if key in method.declared_options]
    if having:
        example = f"write it after the method, as in {having[0]}:{key}=VALUE"
        raise SettingsError(f"unknown setting '{key}': {example}")
    raise SettingsError(unknown("setting", key, declared(Settings)))
