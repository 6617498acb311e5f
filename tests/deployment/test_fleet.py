"""The files that start a fleet: compose.yaml, systemd units, scripts of a cluster's jobs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from flwr.superlink.cli import flower_superlink
from flwr.supernode.cli import flower_supernode

from tests.common.simulation import ROOT
from tests.deployment.test_deployment import free_port

EXAMPLE = ROOT / "examples" / "deployment"
CLUSTER = ROOT / "examples" / "cluster"
COMPOSE = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
UNITS = sorted((EXAMPLE / "systemd").glob("*.service"))
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def parsed(command):
    """Return the options of a command of Flower, read by its own parser."""
    name, *arguments = command
    if name.endswith("flower-supernode"):
        module = sys.modules[flower_supernode.__module__]
        return module._parse_args_run_supernode().parse_args(arguments)
    assert name.endswith("flower-superlink")
    return (
        sys.modules[flower_superlink.__module__]._parse_args_run_superlink().parse_args(arguments)
    )


def mounts(service):
    """Return {folder in the container: volume} of a service."""
    named = (volume.split(":") for volume in SERVICES[service].get("volumes", []))
    return {folder: volume for volume, folder, *_ in named}


NODES = [name for name in SERVICES if name.startswith("node-")]


def test_services_name_what_there_is():
    assert COMPOSE.keys() == {"name", "x-program", "x-node", "services", "volumes"}
    conditions = {"service_completed_successfully": "command", "service_healthy": "healthcheck"}
    for name, service in SERVICES.items():
        assert set(mounts(name).values()) <= COMPOSE["volumes"].keys()
        context = (EXAMPLE / service["build"]["context"]).resolve()
        recipe = (context / service["build"]["dockerfile"]).read_text()
        copied = [
            name for line in re.findall(r"(?m)^COPY (.*) \S+$", recipe) for name in line.split()
        ]
        assert all((ROOT / name).exists() for name in copied)
        assert context == ROOT
        for other, needs in service.get("depends_on", {}).items():
            assert conditions[needs["condition"]] in SERVICES[other]
    assert {v for name in SERVICES for v in mounts(name).values()} == COMPOSE["volumes"].keys()


def test_key_and_data_of_a_node_are_in_its_container_only():
    assert len(NODES) == 3
    for node in NODES:
        assert [name for name in SERVICES if node in mounts(name).values()] == ["keys", node]
        options = parsed(SERVICES[node]["command"])
        assert options.node_config == f"partition-id={node[-1]} data-path='/node/data.npz'"
    assert [name for name in SERVICES if "ca" in mounts(name).values()] == ["keys"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with the volumes after the service `keys`."""
    root = tmp_path_factory.mktemp("fleet")
    for volume in COMPOSE["volumes"]:
        (root / volume).mkdir()
    environment = os.environ | SERVICES["keys"]["environment"] | {"FLEET_ROOT": str(root)}
    for _ in range(2):  # The second time it does nothing.
        subprocess.run(
            SERVICES["keys"]["command"], cwd=ROOT, env=environment | {"PATH": PATH}, check=True
        )
    return root


def on_this_machine(service, argument, root, port):
    """Return an argument of a service, with its volumes in `root` and a SuperLink on `port`."""
    argument = argument.replace("superlink:8443", f"127.0.0.1:{port}").replace(
        "0.0.0.0", "127.0.0.1"
    )
    argument = argument.replace("--port=8443", f"--port={port}")
    for folder, volume in mounts(service).items():
        argument = re.sub(rf"(?<=[='\"]){folder}(?=[/'])|^{folder}$", str(root / volume), argument)
    return argument


def test_files_that_the_services_name_are_made(made):
    for name in ("superlink", *NODES):
        arguments = [on_this_machine(name, part, made, 1) for part in SERVICES[name]["command"]]
        named = re.findall(rf"{made}[^'\s]*", " ".join(arguments))
        assert len(named) >= 3
        missing = [path for path in named if not Path(path).is_file()]
        assert missing == ([str(made / "server" / "superlink.db")] if name == "superlink" else [])
    certificate = (made / "server" / "server.pem").read_text()
    shown = ["openssl", "x509", "-noout", "-ext", "subjectAltName"]
    names = subprocess.run(shown, input=certificate, capture_output=True, text=True, check=True)
    assert "DNS:superlink" in names.stdout


@pytest.mark.deployment
def test_services_run_without_containers(made, tmp_path):
    """`docker compose up` and the run of its first lines, as processes of this machine."""
    port = free_port()
    base = {"PATH": PATH, "HOME": str(tmp_path), "NO_COLOR": "1", "FLEET_ROOT": str(made)}
    base |= {"FLEET_ADDRESS": f"127.0.0.1:{port}", "FLWR_TELEMETRY_ENABLED": "0"}
    environment = os.environ | base
    started = []

    def start(name, *more):
        command = [on_this_machine(name, part, made, port) for part in SERVICES[name]["command"]]
        home = {"FLWR_HOME": str(tmp_path / name)}
        with (tmp_path / f"{name}.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    [*command, *more], cwd=tmp_path, env=environment | home,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    user = environment | {"FLWR_HOME": str(made / "user")}
    try:
        start("superlink")
        healthy = SERVICES["superlink"]["healthcheck"]["test"][1:]
        healthy = [part.replace("8443", str(port)) for part in healthy]
        while subprocess.run(healthy, env=user, capture_output=True, check=False).returncode:
            assert started[0].poll() is None, (tmp_path / "superlink.log").read_text()
        for _ in range(2):
            subprocess.run(SERVICES["register"]["command"], cwd=ROOT, env=user, check=True)
        for node in NODES:
            start(node, f"--port={free_port()}")
        run = ["flwr", "run", str(EXAMPLE), "--stream", "-c"]
        config = f"output-dir='{made / 'outputs'}' participants=3 min-available-nodes=3 rounds=1"
        subprocess.run([*run, config], cwd=tmp_path, env=user, timeout=400, check=True)
        assert len(list((made / "outputs").rglob("model.safetensors"))) == 1
    finally:
        for process in started:
            os.killpg(process.pid, 15)
        for process in started:
            process.wait(30)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_read_by_systemd_and_their_commands_by_flower(unit, tmp_path):
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)", text, re.M)
    parsed(shlex.split(command.replace("\\\n", "")))
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/srv/flower/venv/bin", str(Path(sys.executable).parent)))
    read = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize("script", sorted([*EXAMPLE.glob("*.sh"), *CLUSTER.glob("*.sh")]), ids=str)
def test_scripts_can_be_read(script):
    checker = ["shellcheck"] if shutil.which("shellcheck", path=PATH) else ["bash", "-n"]
    subprocess.run([*checker, script], env=os.environ | {"PATH": PATH}, check=True)
    assert os.access(script, os.X_OK)
