"""The settings of downstream tasks."""

from dataclasses import dataclass

from coprefl_flwr.data import SCHEMES
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import WORDS, check_declared, option
from coprefl_flwr.studies.method import FRESH, KEEP, Method

TASK_RATE = 0.01
"""The default local learning rate in tasks."""


@dataclass(frozen=True, kw_only=True)
class TaskDataSettings:
    """The data of the downstream tasks, and of their clients."""

    tasks: int = option(3, "downstream tasks X; 0 ends after the pre-training", minimum=0)
    task_classes: int = option(5, "classes a task draws", minimum=2)
    task_clients: int = option(10, "clients of a task, |G|, all of whom take part", minimum=1)
    task_partition: str = option(
        "dirichlet",
        "how a task's samples are spread over its clients",
        choices=SCHEMES,
        own="partition",
    )
    task_alpha: float = option(0.5, "concentration of a task's Dirichlet partition", above=0)
    task_train_fraction: float = option(
        0.8,
        "part of a task client's samples to train on; it is tested on the rest",
        above=0,
        maximum=0.99,
    )

    def __post_init__(self) -> None:
        """Check each value."""
        check_declared(self)


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """How the clients of the downstream tasks train."""

    head: Method = option(
        FRESH,
        "last layer a task begins with: `fresh`, `keep` the pre-trained one, where a task's "
        "classes are the pre-training's, or one computed from the clients' features in round 0, "
        "before the others: `ncm`, `ridge` or module:NAME, with settings of its own",
    )
    head_layer: str = option(
        "", "name of the last linear layer, for such a head; not set: the `nn.Linear` called last"
    )
    diagnostics: bool = option(
        False,
        "measure at each start what explains its worth in a task: diversity of the clients' "
        "gradients, top eigenvalue of the Hessian, barrier between clients' models, linear probe",
    )
    start_loss: bool = option(
        False,
        "measure each start's mean loss over all training samples of all pre-training clients",
    )
    measurements: str = option(
        "",
        "measurements of your own at each start, module:NAME each, separated by spaces: classes of "
        "stages that are made of the start's pre-training",
        takes=(WORDS,),
    )
    task_method: Method = option(
        Method.parse("fedavg"),
        "algorithm of the tasks, with settings of its own as in `fedprox:mu=1`",
    )
    task_rounds: int = option(
        50, "rounds R of a task; 0: none but that of its head", unit="rounds", minimum=0
    )
    task_local_steps: int | None = option(
        None, "as local-steps, in the tasks", unit="steps", minimum=1
    )
    task_local_epochs: int | None = option(
        None, "as local-epochs, in the tasks", unit="epochs", minimum=1
    )
    task_learning_rate: float = option(TASK_RATE, "local learning rate in the tasks", above=0)
    task_evaluate_every: int = option(
        1, "rounds between evaluations in a task; 0: after the last only", unit="rounds", minimum=0
    )

    def __post_init__(self) -> None:
        """Check each value, then that steps or epochs are set, not both."""
        check_declared(self)
        if not self.task_rounds and self.head in (FRESH, KEEP):
            problem = f"task-rounds = 0: head = {self.head} needs rounds; ncm and ridge do not"
            raise SettingsError(problem, "task-rounds", "head")
        steps, epochs = self.task_local_steps, self.task_local_epochs
        if steps is not None and epochs is not None:
            both = f"task-local-steps = {steps} and task-local-epochs = {epochs}"
            raise SettingsError(f"{both}: set one of them, not both", "task-local-epochs")
