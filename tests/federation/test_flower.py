"""What the package needs from Flower: whole runs with `flwr run`, and the functions in flower.py.

The tests start real SuperLinks and Ray; each run takes about half a minute.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from safetensors.numpy import load_file

from coprefl_flwr.client_app import app
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation.flower import (
    enter_run,
    name_message,
    plain_log,
    without_colours,
)
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import PERSONALISED, PRETRAINING
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import with_role
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from tests.common.simulation import ROOT, simulate

pytestmark = pytest.mark.ray

SMALL = {
    "method": "coprefl",
    "clients": 12,
    "downstream-classes": "90",
    "participants": 5,
    "rounds": 3,
    "local-steps": 3,
    "learning-rate": 0.05,
    "tasks": 0,
}


def test_flwr_run_and_the_local_grid_train_the_same_models(tmp_path):
    """The same study under Flower's simulation and in one process with 1, 2 and 4 nodes.

    The second method, the model and the data are a user's own files outside the package.
    """
    parts = Path(shutil.copytree(ROOT / "examples" / "own_parts", tmp_path / "parts"))
    parts_of_user = {
        "method": f"coprefl {parts / 'method.py'}:PartWay:step=0.8",
        "model": f"{parts / 'model.py'}:perceptron:width=8",
        "dataset": f"{parts / 'data.py'}:stripes",
        "downstream-classes": "3",
        "min-samples": 4,
    }
    config = {**SMALL, **parts_of_user, "output-dir": str(tmp_path), "run-name": "flower"}
    done = simulate(ROOT, tmp_path, config)
    assert done.returncode == 0, done.stdout
    assert "status of the run: finished:completed" in done.stdout
    assert "\x1b" not in done.stdout  # The output is not a terminal.
    for nodes in (1, 2, 4):
        name = f"local-{nodes}"
        chosen = Settings.from_config(config | {"run-name": name})
        run_study(LocalGrid(app, nodes, chosen.to_config()), build(chosen))
        starts = ("coprefl", "method.py-PartWay-step-0.8")
        assert_same_starts(tmp_path / "flower", tmp_path / name, starts)


def assert_same_starts(one, other, starts):
    """Compare the models of two runs."""
    for start in starts:
        arrays, _ = load_saved_model(one / "starts" / start)
        others, _ = load_saved_model(other / "starts" / start)
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            np.testing.assert_allclose(
                others[name], array, rtol=0, atol=1e-4, err_msg=f"{other}: {start}, {name}"
            )


@pytest.mark.slow
def test_every_method_agrees_under_flwr_run_and_on_the_local_grid(tmp_path):
    """One command runs all methods by name, and also two methods one after the other."""
    names = [*with_role(PRETRAINING), "cyclic:rounds=1+scaffold:rounds=2,average-decay=0.5"]
    config = {**SMALL, "method": " ".join(names), "rounds": 2, "local-steps": 2, "participants": 3}
    done = simulate(ROOT, tmp_path, {**config, "output-dir": str(tmp_path), "run-name": "flower"})
    assert done.returncode == 0, done.stdout
    config |= {"output-dir": str(tmp_path), "run-name": "local"}
    run_study(LocalGrid(app, 1, config), build(Settings.from_config(config)))
    folders = sorted(path.name for path in (tmp_path / "local" / "starts").iterdir())
    assert len(folders) == len(names)
    assert_same_starts(tmp_path / "flower", tmp_path / "local", folders)


def test_personalised_methods_agree_under_flwr_run_and_on_the_local_grid(tmp_path):
    """All personalised methods on the built-in glyphs: equal global arrays in both runs."""
    names = list(with_role(PERSONALISED))
    config = {
        "study": "personalised",
        "method": " ".join(names),
        "rounds": 2,
        "train-per-class": 2,
        "test-per-class": 4,
        "output-dir": str(tmp_path),
    }
    done = simulate(ROOT, tmp_path, {**config, "run-name": "flower"})
    assert done.returncode == 0, done.stdout
    assert re.search(r"FedPCL +\d+\.\d", done.stdout)
    assert "| FedPCL | " in (tmp_path / "flower" / "report" / "tables" / "table.md").read_text()
    config |= {"run-name": "local"}
    # As many threads as a worker with one CPU has: Adam's first steps have the same size however
    # small the gradient is, so they magnify the rounding differences between numbers of threads.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_study(LocalGrid(app, 1, config), build(Settings.from_config(config)))
    finally:
        torch.set_num_threads(threads)
    for name in names:
        flower, local = (tmp_path / run / "methods" / name for run in ("flower", "local"))
        assert (flower / "client-state").exists() == (local / "client-state").exists()
        if name == "solo":
            continue
        ours = load_file(local / "global.safetensors")
        for array, theirs in load_file(flower / "global.safetensors").items():
            np.testing.assert_allclose(
                theirs, ours[array], rtol=0, atol=1e-4, err_msg=f"{name}, {array}"
            )


def test_wrong_setting_is_the_last_line_of_the_log_and_leaves_no_files(tmp_path):
    done = simulate(ROOT, tmp_path, {**SMALL, "output-dir": str(tmp_path / "out"), "alpha": -0.5})
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    last_of_log, status, place_of_logs = lines[-3:]
    assert re.fullmatch(r"\s*alpha = -0\.5: must be above 0", last_of_log), done.stdout
    assert status == "status of the run: finished:failed"
    assert place_of_logs.startswith("simulate.sh: Flower's logs are in ")
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "out").exists()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in running.stdout


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"),
    [(True, "", True), (False, "", False), (True, "1", False)],
)
def test_log_has_colours_only_on_a_terminal(terminal, no_color, coloured, monkeypatch):
    """Flower colours log levels, and Ray colours prefixes, even if the output is not a terminal."""
    handlers = [
        handler for handler in logging.getLogger("flwr").handlers if hasattr(handler, "colored")
    ]
    for handler in handlers:
        monkeypatch.setattr(handler, "colored", True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.delenv("RAY_COLOR_PREFIX", raising=False)
    without_colours()
    record = logging.LogRecord("flwr", logging.INFO, "", 1, "a line", (), None)
    assert ["\x1b" in handler.format(record) for handler in handlers] == [coloured]
    assert os.environ.pop("RAY_COLOR_PREFIX", "1") == ("1" if coloured else "0")


def test_messages_can_be_created_and_named_outside_of_a_run():
    enter_run(run_id=1, node_id=1)
    message = Message(RecordDict(), dst_node_id=5, message_type="query")
    name_message(message, "17")
    assert message.metadata.message_id == "17"
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "17"


def flower_record(message="boom", error=None):
    """Return a record of an error in Flower's log, as changed by the log's filters."""
    flower = logging.getLogger("flwr")
    info = (type(error), error, None) if error else None
    record = flower.makeRecord("flwr", logging.ERROR, "/x/a.py", 1, message, (), info, "run")
    assert flower.filter(record)
    return record


def test_tracebacks_are_debug_messages_in_a_run():
    """Flower's simulation logs a traceback for every client that fails."""
    text = 'ray::run()\n  File "a.py", line 1, in x'
    with plain_log():
        assert flower_record(text).levelno == logging.DEBUG
        assert flower_record("one line").levelno == logging.ERROR
    assert flower_record(text).levelno == logging.ERROR


