"""Measure rounds next to plain PyTorch, then write docs/performance.{json,md,png}."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.idle import say, wait_until_idle
from benchmarks.workloads import REAL, WORKLOADS

DOCS = Path(__file__).parent.parent / "docs"
MINUTES = 5.0
"""Default of `--minutes` with `--device cuda`."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=f"of {', '.join(REAL)} (default: all); the page keeps the others' last results",
    )
    parser.add_argument("--rounds", type=int, help="measured rounds (default: the workload's own)")
    parser.add_argument("--blocks", type=int, default=3, help="blocks of flwr run (default 3)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--no-flwr-run", action="store_true", help="leave out flwr run")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: on a GPU, without flwr run; prints a text to paste and writes no page",
    )
    parser.add_argument(
        "--minutes", type=float, help=f"stop after about N minutes (default: cuda {MINUTES:g})"
    )
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page (docs)")
    chosen = parser.parse_args(argv)
    for name in chosen.workloads:
        if name not in WORKLOADS:
            parser.error(f"workload '{name}': allowed are {', '.join(WORKLOADS)}")
    for option in ("rounds", "blocks", "workers", "minutes"):
        value = getattr(chosen, option)
        if value is not None and not value >= 1:
            parser.error(f"--{option} {value:g}: at least 1 is needed")
    if chosen.device == "cuda" and (why := _no_gpu()):
        parser.error(f"--device cuda: {why}; allowed here is cpu")
    chosen.workloads = chosen.workloads or list(REAL)
    return chosen


def _no_gpu() -> str:
    """Return the reason why torch cannot compute on a GPU, "" if it can."""
    import torch

    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    return "" if torch.cuda.is_available() else "torch finds no GPU in this machine"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the workloads one after the other; the page is written after each."""
    chosen = arguments(argv)
    # One thread in this process and in all processes that it starts.
    os.environ["OMP_NUM_THREADS"] = "1"
    # Imported here, because the processes of the plain loops import this file but need neither.
    from benchmarks.measure import measure
    from benchmarks.report import pasted, stored_results, write_all

    on_gpu = chosen.device == "cuda"
    minutes = chosen.minutes or (MINUTES if on_gpu else float("inf"))
    results = {} if on_gpu else stored_results(chosen.output)
    for name in chosen.workloads:
        if not on_gpu:  # Its machine has cores to spare.
            wait_until_idle()
        results[name] = measure(
            name,
            chosen.rounds or WORKLOADS[name].rounds,
            chosen.blocks,
            chosen.workers,
            say=say,
            simulate=not (chosen.no_flwr_run or on_gpu),
            device=chosen.device,
            limit=60 * minutes / len(chosen.workloads),
        )
        if on_gpu:
            print(pasted(results[name]), flush=True)
        else:
            chosen.output.mkdir(parents=True, exist_ok=True)
            write_all(chosen.output, results)
    if not on_gpu:
        print(chosen.output / "performance.md")


if __name__ == "__main__":
    main()
