"""A SuperLink, four SuperNodes and a user on hosts of their own, started as the page says.

The commands are read from docs/deployment.md and run as they stand, in the folders that it names.
Replaced in them are only each node's key, name and client id, the `...` of the unit, and the name
and size of the run. Not run is `pip install`, as all hosts have one environment, and no firewall.
"""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import time

from tests.common.simulation import ROOT
from tests.hosts.network import BIN, Network

PAGE = ROOT / "docs" / "deployment.md"
NODES = 4
ADDRESSES = {"superlink": "10.0.0.5", "user": "10.0.0.9"}
ADDRESSES |= {f"node-{number}": f"10.0.0.{20 + number}" for number in range(NODES)}

PARTS = 40
"""The glyphs are divided into so many parts, of which the nodes get the first ones."""


def section(heading):
    """Return the code blocks of a section of the page as [(language, text)]."""
    text = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.M | re.S)


def block(heading, language, holding=""):
    """Return the one block of a section in a language that holds a text."""
    found = [text for kind, text in section(heading) if kind == language and holding in text]
    assert len(found) == 1, f"{PAGE.name}, {heading}: {len(found)} blocks of {language} {holding!r}"
    return found[0]


def commands(text):
    """Return the commands of a block, one for each line that does not continue another."""
    return text.replace("\\\n", " ").strip().splitlines()


def with_settings(command, settings):
    """Return a command `flwr run` with other values of settings in its -c "..."."""
    for key, value in settings.items():
        setting = f"{key}='{value}'" if isinstance(value, str) else f"{key}={value}"
        command, found = re.subn(rf"(?<=[ \"]){key}=('[^']*'|[^ \"]+)", setting, command)
        if not found:
            command = command.replace('-c "', f'-c "{setting} ', 1)
    return command


