"""Run Flower's simulation from a program, and check the arguments of `examples/simulate.sh`.

The script first calls

    python -m coprefl_flwr.simulation APP [flwr run options ...]

which reports two mistakes. First, a setting in `-c` that this package's app does not have: Flower's
message is only "[code: 15] Invalid run configuration.". Second, a Ray cluster that does not run any
more, which Ray reports only after 12 minutes. All other mistakes are reported by Flower or the app.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import coprefl_flwr
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.federation.flower import check_cluster, flat, parse_run_config
from coprefl_flwr.options import Value

SCRIPT = Path(__file__).with_name("simulate.sh")

LONGEST_SIMULATION = 600.0
"""Seconds after which a simulation is stopped; on a busy machine a simulation takes minutes."""

OURS = "coprefl_flwr.server_app:app"

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


def check_names(app: Path, options: Sequence[str]) -> None:
    """Raise a SettingsError for a setting in `options` that does not exist in this package's app.

    `options` are the options of `flwr run`. Other apps are not checked.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-c", "--run-config", action="append", default=[])
    try:
        text = (app / "pyproject.toml").read_text(encoding="utf-8")
        app_config = tomllib.loads(text)["tool"]["flwr"]["app"]
        if app_config["components"]["serverapp"] != OURS:
            return
        given, _ = parser.parse_known_args(options)
        known, changes = flat(app_config["config"]), parse_run_config(given.run_config)
    except Exception:  # Flower reports a missing app or invalid TOML.
        return
    for key in changes:
        if key not in known:
            from coprefl_flwr.studies.settings import check_known  # Its imports take seconds.

            check_known(key)


def main(app: str, *options: str) -> int:
    """Check an app, its options and the Ray cluster; print an error and return the exit status."""
    try:
        check_names(Path(app), options)
        check_cluster()
    except (SettingsError, RunFailedError) as error:
        print(f"simulate.sh: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
