"""The stage that makes a starting model: the pre-training, or weights that were made elsewhere."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from coprefl_flwr import checksums, plugins
from coprefl_flwr.arrays import Arrays, from_record
from coprefl_flwr.data import ImageDataset
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.progress import PRETRAINING_KIND
from coprefl_flwr.federation.run import EvaluateFn
from coprefl_flwr.learning import ServerData
from coprefl_flwr.methods import RANDOM, ServerDataOf
from coprefl_flwr.models import model_arrays, save_model, with_fresh_head
from coprefl_flwr.models.origin import arrays_from, path_of
from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.report.learnt import Trouble, trouble_of
from coprefl_flwr.strategies import RoundReport, RoundStrategy, Schedule
from coprefl_flwr.studies import populations as clients_of
from coprefl_flwr.studies.identity import contents, hash_of, hash_of_file, values_of
from coprefl_flwr.studies.kept import read_about
from coprefl_flwr.studies.method import KEEP, folder_of
from coprefl_flwr.studies.phases import Phase
from coprefl_flwr.studies.stage import Stage, Store, read_result
from coprefl_flwr.studies.study import made_by

if TYPE_CHECKING:
    from coprefl_flwr.studies.starts import Starts


@dataclass(frozen=True, eq=False)
class Start:
    """How a starting model is made: by the phases of a method, or from weights that are given.

    Parameters
    ----------
    name : str
        As rows and reports call it: the text of its method.
    label : str
        The same without the folders of files.
    phases : Sequence[Phase]
        None of them where nothing is trained.
    given : str or nn.Module, optional
        Weights: a module's, or a place that `models.origin` reads.
    strategy : RoundStrategy, optional
        Runs all phases; not set: each phase's own, one after the other.
    """

    name: str
    label: str
    phases: Sequence[Phase] = ()
    given: str | nn.Module | None = None
    strategy: RoundStrategy | None = None


class Pretraining(Stage):
    """The pre-training of a starting model, which it leaves."""

    kind, phase, measures = PRETRAINING_KIND, "pretraining", False

    def __init__(self, study: "Starts", start: Start) -> None:
        self.study, self.how, self.phases = study, start, start.phases
        self.name = start.label
        for phase in self.phases:
            wanted, most = phase.training.participants, study.data.clients
            if wanted > most:
                raise SettingsError(
                    f"method, {start.name}: participants = {wanted}: must be at most "
                    f"clients = {most}"
                )
            phase.check_aggregation("method", wanted)
            try:
                phase.training.wrapped_clients(study.run.seed, most)
            except SettingsError as error:
                raise SettingsError(f"method, {start.name}: {error}", *error.keys) from error
        rounds = [phase.training.rounds for phase in self.phases]
        title, path = f"pre-training {self.name}", f"starts/{folder_of(self.name)}"
        super().__init__(study.run, title, path, start.name, sum(rounds))
        self.switch = rounds[0] if len(rounds) > 1 else 0

    @property
    def from_elsewhere(self) -> bool:
        """Whether its weights are given, and not made here."""
        return self.how.given is not None

    def phase_of(self, server_round: int) -> Phase:
        """Return the phase that a round belongs to."""
        ends = np.cumsum([phase.training.rounds for phase in self.phases[:-1]])
        return self.phases[int(np.searchsorted(ends, server_round))]

    def strategy(self) -> RoundStrategy:
        """Make the strategy of all phases."""
        if self.how.strategy:
            given = copy.deepcopy(self.how.strategy)
            given.population, given.clients = clients_of.PRETRAINING, self.study.data.clients
            given.evaluate_every = 0  # What a start is worth, tasks say.
            return given
        made = self.strategies()
        if len(made) == 1:
            return made[0]
        rounds = [phase.training.rounds for phase in self.phases]
        return Schedule(list(zip(made, rounds, strict=True)))

    def strategies(self, server: ServerDataOf | None = None) -> list[RoundStrategy]:
        """Make the strategy of each phase; `server` gives the study's own data, or others."""
        study = self.study
        run = self.run.of_strategy(
            clients_of.PRETRAINING, run_name=study.run_name, clients=study.data.clients
        )
        server, made = server or study.server_data, []
        for phase in self.phases:
            run["participants"] = phase.training.participants
            made.append(phase.strategy(server, **run))
        return made

    def initial(self, store: Store) -> Arrays:
        """Return what its first method begins with: the same random weights for every start."""
        return self.weights()

    def weights(self) -> Arrays:
        """Return the first weights: those that are given, or those of its first method.

        Raises a SettingsError if weights that are given are not the network's.
        """
        given = self.how.given
        if isinstance(given, nn.Module):
            return model_arrays(given)
        network = self.study.architecture.of_pretraining()
        if given is not None:
            return arrays_from(given, network, self.run.seed, needs_head=self._keeps_head)
        first = self.phases[0].algorithm.strategy_class if self.phases else RoundStrategy
        return first.initial(network)

    @property
    def _keeps_head(self) -> bool:
        return self.study.tasks.head == KEEP

    def check(self) -> None:
        """Raise a SettingsError if weights that are given are not the network's."""
        if self.how.given is None:
            return
        network = self.study.architecture.make()
        of_head = frozenset() if self._keeps_head else self.study.architecture.head
        try:
            with_fresh_head(self.weights(), network, of_head)
        except SettingsError as error:
            raise SettingsError(f"start {self.start!r}: {error}") from error

    def keep(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Write the starting model, and how it was made."""
        datasets, architecture = self.study.populations.datasets, self.study.architecture
        source, pixels = datasets.pretraining, {}
        if isinstance(source, ImageDataset):  # How they were normalised; texts have none.
            pixels = {"pixel-mean": source.mean.tolist(), "pixel-std": source.std.tolist()}
        about = {
            "start": self.start,
            "phases": [phase.about() for phase in self.phases],
            **architecture.about(),
            "num-classes": architecture.num_classes,
            "input-shape": list(architecture.input_shape),
            "classes": datasets.class_names,
            **pixels,
            "settings": self.study.config,
            **made_by(),
        }
        save_model(folder, arrays, about)
        return {}

    def tester(self) -> EvaluateFn | None:
        """Return what tests the model on the dataset's own test part, when that is due."""
        every, checked = self.study.data.test_every, self.run.stop_check_every
        wanted = self.run.stop_at_loss
        test = clients = None
        if every:
            module = self.study.architecture.make()
            test = ServerData(module, self.study.populations.test_samples())
        if wanted is not None:
            clients = self.study.server_data("clients")

        def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            model, last = from_record(arrays, copy=False), server_round == self.rounds
            found: dict[str, float] = {}
            if clients and server_round and (last or server_round % checked == 0):
                found[START_LOSS] = clients.evaluate(model)["loss"]
                last = last or self.reached(found[START_LOSS])
            if test and (last or server_round % every == 0):
                of_test = test.evaluate(model)
                found["accuracy"] = 100 * of_test["correct"] / of_test["num-examples"]
                found["loss"] = of_test["loss"]
            return MetricRecord(dict(found)) if found else None

        return measure if test or clients else None

    def trouble(self, folder: Path, start_loss: float | None = None) -> Trouble | None:
        """Return whether it diverged or did not learn; nothing of a start that is not trained."""
        if not self.phases:
            return None
        classes = read_about(folder, num_classes=int)["num-classes"]
        losses = {
            row["round"]: row["loss"]
            for row in read_result(folder)["rounds"]
            if {"round", "loss"} <= row.keys()
        }
        return self.trouble_of(losses, classes, start_loss)

    def trouble_of(
        self, losses: Mapping[int, float | None], classes: int, start_loss: float | None = None
    ) -> Trouble | None:
        """Return whether it diverged or did not learn, from the losses of its rounds."""
        last = self.phases[-1].algorithm.strategy_class
        before = self.rounds - self.phases[-1].training.rounds
        return trouble_of(
            [loss for number, loss in losses.items() if number > before],
            classes,
            start_loss=start_loss,
            chained=last.loss_of == "chain",
            comparable=last.loss_of != "more",
        )

    def at_once(self) -> int:
        """Return the participants of a round; in a chain they follow each other."""
        wide = [one for one in self.phases if one.algorithm.strategy_class.loss_of != "chain"]
        return max([1, *(phase.training.participants for phase in wide)])

    def chained(self, server_round: int) -> bool:
        """Tell whether the model learns from client to client in a round."""
        return self.phase_of(server_round).algorithm.strategy_class.loss_of == "chain"

    def loss(self, arrays: Arrays) -> float:
        """Return the mean loss over all training samples of all clients, in eval mode."""
        return self.study.server_data("clients").evaluate(arrays)["loss"]

    def reached(self, loss: float) -> bool:
        """Tell whether a loss is one to stop at."""
        return self.run.stop_at_loss is not None and loss <= self.run.stop_at_loss

    def ends(self, report: RoundReport) -> bool:
        """Tell whether the loss to stop at was reached in a round in which it was checked."""
        return self.reached(report.metrics.get(f"server-{START_LOSS}", math.inf))

    @property
    def key(self) -> str:
        """Return the model's methods and a hash."""
        of_classes = ("downstream-classes", "pretraining-classes", "allow-class-overlap")
        of_tasks = ("task-dataset", "task-reserve", "downstream-domains")
        study, data = self.study, self.study.data
        pretraining, downstream = study.populations.datasets.classes
        every = values_of(data)
        unheeded = ("data-dir", *of_classes, *of_tasks)
        found = {key: one for key, one in every.items() if key not in unheeded}
        found |= study.architecture.about()
        if data.task_reserve:  # Then some samples are kept for the tasks.
            found |= {key: every[key] for key in of_tasks} | {"downstream": downstream}
        found |= {
            "seed": self.run.seed,
            "min-replies": self.run.min_replies,
            "classes": pretraining,
            "contents": contents([data.dataset, data.partition, *study.architecture.files]),
            # Grey images become colour where those of the tasks' dataset are.
            "input-shape": study.architecture.input_shape,
            "phases": [phase.identity() for phase in self.phases],
        }
        if self.run.stop_at_loss is not None and self.phases:
            found |= {"stop-at-loss": self.run.stop_at_loss}
            found |= {"stop-check-every": self.run.stop_check_every}
        if isinstance(self.how.given, nn.Module):
            found["weights"] = checksums.of_arrays(self.weights())
            return f"{folder_of(self.name)}-{hash_of(found)}"
        if self.how.given is not None:
            found["origin"] = _origin(self.how.given)
            return f"{folder_of(Path(self.start).name)}-{hash_of(found)}"
        methods = [phase.name for phase in self.phases] or [RANDOM]
        return "-".join([*methods, hash_of(found)])


def _origin(name: str) -> dict[str, str]:
    """Return what weights that were made elsewhere depend on: a file's content, or a text."""
    path = path_of(name)
    if path is None:
        return {"name": name, "text": plugins.hash_at("start", name)}
    return {"content": hash_of_file(path) if path.is_file() else ""}