class Fleet:
    """The six hosts; `path_of_log` is where `flwr run` writes, `processes` what runs by name."""

    def __init__(self, folder):
        self.network = Network(ADDRESSES, folder, {"fl.example.org": ADDRESSES["superlink"]})
        self.hosts, self.processes, self.folder = self.network.hosts, {}, folder
        self.server, self.user = self.hosts["superlink"], self.hosts["user"]
        self.nodes = [self.hosts[f"node-{number}"] for number in range(NODES)]

    def close(self):
        """End everything."""
        self.network.close()

    def prepare(self):
        """Make certificates, keys and data, and bring each file to its host."""
        self.user.run("true")  # Makes its folders.
        home = self.user.path("/home/me")
        app = home / "examples" / "deployment"
        shutil.copytree(ROOT / "examples" / "deployment", app)
        certificates, keys = (text for _, text in section("Certificates and keys"))
        self.user.run(certificates, cwd="/home/me")
        self.user.run(f"python examples/deployment/cut_data.py data {PARTS}", cwd="/home/me")
        for host in (self.server, *self.nodes):
            host.run("mkdir -p tls /srv/data && ln -s $VENV venv", VENV=str(BIN.parent))
            for name in ("ca.crt", *(["server.pem", "server.key"] * (host is self.server))):
                shutil.copy(home / "tls" / name, host.path("/srv/flower/tls"))
        for number, node in enumerate(self.nodes):
            node.run(keys)
            shutil.copy(node.path("/srv/flower/node.key.pub"), home / f"node-{number}.key.pub")
            shutil.copy(home / "data" / f"node-{number}.npz", node.path("/srv/data/node.npz"))
        self.user.run("flwr config list")  # Makes a file with a [superlink] of its own.
        default, section_of_ours = block("Register the nodes", "toml").split("\n\n")
        file = home / ".flwr" / "config.toml"
        text = file.read_text().replace('default = "local"', default.split("\n")[1])
        file.write_text(f"{text}\n{section_of_ours}")

    def start_server(self):
        """Start the SuperLink, and wait until it answers the user."""
        start = block("Start the server", "sh")
        self.processes["superlink"] = self.server.start(start, "superlink.log")
        self.wait_for(lambda: self.listed() is not None, "an answer of the SuperLink")

    def register(self):
        """Register the nodes' keys."""
        register = block("Register the nodes", "sh")
        for number in range(NODES):
            command = register.replace("node-0.key.pub", f"node-{number}.key.pub")
            self.user.run(command.replace("hospital-a", f"hospital-{number}"), cwd="/home/me")

    def start_node(self, number, before="", **environment):
        """Start a node by the command of the page; `before` is put before the command."""
        command = block("Start a node", "sh").replace("partition-id=0", f"partition-id={number}")
        started = self.nodes[number].start(before + command, "node.log", **environment)
        self.processes[f"node-{number}"] = started

    def restart_as_unit(self, number):
        """Start a node as the unit of the page does, after its RestartSec."""
        unit = re.findall(r"^(\w+)=(.*)$", block("Start a node", "ini"), flags=re.M)
        one = dict(unit)
        time.sleep(int(one["RestartSec"]))
        words = " ".join(value for key, value in unit if key == "Environment").split()
        arguments = block("Start a node", "sh").split("--superlink ")[1]
        command = one["ExecStart"].replace("...", arguments)
        command = command.replace("partition-id=0", f"partition-id={number}")
        environment = dict(word.split("=", 1) for word in words)
        node, folder = self.nodes[number], one["WorkingDirectory"]
        started = node.start(command, "node.log", folder, **environment)
        self.processes[f"node-{number}"] = started

    def stop(self, name, number=signal.SIGKILL):
        """End a host's processes as systemd does: the main process by a signal, then the others."""
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(60)
        self.hosts[name].kill()

    def repair(self):
        """Start what has ended, and wait until all nodes are online."""
        if "superlink" not in self.processes:
            self.start_server()

        def all_online():
            for name in (node.name for node in self.nodes):
                if name in self.processes and self.processes[name].poll() is not None:
                    self.stop(name)
                if name not in self.processes:
                    self.start_node(int(name[-1]))
            return self.online() == NODES

        self.wait_for(all_online, "all nodes online")

    def listed(self):
        """Return the nodes of `flwr supernode list`, or None if the SuperLink does not answer."""
        try:
            listed = self.user.run("flwr supernode list --format json", cwd="/home/me", seconds=60)
            return json.loads(listed[listed.index("{") :])["nodes"]
        except (AssertionError, ValueError, KeyError):
            return None

    def online(self):
        """Return how many nodes are online."""
        return sum(node["status"] == "online" for node in self.listed() or [])

    def wait_for(self, condition, what, seconds=240):
        """Wait until a condition holds; if it never does, the AssertionError shows the logs."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, f"{what}: not within {seconds} s\n{self.ends_of_logs()}"
            time.sleep(0.3)
        return found

    def ends_of_logs(self):
        """Return the last lines of all logs."""
        logs = sorted(self.folder.glob("*/*.log"))
        return "\n".join(f"== {log}\n{log.read_text()[-1500:]}" for log in logs)

    def start_run(self, name, app="examples/deployment", **settings):
        """Start the page's `flwr run` with another name and other settings; return a `Started`."""
        (command,) = [c for c in commands(block("Run", "sh", "flwr list")) if "flwr run" in c]
        settings = {"run-name": name, "rounds": 2, "min-available-nodes": NODES} | settings
        settings = {"participants": NODES} | settings
        command = with_settings(command, {k.replace("_", "-"): v for k, v in settings.items()})
        return Started(self, name, command.replace("examples/deployment", app))


class Started:
    """A `flwr run` of the user, which goes on in the background; its log, and the nodes'."""

    def __init__(self, fleet, name, command):
        self.fleet, self.log = fleet, fleet.user.folder / f"{name}.log"
        self._before = [len(self._of_node(number)) for number in range(NODES)]
        self._skip = len(self.text_of(self.log))
        self.began, self.seconds = time.monotonic(), None
        self.process = fleet.user.start(command, self.log.name, cwd="/home/me")

    @staticmethod
    def text_of(path):
        return path.read_text(errors="replace") if path.exists() else ""

    def _of_node(self, number):
        return self.text_of(self.fleet.nodes[number].folder / "node.log")

    def node_log(self, number):
        """Return what a node has logged since the run began."""
        return self._of_node(number)[self._before[number] :]

    def text(self):
        """Return the log of the run."""
        return self.text_of(self.log)[self._skip :]

    def wait_for(self, condition, what, seconds=240):
        """Wait for something in this run; an AssertionError if the run ends before."""

        def holds():
            if found := condition():
                return found
            assert self.process.poll() is None, f"{what}: the run has ended\n{self.text()}"
            return None

        return self.fleet.wait_for(holds, what, seconds)

    def finish(self, seconds=600):
        """Wait for the end; return the seconds since the start. A run without an end is left."""
        if self.seconds is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.seconds = time.monotonic() - self.began
            self.process.kill()
        return self.seconds

    def status(self):
        """Return the status of the newest run in `flwr list`."""
        listed = self.fleet.user.run("flwr list --format json", cwd="/home/me", seconds=60)
        return json.loads(listed[listed.index("{") :])["runs"][0]["status"]
