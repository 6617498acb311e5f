"""The packages that are measured, and where each is installed."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".peers"
"""The folder of packages that this package does not depend on."""


@dataclass(frozen=True)
class Peer:
    """A package: the name of its module in `programs`, its title, and its name on the registry.

    `requirement` is installed into a separate environment; "" if this environment has the package.
    `best` is the mode in which the package runs. `lacks` describes what it does not do in the
    measured time.
    """

    name: str
    title: str
    package: str
    requirement: str
    best: str
    lacks: str

    @property
    def python(self) -> Path:
        """The Python that has the package."""
        own = FOLDER / self.name / "bin" / "python"
        return own if self.requirement else Path(sys.executable)

    def installed(self) -> bool:
        """Whether the package can be measured here."""
        return (FOLDER / self.name / "installed").exists() if self.requirement else True

    def install(self) -> None:
        """Install the package into a separate environment, which uses this one's PyTorch."""
        folder = FOLDER / self.name
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        own = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        here = sysconfig.get_paths()["purelib"]
        # pip does not install again the packages that it finds there.
        (folder / own / "this_environment.pth").write_text(here + "\n", encoding="utf-8")
        pip = [str(self.python), "-m", "pip", "install", "--quiet", self.requirement]
        subprocess.run(pip, check=True)
        (folder / "installed").touch()

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a measurement: one thread, this checkout's code."""
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        own = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE": "0"}
        return {**os.environ, **own, "PYTHONPATH": paths}


_ALL = (
    Peer(
        "plain",
        "plain PyTorch loop",
        "torch",
        "",
        best="one model in one process",
        lacks="It checks nothing, and nothing of a run survives its process.",
    ),
    Peer(
        "coprefl",
        "coprefl-flwr",
        "coprefl-flwr",
        "",
        best="the local grid, one node that hosts all clients; it computes clients of a small "
        "linear network as one",
        lacks="No checkpoint is written in this time. The numbers of every client are checked, "
        "and a client that fails costs no other its work.",
    ),
    Peer(
        "fedlab",
        "FedLab",
        "fedlab",
        "fedlab==1.3.0",
        best="its standalone pipeline, with batches cut from tensors instead of a DataLoader",
        lacks="It checks no client's numbers, ends if a client fails, and cannot resume a run. "
        "Its averages leave out buffers (BatchNorm's statistics).",
    ),
    Peer(
        "pfl",
        "pfl",
        "pfl",
        "pfl==0.6.0",
        best="its simulated backend in one process",
        lacks="It checks no client's numbers and ends if a client fails. Batches are in the same "
        "order every time. It can resume from checkpoints, which were off.",
    ),
    Peer(
        "fluke",
        "fluke",
        "fluke-fl",
        "fluke-fl==0.8.1",
        best="everything in memory, clients that keep no model (persistency false)",
        lacks="It checks no client's numbers and ends if a client fails. It can save and load a "
        "federation, which was off.",
    ),
    Peer(
        "flower",
        "Flower's FedAvg",
        "flwr",
        "",
        best="its simulation on Ray, two workers of one core",
        lacks="It checks no client's numbers, and cannot resume a run. A client that fails is left "
        "out. Clients are separate from the server, as they are in a deployment.",
    ),
)
PEERS = {peer.name: peer for peer in _ALL}
