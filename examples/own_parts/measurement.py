"""Your own kind of stage: a starting model's accuracy on every pre-training client, untrained.

In a recipe, or for `flwr run`: measurements: "measurement.py:OnEveryClient".
In Python: `on_every_client(model, clients)`.
"""

from coprefl_flwr.studies.architecture import Architecture, copies_of
from coprefl_flwr.studies.measurements import StartMeasurement
from coprefl_flwr.studies.method import START
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.running import finished
from coprefl_flwr.studies.stage import RunOptions
from coprefl_flwr.studies.store import Layout
from coprefl_flwr.studies.study import Study


class OnEveryClient(StartMeasurement):
    """Evaluates a starting model on the samples of each client of its pre-training."""

    phase = "on-every-client"

    def measure(self, store):
        """Return the clients' lowest, mean and highest accuracy, in percent."""
        arrays, accuracies = self.model(store), []
        for samples in self.pretraining.clients.samples:
            result = self.pretraining.evaluate(arrays, samples)
            accuracies.append(100 * result["correct"] / result["num-examples"])
        mean = sum(accuracies) / len(accuracies)
        return {"lowest": min(accuracies), "mean": mean, "highest": max(accuracies)}


def on_every_client(model, clients):
    """Return these numbers of a network, on the clients that `cp.partition` returns."""
    architecture = Architecture("model", copies_of(model), clients.source, clients.seed)
    run = RunOptions()
    start = Pretraining(START, clients, architecture, run, name="model", weights=model)
    measurement = OnEveryClient(start)
    study = Study([start, measurement])
    with finished(study, None, Layout.PATH, quiet=True) as store:
        (row,) = store.result(measurement)["rounds"]
    return {name: row[name] for name in ("lowest", "mean", "highest")}
