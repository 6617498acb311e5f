"""Run a study by Flower's simulation from a program, by the script `simulate.sh`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import coprefl_flwr
from coprefl_flwr.options import Value

SCRIPT = Path(__file__).with_name("simulate.sh")

LONGEST_SIMULATION = 600.0
"""Seconds after which a simulation is stopped; on a busy machine a simulation takes minutes."""

_APP = """\
[project]
name = "study"
version = "0.1.0"

[tool.flwr.app]
publisher = "coprefl-flwr"

[tool.flwr.app.components]
serverapp = "coprefl_flwr.server_app:app"
clientapp = "coprefl_flwr.client_app:app"

[tool.flwr.app.config]
"""


def simulate_study(config: Mapping[str, Value], folder: Path, nodes: int) -> str:
    """Run a study with the settings `config` by `flwr run` on the CPU.

    Return the reason if the run failed, or "" if it succeeded. The app and Flower's files are
    written into `folder`. The simulation can import all modules that this process can import.
    """
    app = folder / "app"
    app.mkdir()
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    (app / "pyproject.toml").write_text(_APP + "\n".join(lines) + "\n")
    package = Path(coprefl_flwr.__file__).parents[1]
    importable = os.pathsep.join(map(os.path.abspath, [str(package), *sys.path]))
    environment = {"PYTHONPATH": importable, "CUDA_VISIBLE_DEVICES": ""}
    done = simulated([app, str(nodes)], folder, environment)
    return _reason(done.stdout) if done.returncode else ""


def simulated(
    arguments: Sequence[str | Path], folder: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run `simulate.sh` in `folder` with the extra variables `environment`; return its output.

    After LONGEST_SIMULATION seconds, or if this process is interrupted, the script is asked to stop
    all processes that it has started.
    """
    process = subprocess.Popen(
        ["bash", SCRIPT, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "SIMULATION_HOME": str(folder / "flwr-home"),
            "NO_COLOR": "1",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LONGEST_SIMULATION)
    except BaseException as error:
        os.kill(process.pid, signal.SIGTERM)  # The script then stops its processes.
        output, _ = process.communicate(timeout=60)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        output += f"\nthe run did not end within {LONGEST_SIMULATION:g} s\n"
    return subprocess.CompletedProcess(process.args, process.returncode or 0, output)


def _reason(output: str) -> str:
    """Return why a run failed: the last line of the log, and why the first client was left out."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    others = [line for line in lines if not line.startswith(("simulate.sh:", "status of the run:"))]
    left_out = [line.partition(" is left out: ")[2] for line in others if " is left out: " in line]
    last = others[-1] if others else "the run printed nothing"
    return f"{last} ({left_out[0]})" if left_out else last
