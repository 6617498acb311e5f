"""A soak: one run of many exchanges on hosts of their own, with a fault every tenth exchange.

python -m tests.hosts.soak FOLDER [--exchanges 300] [--every 10] [--minutes 150]

At every exchange the memory, the open files and the threads of each lasting process are written to
FOLDER/exchanges.jsonl. The program ends with the run, or after so many minutes, or by Ctrl-C or
SIGTERM; in each case it leaves FOLDER/soak.json and FOLDER/soak.png, and no process. It exits with
0 if nothing grew: of each process that lived that long, memory and open files late in the run at
most 5 % (and half a MiB, one file) above those after a tenth of it, and no more processes.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl

from tests.hosts.fleet import NODES, Fleet
from tests.hosts.network import lacking

mpl.use("Agg")
ROLES = {"flower-superlink": "SuperLink", "flower-superexec": "SuperExec"}
ROLES |= {"flwr-serverapp": "ServerApp", "flower-supernode": "SuperNode"}
PASSING = "flwr-clientapp"
"""The process of one message."""
GROWTH, MARGINS = 1.05, {"memory": 0.5, "files": 1}
"""Allowed growth of a process, and MiB and files on top of it, because connections come and go."""
LEAST = 12
"""Exchanges without which there are no figures."""


def role_of(pid):
    """Return the role of a process, such as "SuperNode", or "" if it is another one."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    names = {Path(word).name for word in words[:3]}
    return PASSING if PASSING in names else next((ROLES[n] for n in names if n in ROLES), "")


def sample(fleet):
    """Return {"superlink ServerApp": {memory in MiB, files, threads}} and counts of processes."""
    lasting, passing = {}, 0
    for host in (fleet.server, *fleet.nodes):
        for pid in host.pids():
            with contextlib.suppress(OSError):  # The process has ended.
                role = role_of(pid)
                passing += role == PASSING
                if role not in ROLES.values():
                    continue
                status = Path(f"/proc/{pid}/status").read_text()
                size, threads = (
                    int(re.search(rf"^{key}:\s+(\d+)", status, re.M)[1])
                    for key in ("RssAnon", "Threads")
                )
                files = len(os.listdir(f"/proc/{pid}/fd"))
                one = {"memory": size / 1024, "files": files, "threads": threads}
                lasting[f"{host.name} {role}"] = one | {"pid": pid}
    database = sum(f.stat().st_size for f in fleet.server.path("/srv/flower").glob("superlink.db*"))
    return {"processes": lasting, "passing": passing, "database": database / 2**20}


@contextlib.contextmanager
def cut(fleet):
    """Take the last node's link down for 15 s."""
    node = fleet.nodes[-1]
    node.cut()
    time.sleep(15)
    node.cut(off=False)
    yield


@contextlib.contextmanager
def stopped(fleet):
    """Stop node 2 by SIGTERM, and start it again after 5 s."""
    fleet.stop("node-2", signal.SIGTERM)
    time.sleep(5)
    fleet.start_node(2)
    yield


@contextlib.contextmanager
def killed(fleet):
    """Kill the last node, and start it again when the server considers it offline."""
    name = f"node-{NODES - 1}"
    fleet.stop(name)
    began = time.monotonic()
    yield
    time.sleep(max(0.0, began + 70 - time.monotonic()))
    fleet.start_node(NODES - 1)


FAULTS = {
    "cut off for 15 s": cut,
    "1 Mbit/s": lambda fleet: fleet.nodes[-1].slow_link("1mbit"),
    "stopped and started": stopped,
    "100 ms, 2 % loss": lambda fleet: fleet.network.long_cable("superlink", 0.1, 0.02),
    "killed and started": killed,
}
"""{name: context manager}: each begins at an exchange and ends at the next one."""


