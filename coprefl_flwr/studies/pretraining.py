"""The stages of a study of starting models: the pre-training of one, and a task from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, MetricRecord

from coprefl_flwr.arrays import Arrays, from_record
from coprefl_flwr.data import Dataset, ImageDataset
from coprefl_flwr.learning import ServerData
from coprefl_flwr.methods import RANDOM
from coprefl_flwr.models import load_saved_model, save_model
from coprefl_flwr.rounds.progress import PRETRAINING_KIND, TASK_KIND
from coprefl_flwr.rounds.strategy import EvaluateFn
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.identity import contents, hash_of, values_of
from coprefl_flwr.studies.phases import folder_of
from coprefl_flwr.studies.populations import PRETRAINING, task_name
from coprefl_flwr.studies.stage import Stage, Store
from coprefl_flwr.studies.starting_model import StartingModel
from coprefl_flwr.studies.study import versions

if TYPE_CHECKING:
    from coprefl_flwr.studies.starts import Starts


class Pretraining(Stage):
    """The pre-training of a starting model, which it leaves."""

    kind, phase, measures = PRETRAINING_KIND, "pretraining", False

    def __init__(self, study: "Starts", model: StartingModel) -> None:
        path, name = f"starts/{folder_of(model.name)}", model.name
        super().__init__(study.run, f"pre-training {name}", path, name, name, model.rounds)
        self.study, self.model = study, model

    def strategy(self) -> RoundStrategy:
        """Make the strategy of all phases."""
        run = self.run.of_strategy(PRETRAINING, run_name=self.study.run_name)
        return self.model.strategy(self.study.server_data, **run)

    def initial(self, store: Store) -> Arrays:
        """Return the random weights that every pre-training starts from."""
        return self.study.first_arrays(self.model)

    def clients(self) -> Sequence[str]:
        """Return nothing: they are not evaluated."""
        return ()

    def keep(self, folder: Path, arrays: Arrays, strategy: RoundStrategy | None) -> dict[str, Any]:
        """Write the starting model, and how it was made."""
        save_model(folder, arrays, self.about())
        return {}

    def about(self) -> dict[str, Any]:
        """Return how the starting model was made, for its JSON."""
        datasets, model = self.study.populations.datasets, self.study.model
        return {
            "start": self.start,
            "phases": [phase.about() for phase in self.model.phases],
            "model": model.model,
            "norm": model.norm,
            "num-classes": self.study.num_classes,
            "input-shape": list(self.study.input_shape),
            "classes": [datasets.pretraining.classes[number] for number in datasets.classes[0]],
            **_pixels(datasets.pretraining),
            "settings": self.study.config,
            "versions": versions(),
        }

    def tester(self) -> EvaluateFn | None:
        """Return what tests the model on the dataset's own test part, when that is due."""
        every = self.study.data.test_every
        if not every:
            return None
        test = ServerData(self.study.network(), self.study.populations.test_samples())

        def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if server_round % every and server_round != self.rounds:
                return None
            found = test.evaluate(from_record(arrays))
            accuracy = 100 * found["correct"] / found["num-examples"]
            return MetricRecord({"accuracy": accuracy, "loss": found["loss"]})

        return measure

    def key(self) -> str:
        """Return the model's methods and a hash."""
        methods = [phase.name for phase in self.model.phases] or [RANDOM]
        return "-".join([*methods, hash_of(self._identity())])

    def _identity(self) -> dict[str, Any]:
        of_classes = ("downstream-classes", "pretraining-classes", "allow-class-overlap")
        of_tasks = ("task-dataset", "task-reserve", "downstream-domains")
        study, data = self.study, self.study.data
        pretraining, downstream = study.populations.datasets.classes
        found = values_of(data, "data-dir", *of_classes, *of_tasks) | values_of(study.model)
        if data.task_reserve:  # Then some samples are kept for the tasks.
            every = values_of(data)
            found |= {key: every[key] for key in of_tasks} | {"downstream": downstream}
        return found | {
            "seed": self.run.seed,
            "min-replies": self.run.min_replies,
            "classes": pretraining,
            "contents": contents([data.dataset, study.model.model]),
            # Grey images become colour where those of the tasks' dataset are.
            "input-shape": study.input_shape,
            "phases": [phase.identity() for phase in self.model.phases],
        }


class Task(Stage):
    """A downstream task from a starting model: what that is worth to each of its clients."""

    kind, phase = TASK_KIND, "downstream"

    def __init__(self, study: "Starts", number: int, made: Pretraining) -> None:
        path, method = f"tasks/{number}/{folder_of(made.start)}", study.tasks.task_method
        title, rounds = f"task {number} from {made.start}", study.tasks.task_rounds
        super().__init__(study.run, title, path, method, made.start, rounds)
        self.study, self.task, self.made = study, number, made
        self.population = task_name(number)

    def strategy(self) -> RoundStrategy:
        """Make the strategy of the tasks, in which all clients take part every round."""
        tasks, phase = self.study.tasks, self.study.task_phase
        run = self.run.of_strategy(
            self.population,
            run_name=self.study.run_name,
            # The comparison is paired: all clients answer, or the round is repeated.
            min_replies=tasks.task_clients,
            evaluate_every=tasks.task_evaluate_every or tasks.task_rounds,
        )
        return phase.method.strategy(phase.options, self.study.task_training(), **run)

    def initial(self, store: Store) -> Arrays:
        """Return the starting model, with the head that this task begins with."""
        arrays, _ = load_saved_model(store.folder(self.made))
        return self.study.task_model(self.population, arrays)

    def clients(self) -> Sequence[str]:
        """Return no domain for each client."""
        return [""] * self.study.tasks.task_clients

    def key(self) -> str:
        """Return the model's key, the task's number and a hash."""
        return f"{self.made.key()}/tasks/{self.task}-{hash_of(self._identity())}"

    def _identity(self) -> dict[str, Any]:
        study, data = self.study, self.study.data
        return values_of(study.tasks, "tasks", "task-method") | {
            "task-dataset": data.task_dataset,
            "task-reserve": data.task_reserve,
            "downstream-domains": data.downstream_domains,
            "batch-size": study.training.batch_size,
            "method": study.task_phase.identity(),
            "contents": contents([data.task_dataset]),
            "classes": study.populations.datasets.classes[1],
        }


def _pixels(source: Dataset) -> dict[str, list[float]]:
    """Return how the pixels of images were normalised; texts have none."""
    if not isinstance(source, ImageDataset):
        return {}
    return {"pixel-mean": source.mean.tolist(), "pixel-std": source.std.tolist()}
