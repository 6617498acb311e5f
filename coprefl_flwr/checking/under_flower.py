"""The same study under Flower's own simulation: a small app in a folder of its own."""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.numpy

import coprefl_flwr
from coprefl_flwr.checking import small_study
from coprefl_flwr.checking.checks import Case
from coprefl_flwr.checking.comparing import furthest
from coprefl_flwr.checking.lines import Line, failed, judged, skipped
from coprefl_flwr.checking.running import Job, folder_of
from coprefl_flwr.options import Value
from coprefl_flwr.studies.stage import read_result

SCRIPT = Path(__file__).parent / "simulate.sh"

NEAR = 1e-4
"""How far the two may be apart: two processes share the clients and round otherwise."""

LONGEST = 600.0
"""Seconds after which a simulation is taken to hang; on a busy machine one takes minutes."""

APP = """\
[project]
name = "checked-method"
version = "0.1.0"

[tool.flwr.app]
publisher = "checked"

[tool.flwr.app.components]
serverapp = "checked_app:server"
clientapp = "checked_app:client"

[tool.flwr.app.config]
"""

CODE = """\
from coprefl_flwr.client_app import app as client
from coprefl_flwr.server_app import app as server

__all__ = ["client", "server"]
"""


def flower(case: Case) -> Line:
    """Check that `flwr run` ends with what a run in one process ends with."""
    if case.registered:
        return skipped("flower", case.role, "a registered name is not known to other processes")
    if case.whole.error:
        return skipped("flower", case.role, "it does not run")
    job = case.job("flower")
    environment = {"PYTHONPATH": os.pathsep.join(_importable()), "CUDA_VISIBLE_DEVICES": ""}
    done = simulated([_app(case, job), "2"], case.folder, environment)
    if done.returncode:
        return failed("flower", case.role, f"`flwr run`: {_reason(done.stdout)}")
    off, where = furthest(_left(case.job("whole")), _left(job))
    apart = f"`flwr run` and one process are {off:.2g} apart"
    return judged(
        "flower",
        case.role,
        [f"{apart} ({where})"] if off > NEAR else [],
        "does it keep something in memory, or draw random numbers that are no function of seed, "
        "round and client?",
        apart,
    )


def _app(case: Case, job: Job) -> Path:
    """Write the app, whose settings are those of the small study, and return its folder."""
    outputs = job.folder.parent
    settings = small_study.settings_of(case.place, case.role, case.data, outputs)
    folder = case.folder / "app"
    folder.mkdir()
    config = [f"{key} = {_toml(value)}" for key, value in settings.to_config().items()]
    (folder / "pyproject.toml").write_text(APP + "\n".join(config) + "\n")
    (folder / "checked_app.py").write_text(CODE)
    return folder


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    quoted = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"' if isinstance(value, str) else str(value)


def simulated(
    arguments: Sequence[str | Path], folder: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run the script that users run in a folder, with more variables; it stops all it starts."""
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
        output, _ = process.communicate(timeout=LONGEST)
    except BaseException as error:
        os.kill(process.pid, signal.SIGTERM)  # The script then stops what it started.
        output, _ = process.communicate(timeout=60)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        output += f"\nit did not end within {LONGEST:g} s\n"
    return subprocess.CompletedProcess(process.args, process.returncode or 0, output)


def _importable() -> list[str]:
    """Return where this process imports from, but for Python's own folders."""
    own = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    package = str(Path(coprefl_flwr.__file__).parents[1])
    folders = [str(Path(folder or ".").resolve()) for folder in [package, *sys.path]]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if Path(folder).is_dir() and not any(Path(folder).is_relative_to(one) for one in own)
    ]


def _reason(output: str) -> str:
    """Return why a run failed: the last line that is Flower's log of it, and who was left out."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    others = [one for one in lines if not one.startswith(("simulate.sh:", "status of the run:"))]
    left_out = [one.partition(" is left out: ")[2] for one in others if " is left out: " in one]
    last = others[-1] if others else "it said nothing"
    return f"{last} ({left_out[0]})" if left_out else last


def _left(job: Job) -> dict[str, Any]:
    """Return what a run left in its folder: models, clients' states, and figures."""
    folder = folder_of(job)
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        for name, array in safetensors.numpy.load_file(path).items():
            found[f"{path.relative_to(folder)} {name}"] = array
    for kind, lines in read_result(folder).items():
        for number, line in enumerate(lines):
            numbers = {k: v for k, v in line.items() if isinstance(v, int | float)}
            own = {k: v for k, v in numbers.items() if not k.startswith("bytes-")}
            found |= {f"{name} of {kind} {number}": value for name, value in own.items()}
    return found
