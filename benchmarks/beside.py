"""The time of a default `coprefl run` next to busy processes: `python -m benchmarks.beside`.

The default run alternates with a run of the same recipe with `--workers 1` and one thread, each in
a new folder, while two processes keep two cores busy. The result is written to docs/beside.json and
docs/performance.md.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.idle import BUSY, say, wait_until_idle

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GOAL = 1.3
RECIPE: dict[str, Any] = {
    "title": "Next to busy processes",
    "settings": {
        "dataset": "glyphs",
        "downstream-classes": 20,
        "clients": 50,
        "participants": 20,
        "rounds": 60,
        "learning-rate": 0.1,
        "tasks": 2,
        "task-rounds": 20,
    },
    "methods": ["random", "fedavg", {"coprefl": {"gamma": 0.5, "meta-learning-rate": 0.01}}],
    "reference": "fedavg",
    "figures": [],
}
COMMAND = (sys.executable, "-m", "coprefl_flwr.cli", "run")
DEFAULT, ONE = "default", "one thread"
OPTIONS = {DEFAULT: (), ONE: ("--workers", "1")}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "COPREFL_WORKERS")


@dataclass
class Beside:
    """The wall seconds of the runs by kind, and the number of busy processes next to them."""

    machine: Mapping[str, Any]
    busy: int
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self) -> float:
        """Return the median time of default runs / that of runs with one thread."""
        return median(self.seconds[DEFAULT]) / median(self.seconds[ONE])


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes busy inside the block."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _spin() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # Ends when the parent process is killed.
        sum(range(100_000))


def run(recipe: Path, folder: Path, how: str) -> float:
    """Run a recipe in a new process, with its output in `folder`; return the seconds."""
    own = {key: value for key, value in os.environ.items() if key not in THREADS}
    if how == ONE:
        own["OMP_NUM_THREADS"] = "1"
    paths = os.pathsep.join(filter(None, [str(ROOT), own.get("PYTHONPATH")]))
    began = time.perf_counter()
    ended = subprocess.run(
        [*COMMAND, str(recipe), "--out", str(folder / "out"), *OPTIONS[how]],
        cwd=folder,
        env=own | {"PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if ended.returncode:
        raise RuntimeError(f"coprefl run ({how}) failed; its end:\n{ended.stdout[-4000:]}")
    return seconds


def measure(content: Mapping[str, Any], count: int, repeats: int, about: Any) -> Beside:
    """Run the recipe in both ways in turns, `repeats` times, next to `count` busy processes."""
    result = Beside(about, count)
    with tempfile.TemporaryDirectory() as folder, busy(count):
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(dict(content), sort_keys=False))
        for turn in range(repeats):
            for how in OPTIONS:
                own = Path(folder) / f"{how.replace(' ', '-')}-{turn}"
                own.mkdir()
                result.seconds.setdefault(how, []).append(run(recipe, own, how))
                say(f"{how}, {turn + 1} of {repeats}: {result.seconds[how][-1]:.1f} s")
    return result


def section(result: Beside) -> str:
    """Return the section of docs/performance.md."""
    about = result.machine
    lines = [
        "## On a busy machine",
        "",
        "The table shows the wall time of `coprefl run` on a small recipe, while "
        f"{result.busy} other processes are always busy on {about['cores']} cores. Runs with "
        "the default number of workers alternate with runs with `--workers 1` and one thread. The "
        "ratio is the median time divided by that of one thread; the goal is a ratio of at most "
        f"{GOAL}. `python -m benchmarks.beside` measures this.",
        "",
        "| run | seconds | median | ratio |",
        "| --- | --: | --: | --: |",
    ]
    for how, ratio in ((ONE, 1.0), (DEFAULT, result.ratio())):
        each = ", ".join(f"{seconds:.0f}" for seconds in result.seconds[how])
        lines.append(f"| {how} | {each} | {median(result.seconds[how]):.1f} | {ratio:.2f} |")
    line = f"Measured on {about['date']}: {about['processor']}; load average before "
    line += f"{about['load_before']:.1f}."
    if about["load_before"] > BUSY:
        line += " **Other programs ran too: do not quote these figures.**"
    return "\n".join([*lines, "", line])


def section_in(folder: Path) -> str:
    """Return the section of the result that a folder contains, "" if it has none."""
    file = folder / "beside.json"
    return section(Beside(**json.loads(file.read_text(encoding="utf-8")))) if file.exists() else ""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    from benchmarks.measure import machine
    from benchmarks.report import stored_results, write_page

    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("--busy", type=int, default=2, help="busy processes (default 2)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page (docs)")
    chosen = parser.parse_args(argv)
    for option in ("busy", "repeats"):
        if getattr(chosen, option) < 1:
            parser.error(f"--{option} {getattr(chosen, option)}: at least 1 is needed")
    wait_until_idle()
    result = measure(RECIPE, chosen.busy, chosen.repeats, machine())
    chosen.output.mkdir(parents=True, exist_ok=True)
    file = chosen.output / "beside.json"
    file.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    write_page(chosen.output, stored_results(chosen.output))
    print(section(result))


if __name__ == "__main__":
    main()
