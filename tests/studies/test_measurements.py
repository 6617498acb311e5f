"""A user's own metrics, and measurements of starting models: stored, reported and checked."""

import json
from dataclasses import replace

import pytest
import torch

from coprefl_flwr.client_app import app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.measurements import (
    ClientMetrics,
    example_of,
    own_measurements,
    own_metric,
)
from coprefl_flwr.studies.running import run_study
from tests.common.processes import new_process

WORST = """
from coprefl_flwr.studies.measurements import StartMeasurement


class Worst(StartMeasurement):
    phase = "worst-client"

    def measure(self, store):
        arrays, every = self.model(store), self.pretraining.clients.samples
        losses = [self.pretraining.evaluate(arrays, samples)["loss"] for samples in every]
        return {"worst-loss": max(losses), "clients": len(losses)}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "worst.py"
    path.write_text(WORST)
    return path


def run(settings):
    return run_study(LocalGrid(app, 1, settings.to_config()), build(settings))


def test_measurement_is_stored_and_reported(tiny_settings, file):
    settings = replace(tiny_settings, method="random fedavg", tasks=1, start_loss=True)
    settings = replace(settings, measurements=f"{file}:Worst")
    folder = run(settings)
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    measured = {row["start"]: row for row in rows if row["phase"] == "worst-client"}
    every = {row["start"]: row["start-loss"] for row in rows if row["phase"] == "start-loss"}
    assert set(measured) == {"random", "fedavg"}
    for start, row in measured.items():
        assert row["clients"] == settings.clients
        assert row["worst-loss"] > every[start]  # `every` has the mean over all clients.
    page = (folder / "report" / "report.html").read_text()
    assert "worst-loss" in page
    assert f"{measured['fedavg']['worst-loss']:.3f}" in page


def test_key_of_a_measurement_changes_with_its_code(tiny_settings, file):
    settings = replace(tiny_settings, method="random", tasks=0, measurements=f"{file}:Worst")
    before = build(settings).stages[-1].key
    assert build(replace(settings, run_name="other")).stages[-1].key == before
    file.write_text(WORST.replace("max(losses)", "2 * max(losses)"))
    new_process()
    assert build(settings).stages[-1].key != before


def test_object_that_is_no_measurement_is_refused(file):
    file.write_text('Worst = "a text"')
    with pytest.raises(SettingsError, match=r"must be a subclass of StartMeasurement"):
        own_measurements(f"{file}:Worst")


# ---- metrics of clients --------------------------------------------------------------------------


class MeanError:
    """A metric in the form of torchmetrics: an object counts what it has seen in all its calls."""

    higher_is_better = False

    def __init__(self, power=1):
        self.power, self.total, self.count = power, torch.zeros(()), 0

    def __call__(self, outputs, targets):
        """Return the mean of |error| ** power over all calls."""
        self.total += ((outputs - targets).abs() ** self.power).sum()
        self.count += targets.numel()
        return self.total / self.count


OUTPUTS, TARGETS = torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [1.0]])


def test_class_of_metrics_makes_a_fresh_object_for_each_client():
    """|1 - 0| and |4 - 1|: mean 2, mean square 5; an object that is kept would mix two clients."""
    metric = own_metric(f"{__name__}:MeanError:power=2")
    assert (metric.name, metric.better) == ("MeanError", "lower")
    assert [float(metric.fn(OUTPUTS, TARGETS)) for _ in range(2)] == [5, 5]
    assert float(metric.fn(OUTPUTS, OUTPUTS)) == 0
    assert float(own_metric(MeanError).fn(OUTPUTS, TARGETS)) == 2


def test_place_of_a_function_can_say_that_lower_is_better():
    place = "torch.nn.functional:l1_loss"
    assert own_metric(place).better == "higher"
    metric = own_metric(f"{place}:better=lower,reduction=sum")
    assert (metric.name, metric.better, float(metric.fn(OUTPUTS, TARGETS))) == (
        "l1_loss",
        "lower",
        4,
    )
    with pytest.raises(SettingsError, match=r"`better`: unknown value 'less'.*lower"):
        own_metric(f"{place}:better=less")


def test_metric_of_torchmetrics():
    metric = own_metric("torchmetrics:MeanAbsoluteError")
    assert (metric.better, float(metric.fn(OUTPUTS, TARGETS))) == ("lower", 2)


def refused(metric, outputs=OUTPUTS, targets=TARGETS):
    """Return the line with which a metric is refused."""
    with pytest.raises(SettingsError) as error:
        ClientMetrics([metric]).check(outputs, targets)
    (line,) = str(error.value).splitlines()
    return line


def test_metric_that_does_not_fit_is_refused_in_one_line():
    assert "MeanError:size=3 failed:" in refused(f"{__name__}:MeanError:size=3")
    assert "MeanError failed:" in refused(f"{__name__}:MeanError", targets=torch.zeros(3, 4))
    assert "pair failed: TypeError: float() argument must be" in refused(f"{__name__}:pair")


def pair(outputs, targets):
    """Return two numbers."""
    return 1.0, 2.0


def test_metrics_are_checked_on_outputs_of_a_task_unless_targets_are_classes():
    network = torch.nn.Linear(3, 2)

    class Twelve:
        def __init__(self, targets):
            self.targets = targets

        def batch(self, positions, device):
            return torch.ones(12, 3)[positions], self.targets[positions]

    outputs, targets = example_of(network, Twelve(torch.zeros(12, 2)), 5)
    assert outputs.shape == targets.shape == (8, 2)
    assert not outputs.requires_grad
    outputs, targets = example_of(network, Twelve(torch.zeros(12, dtype=torch.int64)), 5)
    assert outputs.shape == (10, 5)
    assert sorted(targets.tolist()) == sorted([*range(5)] * 2)
