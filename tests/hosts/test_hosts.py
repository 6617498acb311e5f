"""Hosts of their own and what befalls them: `make hosts-test`, about an hour.

A SuperLink and four SuperNodes are started by the commands of docs/deployment.md. Every test is one
fault. What happened goes into a JSON file, `RESULTS`, from which `make tables` writes the table of
that page.
"""

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.common.simulation import ROOT
from tests.hosts.fleet import NODES, Fleet
from tests.hosts.network import lacking

pytestmark = [pytest.mark.deployment, pytest.mark.hosts]

RESULTS = Path(os.environ.get("HOSTS_RESULTS", ROOT / "docs" / "faults.json"))
EXCHANGES = re.compile(r"(?:├──> |, )(?:[a-z]+): (\d+) of (\d+)")
LAST = NODES - 1


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """The fleet. The disks of the SuperLink, of its models and of the last node are small."""
    if missing := lacking():
        pytest.skip(f"hosts of their own need more than this machine has: {missing}")
    with contextlib.ExitStack() as stack:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # A kill cleans up, too.
        fleet = Fleet(tmp_path_factory.mktemp("hosts"))
        stack.enter_context(fleet.server.small_disk(64))
        stack.enter_context(fleet.server.small_disk(64, "srv/flower/models"))
        stack.enter_context(fleet.nodes[LAST].small_disk(64))
        stack.callback(fleet.close)
        fleet.prepare()
        fleet.start_server()
        fleet.register()
        for number in range(NODES):
            fleet.start_node(number)
        yield fleet


@pytest.fixture
def online(fleet):
    """The fleet, when all nodes are online, which they are again after the fault before."""
    fleet.repair()
    return fleet


def lines_of(text):
    """Return the lines that tell an operator of trouble, without colours, places and long ids."""
    plain = re.sub(r"\x1b\[\d+m", "", text)
    said = r"WARNING|ERROR|Error\b|error:|_FAILED|terminated|unavailable|^round \d+: "
    found = [line for line in plain.splitlines() if re.search(said, line)]
    shown = (re.sub(r"\d{15,}", "ID", " ".join(line.strip("│╭╮").split())) for line in found)
    return list(dict.fromkeys(line for line in shown if "──>" not in line))


def record(fault, run, *, node=None, note=""):
    """Wait for the end of the run and write what happened; return the row.

    `node` is the number of the node whose log is read, too; `note` goes into the row as it is.
    """
    seconds, status, log = run.finish(), run.status(), run.text()
    done = [tuple(map(int, pair)) for pair in EXCHANGES.findall(log)]
    row = {
        "fault": fault,
        "status": status.split(":")[-1],
        "exchanges": len(done),
        "asked": sum(asked for _, asked in done),
        "lost": sum(asked - answered for answered, asked in done),
        "rounds": re.findall(r"(?:├──> )(.*); \d+ clients in all", log),
        "seconds": round(seconds),
        "run's log": lines_of(log),
        "node's log": lines_of(run.node_log(node)) if node is not None else [],
        "note": note,
    }
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows = [old for old in known.get("faults", []) if old["fault"] != fault]
    made = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count()}
    made |= {"kernel": platform.release().split("-")[0], "faults": [*rows, row]}
    RESULTS.write_text(json.dumps(made, indent=1) + "\n")
    return row


def sent(run, number, action="train"):
    """Return how many replies to an action a node has sent in this run."""
    pattern = rf"Sending: {re.escape(action)} message.*?Sent successfully"
    return len(re.findall(pattern, run.node_log(number), flags=re.S))


def received(run, number, action="train"):
    """Return how many messages of an action a node has received in this run."""
    return len(re.findall(rf"Receiving: {re.escape(action)} message", run.node_log(number)))


def another_app(fleet, name, file, *changes):
    """Copy the example in the user's folder, with changes (pattern, new text) in a file."""
    home = fleet.user.path("/home/me")
    if not (home / name).exists():
        shutil.copytree(home / "examples" / "deployment", home / name)
        for pattern, new in changes:
            text, found = re.subn(pattern, new, (home / name / file).read_text())
            assert found == 1, pattern
            (home / name / file).write_text(text)
    return name


def cyclic_app(fleet):
    """Return the example with CyclicFL's chain in place of CoPreFL."""
    options = r"CoPreFL\(\s*gamma=.*\s*meta_learning_rate=.*\n"
    changes = ("import CoPreFL\n", "import Cyclic\n"), (options, "Cyclic(\n")
    return another_app(fleet, "cyclic", "deployment_app/server_app.py", *changes)


def test_commands_of_the_page_without_a_fault(online):
    run = online.start_run("none")
    row = record("none", run)
    assert (row["status"], row["exchanges"], row["lost"]) == ("completed", 4, 0)
    assert online.server.path("/srv/flower/models/none/model.safetensors").exists()


def test_chain_without_a_fault(online):
    row = record("none, CyclicFL", online.start_run("chain", cyclic_app(online)))
    assert (row["status"], row["lost"]) == ("completed", 0)


def test_long_and_lossy_line(online):
    with online.network.long_cable("superlink", 0.1, 0.02):
        row = record("100 ms and 2 % loss", online.start_run("lossy"))
    assert (row["status"], row["lost"]) == ("completed", 0)