def raised(error):
    """Raise an error inside two nested `plain_log`, as in the package's ServerApp; return it."""
    with pytest.raises(type(error)), plain_log(), plain_log():
        raise error
    return error


def test_error_that_ends_a_run_is_the_last_line_without_a_traceback():
    caught, error = raised(RunFailedError("round 1: no")), raised(RunFailedError("round 2: no"))
    bug = raised(RuntimeError("bug"))
    assert flower_record(error=bug).exc_info is not None
    # An error that the user's code caught is not added to the last line.
    assert flower_record("Exit Code: 700").msg == "Exit Code: 700"
    assert flower_record(error=error).exc_info is None
    last = flower_record("Exit Code: 700").msg
    assert last == "Exit Code: 700\n\nround 2: no"
    assert flower_record(error=caught).exc_info is not None


def test_package_imports_only_documented_modules_of_flwr():
    """And, at one place, the legacy `flwr.client`."""
    found = []
    for file in (ROOT / "coprefl_flwr").rglob("*.py"):
        found += re.findall(r"(?:from|import) (flwr\.[\w.]+) import (.+)", file.read_text())
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
    assert {module for module, _ in found} == public | {"flwr.client"}
    legacy = [names for module, names in found if module == "flwr.client"]
    assert legacy == ["Client as Client", "NumPyClient as NumPyClient"]


WITHOUT = """
import logging, sys
import flwr.app
if "gone" in sys.argv:
    sys.modules["flwr.client"] = None  # Its import now fails.
    logging.getLogger("flwr").handlers.clear()
import coprefl_flwr as cp
from coprefl_flwr.clients import NumPyClient
from coprefl_flwr.federation.flower import without_colours
from torch import manual_seed, nn
without_colours()
manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(784, 4))
clients = cp.partition(cp.load_dataset("glyphs"), clients=4, only=range(4))
start = cp.pretrain(cp.CoPreFL(participants=2), network, clients, rounds=2, quiet=True)
print(NumPyClient.__module__, sum(p.double().sum().item() for p in start.parameters()))
methods = {name: getattr(NumPyClient(), name) for name in dir(NumPyClient) if name[0] != "_"}
given = {"get_properties": [{}], "get_parameters": [{}], "to_client": []}
answers = {name: call(*given.get(name, [[], {}])) for name, call in methods.items()}
print({name: answer for name, answer in answers.items() if name != "to_client"})
"""


def test_package_runs_without_names_of_flwr_that_may_go(monkeypatch):
    """Without `flwr.client` and its handler of the log: our client answers as Flower's does."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", WITHOUT, gone], cwd=ROOT, capture_output=True, text=True
        ).stdout.split(maxsplit=1)
        for gone in ("", "gone")
    ]
    (flowers, expected), (ours, found) = runs
    assert flowers.startswith("flwr.")
    assert ours == "coprefl_flwr.federation.flower"
    assert found == expected
    assert "evaluate" in found
    monkeypatch.delattr(sys.modules[Message.__module__], "TaskIdentity")
    enter_run(run_id=1, node_id=1)