def watch(fleet, run, every, end, rows, file):
    """Sample at every exchange until the run or the time ends; bring a fault every so often."""
    faults = contextlib.ExitStack()
    with faults:
        while run.process.poll() is None and time.monotonic() < end:
            time.sleep(0.3)
            count = len(re.findall(r"Receiving: train(?:\.query)? message", run.node_log(0)))
            if count == len(rows):
                continue
            faults.close()
            row = {"exchange": len(rows) + 1, "seconds": time.monotonic() - run.began, "fault": ""}
            row |= sample(fleet)
            if row["exchange"] % every == every // 2:
                row["fault"] = list(FAULTS)[row["exchange"] // every % len(FAULTS)]
                faults.enter_context(FAULTS[row["fault"]](fleet))
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()


def around(rows, name, what):
    """Return the median of a figure of a process in some exchanges, and its last process id."""
    found = [one for row in rows if (one := row["processes"].get(name))]
    return (statistics.median(one[what] for one in found), found[-1]["pid"]) if found else (0, 0)


def judged(rows, status):
    """Return the summary: each lasting process after a tenth of the exchanges, and at the end."""
    near = max(2, len(rows) // 20)  # Single samples vary.
    early, late = len(rows) // 10, len(rows) - 1 - near
    parts = [rows[max(0, place - near) : place + near + 1] for place in (early, late)]
    table, grown = {}, []
    for name in dict.fromkeys(name for row in rows for name in row["processes"]):
        one = {}
        for what in ("memory", "files", "threads"):
            (before, first), (after, last) = (around(part, name, what) for part in parts)
            one |= {what: [round(before, 1), round(after, 1)], "same process": first == last}
            if what != "threads" and first == last and after > before * GROWTH + MARGINS[what]:
                grown.append(f"{name}: {what} {before:.1f}, later {after:.1f}")
        table[name] = one
    lasting = [statistics.median(len(row["processes"]) for row in part) for part in parts]
    if lasting[1] > lasting[0]:
        grown.append(f"lasting processes: {lasting[0]:g}, later {lasting[1]:g}")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "kernel": platform.release().split("-")[0],
        "cores": os.cpu_count(),
        "status": status,
        "exchanges": len(rows),
        "faults": sum(bool(row["fault"]) for row in rows),
        "minutes": round(rows[-1]["seconds"] / 60, 1),
        "compared": [early + 1, late + 1],
        "lasting processes": lasting,
        "database": [round(part[-1]["database"], 1) for part in parts],
        "processes": table,
        "grown": grown,
    }


def draw(rows, path):
    """Draw memory, open files and numbers of processes by exchange; lines mark the faults."""
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(3, 1, figsize=(8, 9), sharex=True, layout="constrained")
    names = sorted({name for row in rows for name in row["processes"]})
    for panel, what in zip(panels, ("memory", "files"), strict=False):
        panel.set_prop_cycle(color=mpl.colormaps["tab20"].colors)
        for name in names:
            points = [(row["exchange"], row["processes"][name][what])
                      for row in rows if name in row["processes"]]  # fmt: skip
            panel.plot(*zip(*points, strict=True), label=name, linewidth=1)
    at = [row["exchange"] for row in rows]
    panels[2].plot(at, [len(row["processes"]) for row in rows], label="lasting")
    panels[2].plot(at, [row["passing"] for row in rows], label="of a message", linewidth=0.7)
    titles = "memory of its own (MiB)", "open files", "processes"
    for panel, title in zip(panels, titles, strict=True):
        panel.set_ylabel(title)
        panel.set_ylim(bottom=0)
        for row in rows:
            if row["fault"]:
                panel.axvline(row["exchange"], color="grey", linewidth=0.4, linestyle=":")
    panels[0].legend(fontsize=6, ncols=3)
    panels[2].legend(fontsize=6)
    panels[2].set_xlabel("exchange; dotted: a fault")
    figure.savefig(path, dpi=110)


def main():
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.soak", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--exchanges", type=int, default=300)
    parser.add_argument("--every", type=int, default=10, help="exchanges from fault to fault")
    parser.add_argument("--minutes", type=float, default=150, help="most minutes of the run")
    given = parser.parse_args()
    if missing := lacking():
        sys.exit(f"hosts of their own need more than this machine has: {missing}")
    given.folder.mkdir(parents=True)  # A FileExistsError: it belongs to an earlier soak.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")
    rows, status = [], "interrupted"
    fleet = Fleet(given.folder / "hosts")
    try:
        fleet.prepare()
        fleet.start_server()
        fleet.register()
        for number in range(NODES):
            fleet.start_node(number)
        size = {"rounds": given.exchanges // 2, "local_steps": 1, "checkpoint_every": 10}
        run = fleet.start_run("soak", **size)
        end = time.monotonic() + 60 * given.minutes
        with (given.folder / "exchanges.jsonl").open("w") as file:
            watch(fleet, run, given.every, end, rows, file)
        status = run.status()
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        fleet.close()
    if len(rows) < LEAST:
        sys.exit(f"only {len(rows)} exchanges: no figures")
    found = judged(rows, status)
    (given.folder / "soak.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(rows, given.folder / "soak.png")
    print(f"{found['exchanges']} exchanges in {found['minutes']} minutes, {status}")
    print("\n".join(found["grown"]) or "nothing grew")
    return int(bool(found["grown"]) or not status.endswith("completed"))


if __name__ == "__main__":
    sys.exit(main())