def test_thin_line(online):
    with contextlib.ExitStack() as stack:
        for node in online.nodes:
            stack.enter_context(node.slow_link("1mbit"))
        row = record("1 Mbit/s", online.start_run("thin"))
    assert (row["status"], row["lost"]) == ("completed", 0)


CUTS = pytest.mark.parametrize(
    ("seconds", "said"), [(30, "for 30 s"), (120, "for 2 minutes"), (None, "for ever")]
)


@CUTS
def test_node_cut_off_between_the_exchanges_of_a_round(online, seconds, said):
    run = online.start_run(f"cut-{seconds}", rounds=4 if seconds == 120 else 2)
    run.wait_for(lambda: sent(run, LAST), "the first reply of the last node")
    with cut_off(online.nodes[LAST], seconds):
        row = record(f"a node cut off {said}, between two exchanges", run, node=LAST)
    assert row["status"] == "completed"


@CUTS
def test_node_cut_off_in_the_middle_of_a_chain(online, seconds, said):
    run = online.start_run(f"chain-{seconds}", cyclic_app(online), rounds=1)

    def second():
        at = [number for number in range(NODES) if received(run, number)]
        return at if sum(sent(run, number) for number in at) == 1 and len(at) == 2 else None

    at = run.wait_for(second, "a message to the second node of the chain")
    (node,) = [number for number in at if not sent(run, number)]
    with cut_off(online.nodes[node], seconds):
        row = record(f"a node cut off {said}, in a chain", run, node=node)
    assert row["status"] == "completed"


@contextlib.contextmanager
def cut_off(node, seconds):
    """Cut a node off for some seconds, or until the end of the block."""
    node.cut()
    try:
        if seconds:
            time.sleep(seconds)
            node.cut(off=False)
        yield
    finally:
        node.cut(off=False)


def test_superlink_killed_and_started_again(online):
    run = online.start_run("restart")
    run.wait_for(lambda: "[ROUND 2/2]" in run.text(), "round 2")
    online.stop("superlink")
    online.start_server()
    run.finish(90)
    online.wait_for(lambda: run.status() != "running", "the end of the lost run")
    lost = record("the SuperLink killed and started again: the run", run, node=0)
    assert lost["status"] != "completed"
    online.wait_for(lambda: online.online() == NODES, "the nodes online again")
    row = record("the same command again", online.start_run("restart"))
    assert (row["status"], row["exchanges"], row["lost"]) == ("completed", 2, 0)


def test_node_killed_and_started_again_by_its_unit(online):
    run = online.start_run("killed", rounds=5)
    run.wait_for(lambda: received(run, 1), "a message to node 1")
    online.stop("node-1", signal.SIGKILL)
    online.restart_as_unit(1)
    row = record("a node killed, started again after RestartSec", run, node=1)
    assert (row["status"], row["rounds"][-1]) == ("completed", "train: 4 of 4, query: 4 of 4")


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler for a wrong clock")
def test_clocks_of_two_nodes_are_an_hour_off(online):
    clock = online.folder / "clock.so"
    source = ROOT / "tests" / "hosts" / "clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", clock, source], check=True)
    wrong = {1: (3600, "ahead"), 2: (-3600, "behind")}
    for number in wrong:
        online.stop(f"node-{number}", signal.SIGTERM)
    run = online.start_run("clocks", rounds=1, min_available_nodes=2, participants=2)
    for number, (shift, _) in wrong.items():
        online.start_node(number, LD_PRELOAD=str(clock), CLOCK_SHIFT=str(shift))
    for number, (_, said) in wrong.items():
        row = record(f"a node's clock an hour {said}", run, node=number)
        online.stop(f"node-{number}")
    assert row["status"] == "completed"


def test_full_disk_of_the_models(online):
    run = online.start_run("full-models")
    run.wait_for(lambda: received(run, 0), "a message to node 0")
    with online.server.full_disk("srv/flower/models"):
        row = record("the disk of the models full", run)
    assert row["status"] == "failed"
    assert "No space left on device" in row["run's log"][-1]


def test_full_disk_of_the_server(online):
    run = online.start_run("full")
    run.wait_for(lambda: received(run, 0), "a message to node 0")
    with online.server.full_disk():
        run.finish(120)
        time.sleep(60)  # So that every node sends a heartbeat, to which the answer is an error.
    online.stop("superlink")
    online.start_server()
    time.sleep(90)
    back = f"{online.online()} of {NODES} nodes were online 90 s after the SuperLink's restart"
    record("the server's disk full, with its database", run, node=0, note=back)
    for number in range(NODES):
        online.stop(f"node-{number}")
    online.repair()
    again = record("the same command, with space again", online.start_run("full"))
    assert (again["status"], again["lost"]) == ("completed", 0)


def test_full_disk_of_a_node(online):
    new = another_app(online, "new", "deployment_app/task.py", ("MODEL = ", "# New.\nMODEL = "))
    three = {"rounds": 1, "min_available_nodes": 3, "participants": 3}
    with online.nodes[LAST].full_disk():
        row = record("a node's disk full, a new app", online.start_run("new", new, **three))
        assert (row["status"], row["lost"]) == ("completed", 0)
    run = online.start_run("new-again", new, rounds=1, timeout=90)
    row = record("the same app, with space again, for four nodes", run)
    assert "left out" in row["run's log"][0]  # Flower takes the half of the app for the whole.
