"""The deployment example with real SuperLinks and SuperNodes.

Flower polls every few seconds and starts a process per message, so these tests take minutes.
`pytest` leaves them out; `make deployment-test` runs them.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from coprefl_flwr.grids import LocalGrid
from tests.common.simulation import ROOT

EXAMPLE = ROOT / "examples" / "deployment"

pytestmark = pytest.mark.deployment


class Deployment:
    """A running `run.sh`, with a separate home folder."""

    def __init__(self, tmp_path, mode, nodes, *options, example=EXAMPLE):
        self.folder = tmp_path / "deployment"
        self.home = tmp_path / "home"
        self.home.mkdir()
        self.log = tmp_path / "run.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [example / "run.sh", mode, self.folder, str(nodes), *options],
                cwd=tmp_path,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def environment(self):
        bin_folder = Path(sys.executable).parent
        path = f"{bin_folder}:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "HOME": str(self.home), "NO_COLOR": "1"}

    def node_log(self, node):
        path = self.folder / "logs" / f"node-{node}.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, condition, what, seconds=300):
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"run.sh ended:\n{self.log.read_text()}"
            assert time.monotonic() < end, f"{what}: not within {seconds} s"
            time.sleep(0.1)

    def finish(self, seconds=600):
        """Wait for the end and return the exit code and the output."""
        return self.process.wait(seconds), self.log.read_text()

    def left_running(self):
        """Return the command lines of processes that were started in this deployment."""
        mark = f"TMPDIR={self.folder}/tmp".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" "))
            except OSError:  # The process has ended, or belongs to another user.
                continue
        return found

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)


@pytest.fixture(scope="module")
def tls_run(tmp_path_factory):
    """A finished run with TLS, two nodes and two rounds; an unregistered node tried to join."""
    deployment = Deployment(tmp_path_factory.mktemp("tls"), "tls", 2, "-c", "rounds=2 seed=3")
    try:
        deployment.wait_for(lambda: "[ROUND 1/2]" in deployment.log.read_text(), "round 1")
        deployment.stranger = join_unregistered(deployment)
        deployment.finish()
        yield deployment
    finally:
        deployment.stop()


def join_unregistered(deployment):
    """Start a node whose key was not registered; return its exit code and its log."""
    keys = deployment.folder / "keys"
    key = keys / "stranger"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key], check=True
    )
    config = (deployment.folder / "flwr" / "user" / "config.toml").read_text()
    address = tomllib.loads(config)["superlink"]["deployment"]["address"]
    log = deployment.folder / "logs" / "stranger.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["flower-supernode", "--root-certificates", keys / "ca.crt", "--superlink", address,
             "--auth-supernode-private-key", key, "--port", str(free_port()),
             "--node-config", "partition-id=9"],
            env=deployment.environment() | {"FLWR_HOME": deployment.folder / "flwr" / "stranger"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        return process.wait(120), log.read_text()
    finally:
        # If Flower's SuperNode is refused, its SuperExec continues to run.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def local_weights(folder, data, monkeypatch, rounds, seed, nodes, **more):
    """Run the same app on a `LocalGrid` and return the model that it stores."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from deployment_app.client_app import app as client_app
    from deployment_app.server_app import app as server_app

    def on_node(message, context):
        partition = context.node_config["partition-id"]
        context.node_config["data-path"] = str(data / f"node-{partition}.npz")
        return client_app(message, context)

    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "config"
    ]
    config |= {"output-dir": str(folder), "rounds": rounds, "seed": seed}
    config |= {"min-available-nodes": nodes, "participants": nodes}
    config |= {name.replace("_", "-"): value for name, value in more.items()}
    grid = LocalGrid(on_node, nodes=nodes, run_config=config)
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    return load_file(folder / "deployment" / "model.safetensors")


def test_two_nodes_with_tls_have_the_weights_of_the_local_grid(tls_run, tmp_path, monkeypatch):
    code, log = tls_run.finish()
    assert code == 0, log
    assert "status of the run: finished:completed" in log
    assert "left out" not in log
    deployed = load_file(tls_run.folder / "outputs" / "deployment" / "model.safetensors")
    data = tls_run.folder / "data"
    expected = local_weights(tmp_path, data, monkeypatch, rounds=2, seed=3, nodes=2)
    start = local_start(seed=3)
    assert deployed.keys() == expected.keys() == start.keys()
    for name, weights in expected.items():
        torch.testing.assert_close(deployed[name], weights, rtol=0, atol=1e-4)
    # The comparison has a meaning only if two rounds change far more than the tolerance.
    assert max(float((expected[n] - start[n]).abs().max()) for n in start) > 1e-3


def local_start(seed):
    from deployment_app.task import initial_model

    return initial_model(seed).state_dict()


def test_example_leaves_no_process_and_no_file(tls_run):
    tls_run.finish()
    assert tls_run.left_running() == []
    assert list(tls_run.home.rglob("*")) == []
    assert {path.name for path in tls_run.folder.parent.iterdir()} == {
        "deployment", "home", "run.log",
    }  # fmt: skip


def test_unregistered_node_is_refused(tls_run):
    code, log = tls_run.stranger
    assert code != 0
    assert "Failed to activate SuperNode" in log
    assert "SuperNode ID" not in log


def test_warm_nodes_have_the_weights_of_the_local_grid(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPERNODE", f"{sys.executable} {EXAMPLE / 'warm_node.py'}")
    deployment = Deployment(tmp_path, "tls", 2, "-c", "rounds=2 seed=3")
    try:
        code, log = deployment.finish()
    finally:
        deployment.stop()
    assert code == 0, log
    assert "left out" not in log
    assert all("SuperNode terminated" in deployment.node_log(node) for node in range(2))
    deployed = load_file(deployment.folder / "outputs" / "deployment" / "model.safetensors")
    data = deployment.folder / "data"
    expected = local_weights(tmp_path, data, monkeypatch, rounds=2, seed=3, nodes=2)
    for name, weights in expected.items():
        torch.testing.assert_close(deployed[name], weights, rtol=0, atol=1e-4)
    assert deployment.left_running() == []


def test_run_continues_without_a_node_killed_in_the_first_round(tmp_path):
    deployment = Deployment(tmp_path, "insecure", 3, "-c", "rounds=2")
    try:
        deployment.wait_for(
            lambda: "Receiving: train message" in deployment.node_log(2), "training on node 2"
        )
        os.killpg(int((deployment.folder / "pids" / "node-2").read_text()), signal.SIGKILL)
        code, log = deployment.finish()
    finally:
        deployment.stop()
    assert code == 0, log
    assert "[ROUND 2/2]" in log
    lines = [line for line in log.splitlines() if "left out" in line]
    assert len(lines) == 1, log
    node = deployment.node_log(2).split("SuperNode ID: ")[1].split()[0]
    assert f"client 2 on node {node} is left out:" in lines[0]
    assert deployment.left_running() == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["secure", "new"], "mode 'secure' is not known"),
        (["tls", "."], ". is there already"),
        (["tls", "new", "none"], "'none' is no number of nodes"),
    ],
)
def test_wrong_arguments_of_the_script_are_refused(tmp_path, arguments, reason):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        [EXAMPLE / "run.sh", *arguments],
        cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.startswith("run.sh: ")
    assert reason in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
