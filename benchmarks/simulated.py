"""Runs of the benchmark's app under `flwr run`, each on a separate SuperLink."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Peak, watched

ROOT = Path(__file__).parent.parent
WARM_UP = 2
"""First rounds of a run, which are not counted: Ray starts its workers, which import torch."""


@dataclass(frozen=True)
class Simulation:
    """A method under `flwr run`; `nodes` nodes host its clients."""

    method: str
    nodes: int

    def run(self, workload: str, rounds: int, peak: Peak) -> list[tuple[float, float]]:
        """Run `rounds` rounds after the warm-up; return their seconds of wall and of CPU time."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "seconds.json"
            command = [ROOT / "examples" / "simulate.sh", ROOT / "benchmarks" / "app"]
            process = subprocess.Popen(
                [*command, str(self.nodes), "-c", self._config(workload, rounds, report)],
                cwd=folder,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            try:
                with watched(process.pid, peak):
                    log, _ = process.communicate()
            finally:
                # The script stops all processes that it started.
                process.terminate()
                process.wait()
            if process.returncode:
                raise RuntimeError(f"flwr run failed; the end of its log:\n{log[-4000:]}")
            seconds = json.loads(report.read_text(encoding="utf-8"))
        return [(wall, cpu) for wall, cpu in seconds[WARM_UP:]]

    def _config(self, workload: str, rounds: int, report: Path) -> str:
        return (
            f"workload='{workload}' method='{self.method}' nodes={self.nodes} "
            f"rounds={rounds + WARM_UP} report='{report}' measured-by={os.getpid()}"
        )

    def _environment(self) -> dict[str, str]:
        """Return an environment in which all of Flower's processes find this package."""
        own = {key: value for key, value in os.environ.items() if key != "FLWR_HOME"}
        paths = [str(ROOT), *filter(None, [own.get("PYTHONPATH")])]
        executables = [str(Path(sys.executable).parent), own.get("PATH", "")]
        return own | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": os.pathsep.join(executables),
        }
