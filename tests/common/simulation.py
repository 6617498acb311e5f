"""Run an app in Flower's simulation from a test, with the script that users run."""

from collections.abc import Mapping
from pathlib import Path

from coprefl_flwr.simulation import simulated

ROOT = Path(__file__).parents[2]


def simulate(app: Path, folder: Path, config: Mapping[str, object], nodes=2, workers=None):
    """Run `app` from a folder that is not the app's, so that files missing in the FAB are noticed.

    `workers` is the number of processes that Ray starts; the default is the number of cores.
    """
    text = " ".join(f"{k}='{v}'" if isinstance(v, str) else f"{k}={v}" for k, v in config.items())
    environment = {"FEDERATION_CONFIG": f"init-args-num-cpus={workers}"} if workers else {}
    return simulated([app, str(nodes), "-c", text], folder, environment)
