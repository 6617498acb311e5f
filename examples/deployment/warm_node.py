"""A SuperNode whose messages wait less: it takes the options of `flower-supernode`.

    python warm_node.py --superlink fl.example.org:8443 ...

It changes three things, and uses for them functions of Flower that are not public:

- Flower looks for messages every 3 s, and for the reply of a ClientApp every 0.5 s. Here each wait
  is a tenth of the time since the last message, at least 0.1 s, and at most Flower's.
- If a part of a message is not there yet, Flower asks for it again after 1 s, then 2 s, and so on.
  Here it begins with 0.05 s and ends with 0.25 s.
- Flower starts a Python for every message, which imports PyTorch. Here one process imports what
  IMPORTS lists, and is forked for every message. As before, each message has a separate process, so
  nothing that an app keeps in memory is there for the next message.
"""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

# Add what your app imports, but nothing that starts threads or uses a GPU when it is imported.
IMPORTS = ["torch", "coprefl_flwr.clients.torch_client", "coprefl_flwr.clients.coprefl"]


class Waits:
    """Flower's waits, each cut to a tenth of the time since the last message."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` or less."""
        if seconds < 1:  # Flower waits 0.5 s for a reply, so there is a message.
            self.last = time.monotonic()
        time.sleep(min(seconds, max(0.1, (time.monotonic() - self.last) / 10)))


def ask_again_soon() -> None:
    """Ask for a missing part of a message again after 0.05 s, 0.1 s, 0.2 s, 0.25 s and so on."""
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    pull_objects.__kwdefaults__.update(initial_backoff=0.05, backoff_cap=0.25)


def run_supernode() -> None:
    """Run `flower-supernode`, which starts this file instead of `flower-superexec`."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, *command])

    ask_again_soon()
    module: Any = start_client_internal
    module.time, module.subprocess = Waits(), SimpleNamespace(Popen=start)
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")
    flower_supernode()


def run_superexec() -> None:
    """Run `flower-superexec` with the imports done; it forks instead of starting a Python."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import SubprocessExecutor
    from flwr.supercore.superexec.executor.types import LaunchResult
    from flwr.supernode.runtime import run_clientapp  # noqa: F401

    for name in IMPORTS:
        importlib.import_module(name)
    ask_again_soon()
    start = SubprocessExecutor.launch

    def launch(self: SubprocessExecutor, spec: Any) -> LaunchResult:
        if spec.task_type != TaskType.CLIENT_APP:
            return start(self, spec)
        if os.fork() == 0:
            run_client(spec)
        return LaunchResult.accepted()

    SubprocessExecutor.launch = launch  # type: ignore[method-assign]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No process waits for the forked ones.
    flower_superexec()


def run_client(spec: Any) -> NoReturn:
    """Do what `flwr-clientapp` does, in a forked process; then end the process."""
    from flwr.supercore.exit import exit_handler
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    status: object = 1
    try:
        path = spec.root_certificates_path
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        exit_handler.registered_exit_handlers.clear()  # Those of `flower-superexec`.
        # As in a new process; Python itself does this for `random`, and torch has a fixed seed.
        np.random.seed()  # noqa: NPY002
        run_clientapp(
            spec.runtime_api_address,
            spec.token,
            spec.insecure,
            path and Path(path).read_bytes(),
            spec.parent_pid,
            spec.runtime_dependency_install,
        )
    except SystemExit as end:
        status = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["flower-superexec"]:
        del sys.argv[0]
        run_superexec()
    else:
        run_supernode()
