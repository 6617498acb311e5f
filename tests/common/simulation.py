"""Run an app under Flower's simulation in a test, by the script that users run."""

from collections.abc import Mapping
from pathlib import Path

from coprefl_flwr.simulation import simulated

ROOT = Path(__file__).parents[2]


def simulate(app: Path, folder: Path, config: Mapping[str, object], nodes=2, workers=None):
    """Run `app` from `folder`, another one than the app's, so that what a FAB leaves out is missed.

    `workers` is how many processes Ray starts; by default as many as there are cores.
    """
    text = " ".join(f"{k}='{v}'" if isinstance(v, str) else f"{k}={v}" for k, v in config.items())
    environment = {"FEDERATION_CONFIG": f"init-args-num-cpus={workers}"} if workers else {}
    return simulated([app, str(nodes), "-c", text], folder, environment)
