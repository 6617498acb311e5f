"""Run an app under Flower's simulation in a test, by the script that users run."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent


def simulate(app: Path, folder: Path, config: Mapping[str, object], nodes=2, workers=None):
    """Run `app` from `folder`, another one than the app's, so that what a FAB leaves out is missed.

    `workers` is how many processes Ray starts; by default as many as there are cores.
    """
    text = " ".join(f"{k}='{v}'" if isinstance(v, str) else f"{k}={v}" for k, v in config.items())
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SIMULATION_HOME": str(folder / "flwr-home"),
        "NO_COLOR": "1",
    }
    if workers:
        environment["FEDERATION_CONFIG"] = f"init-args-num-cpus={workers}"
    process = subprocess.Popen(
        [ROOT / "examples" / "simulate.sh", app, str(nodes), "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # The script then stops what it started.
        output, _ = process.communicate(timeout=30)
    return subprocess.CompletedProcess(process.args, process.returncode, output)
