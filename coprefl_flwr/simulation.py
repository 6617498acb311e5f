"""Flower's simulation from a program: what `examples/simulate.sh` checks first, and running it.

    python -m coprefl_flwr.simulation APP [flwr run options ...]

says which setting of `-c` this package's own app does not have, where Flower answers "[code: 15]
Invalid run configuration.", and whether a Ray cluster is gone, which Ray notices after 12 minutes.
Everything else that may be wrong is left to Flower and to the app.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import coprefl_flwr
from coprefl_flwr.errors import RunFailedError, SettingsError, unknown
from coprefl_flwr.federation.flower import check_cluster, flat, parse_run_config
from coprefl_flwr.options import Value

SCRIPT = Path(__file__).with_name("simulate.sh")

LONGEST_SIMULATION = 600.0
"""Seconds after which a simulation is taken to hang; on a busy machine it takes minutes."""

OURS = "coprefl_flwr.server_app:app"

_APP = """\
[project]
name = "study"
version = "0.1.0"

[tool.flwr.app]
publisher = "coprefl-flwr"

[tool.flwr.app.components]
serverapp = "study_app:server"
clientapp = "study_app:client"

[tool.flwr.app.config]
"""

_CODE = """\
from coprefl_flwr.client_app import app as client
from coprefl_flwr.server_app import app as server

__all__ = ["client", "server"]
"""


def simulate_study(config: Mapping[str, Value], folder: Path, nodes: int) -> str:
    """Run a study of these settings by `flwr run` on the CPU; return why it failed, "" if not.

    The app and Flower's files go into `folder`. Modules that this process can import can be
    imported there too.
    """
    app = folder / "app"
    app.mkdir()
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    (app / "pyproject.toml").write_text(_APP + "\n".join(lines) + "\n")
    (app / "study_app.py").write_text(_CODE)
    environment = {"PYTHONPATH": os.pathsep.join(_importable()), "CUDA_VISIBLE_DEVICES": ""}
    done = simulated([app, str(nodes)], folder, environment)
    return _reason(done.stdout) if done.returncode else ""


def simulated(
    arguments: Sequence[str | Path], folder: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run `simulate.sh` in a folder, with more variables; it stops all that it starts."""
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
        os.kill(process.pid, signal.SIGTERM)  # The script then stops what it started.
        output, _ = process.communicate(timeout=60)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        output += f"\nit did not end within {LONGEST_SIMULATION:g} s\n"
    return subprocess.CompletedProcess(process.args, process.returncode or 0, output)


def _importable() -> list[str]:
    """Return the folders that this process imports from, except Python's own."""
    own = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    package = str(Path(coprefl_flwr.__file__).parents[1])
    folders = [str(Path(folder or ".").resolve()) for folder in [package, *sys.path]]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if Path(folder).is_dir() and not any(Path(folder).is_relative_to(place) for place in own)
    ]


def _reason(output: str) -> str:
    """Return why a run failed: the last line of Flower's log, and why a client was left out."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    others = [line for line in lines if not line.startswith(("simulate.sh:", "status of the run:"))]
    left_out = [line.partition(" is left out: ")[2] for line in others if " is left out: " in line]
    last = others[-1] if others else "it printed nothing"
    return f"{last} ({left_out[0]})" if left_out else last


def check_names(app: Path, options: Sequence[str]) -> None:
    """Raise a SettingsError for a setting in `options` that this package's own app lacks."""
    try:
        app_config = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
            "flwr"
        ]
        if app_config["app"]["components"]["serverapp"] != OURS:
            return
        known, changes = flat(app_config["app"]["config"]), parse_run_config(_configs(options))
    except Exception:  # No app, or no TOML: Flower says which.
        return
    for key in changes:
        if key not in known:
            raise SettingsError(unknown("setting", key, known), key)


def _configs(options: Sequence[str]) -> list[str]:
    """Return what follows each -c or --run-config."""
    long = "--run-config"
    separate = [text for option, text in itertools.pairwise(options) if option in ("-c", long)]
    joined = [option for option in options if option.startswith(f"{long}=")]
    return separate + [option.removeprefix(f"{long}=") for option in joined]


def main(app: str, *options: str) -> int:
    """Say what is wrong in one line; return the exit status."""
    try:
        check_names(Path(app), options)
        check_cluster()
    except (SettingsError, RunFailedError) as error:
        print(f"simulate.sh: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
