"""Hosts in network namespaces, connected by a switch: each with its address and its folders.

A command on a host sees the host's own /srv, /home and /etc/hosts, and no network but that of the
hosts. Nothing outside the namespaces is changed.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.common.simulation import ROOT

BIN = Path(sys.executable).parent
ROOMS = ("srv", "home")
"""Folders of `/` that each host has for itself."""
KEPT = ("PYTHONPATH", "OMP_NUM_THREADS", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL")
"""Variables of this machine that the hosts get."""


def ip(*words):
    """Call iproute2, without a message of its own if it fails."""
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True)


def pids_in(namespace):
    """Return the ids of the processes in a namespace."""
    return [int(pid) for pid in ip("netns", "pids", namespace).stdout.split()]


def kill_all(namespace):
    """Kill the processes in a namespace."""
    end = time.monotonic() + 30
    while (pids := pids_in(namespace)) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def lacking():
    """Return what this machine lacks for namespaces with a veth and a bridge, or an empty text."""
    for command in ("ip", "tc", "openssl", "ssh-keygen"):
        if not shutil.which(command):
            return f"there is no {command} on PATH"
    if os.geteuid():
        return "only root may make network namespaces"
    if not os.access("/dev/net/tun", os.W_OK):
        return "there is no /dev/net/tun"
    try:
        with Network({"one": "10.0.0.1"}, Path("/tmp")):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


class Network:
    """A switch and its hosts, `{name: address}`; closed, it leaves no namespace and no process."""

    def __init__(self, addresses, folder, names=None):
        """Make the namespaces; `names` is {name of a machine: address}, for every /etc/hosts."""
        self.switch, self.hosts = f"coprefl{os.getpid()}", {}
        self._stack = contextlib.ExitStack()
        for left, pid in re.findall(r"^(coprefl(\d+)\S*)", ip("netns").stdout, re.M):
            if not Path("/proc", pid).exists():  # Of a program that was killed.
                self._remove(left)
        try:
            self._add(self.switch)
            for bridge in ("near", "far"):
                ip("-n", self.switch, "link", "add", bridge, "type", "bridge")
                ip("-n", self.switch, "link", "set", bridge, "up")
            known = addresses | (names or {})
            for name, address in addresses.items():
                self._add(f"{self.switch}-{name}")
                self.hosts[name] = Host(self, name, address, folder / name, known)
        except BaseException:
            self.close()
            raise

    def _add(self, namespace):
        ip("netns", "add", namespace)
        self._stack.callback(self._remove, namespace)
        ip("-n", namespace, "link", "set", "lo", "up")

    def _remove(self, namespace):
        kill_all(namespace)
        ip("netns", "del", namespace)

    def close(self):
        """End all processes of the hosts and remove the namespaces."""
        self._stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @contextlib.contextmanager
    def long_cable(self, name, delay, loss):
        """Delay the packets to and from a host by `delay` s, and lose the share `loss` of them."""
        cable = subprocess.Popen(
            ["ip", "netns", "exec", self.switch, sys.executable,
             ROOT / "tests" / "hosts" / "cable.py", str(delay), str(loss)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert cable.stdout.readline() == "ready\n"
            for end, bridge in (("cable0", "near"), ("cable1", "far")):
                ip("-n", self.switch, "link", "set", "dev", end, "master", bridge, "up")
            ip("-n", self.switch, "link", "set", "dev", name, "master", "far")
            yield
        finally:
            ip("-n", self.switch, "link", "set", "dev", name, "master", "near")
            cable.kill()
            cable.wait()


class Host:
    """One machine: a namespace with an address, and a folder with its /srv and its /home/me."""

    def __init__(self, network, name, address, folder, known):
        self.name, self.address, self.network = name, address, network
        self.folder, self.disk = folder, folder / "disk"
        self.namespace = f"{network.switch}-{name}"
        veth = "veth", "peer", "name", name, "netns", network.switch
        ip("-n", self.namespace, "link", "add", "eth0", "type", *veth)
        ip("-n", self.namespace, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", self.namespace, "link", "set", "eth0", "up")
        ip("-n", network.switch, "link", "set", "dev", name, "master", "near", "up")
        self._hosts = "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in known.items())

    def path(self, path):
        """Return where a file of the host, such as /srv/flower/node.key, is on this machine."""
        return self.disk / path.lstrip("/")

    def _shell(self, text, cwd):
        """Return a command for `text` in bash, with the host's folders in their places."""
        for room in ("srv/tmp", "srv/flower", "home/me"):
            (self.disk / room).mkdir(parents=True, exist_ok=True)
        (self.folder / "hosts").write_text(self._hosts)
        mounts = "".join(f"mount --rbind {self.disk / room} /{room} && " for room in ROOMS)
        mounts += f"mount --bind {self.folder / 'hosts'} /etc/hosts && "
        inside = f'{mounts} cd {cwd} && exec bash -c "$0"'
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", inside, text]

    def environment(self, more):
        """Return the environment of a process of the host: of this machine's, only Python's."""
        kept = {n: v for n in KEPT if (v := os.environ.get(n))}
        kept |= {"HOME": "/home/me", "TMPDIR": "/srv/tmp", "NO_COLOR": "1", "LANG": "C.UTF-8"}
        kept |= {"PYTHONUNBUFFERED": "1"}  # As on a terminal: lines are written at once.
        return kept | {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin"} | more

    def start(self, text, log, cwd="/srv/flower", **environment):
        """Start `text` in the background, in a group of its own, and append its output to `log`."""
        command = self._shell(text, cwd)
        with (self.folder / log).open("a") as output:
            return subprocess.Popen(
                command, env=self.environment(environment),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def run(self, text, cwd="/srv/flower", seconds=120, **environment):
        """Run `text` to its end and return its output; an AssertionError if it fails."""
        done = subprocess.run(
            self._shell(text, cwd), env=self.environment(environment), timeout=seconds,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"on {self.name}: {text}\n{done.stdout}"
        return done.stdout

    def pids(self):
        """Return the ids of the host's processes."""
        return pids_in(self.namespace)

    def kill(self):
        """Kill all processes of the host."""
        kill_all(self.namespace)

    def cut(self, off=True):
        """Take the host's link down at the switch, as if its cable were pulled out, or up again."""
        ip("-n", self.network.switch, "link", "set", "dev", self.name, "down" if off else "up")

    @contextlib.contextmanager
    def slow_link(self, rate):
        """Limit what the host sends and gets to a rate of tc, such as `1mbit`."""
        ends = (self.namespace, "eth0"), (self.network.switch, self.name)
        limit = ["tbf", "rate", rate, "burst", "16kb", "latency", "400ms"]
        for namespace, link in ends:
            _tc("-n", namespace, "qdisc", "add", "dev", link, "root", *limit)
        try:
            yield
        finally:
            for namespace, link in ends:
                _tc("-n", namespace, "qdisc", "del", "dev", link, "root")

    @contextlib.contextmanager
    def small_disk(self, megabytes, folder=""):
        """Put a folder of the host, or all, onto a file system of this size, before it starts."""
        place = self.disk / folder
        place.mkdir(parents=True, exist_ok=True)
        size = f"size={megabytes}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)

    @contextlib.contextmanager
    def full_disk(self, folder=""):
        """Fill a small disk to its last byte with a file."""
        filling = self.disk / folder / "filling"
        with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filling.unlink()


def _tc(*words):
    subprocess.run(["tc", *words], check=True)
