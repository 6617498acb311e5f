"""The command: measure, then write docs/performance.{json,md,png}."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import measure
from benchmarks.report import draw
from benchmarks.scale import stored_results, write_page
from benchmarks.workloads import WORKLOADS

DOCS = Path(__file__).parent.parent / "docs"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=f"{', '.join(WORKLOADS)} (default: all but tiny); the others' last results are kept",
    )
    parser.add_argument("--rounds", type=int, help="measured rounds (default: the workload's own)")
    parser.add_argument("--blocks", type=int, default=3, help="blocks of flwr run (default 3)")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes (default 2)")
    parser.add_argument("--no-flwr-run", action="store_true", help="only what runs in-process")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page (docs)")
    chosen = parser.parse_args(given)
    for name in chosen.workloads:
        if name not in WORKLOADS:
            parser.error(f"workload '{name}': allowed are {', '.join(WORKLOADS)}")
    for option in ("rounds", "blocks", "workers"):
        value = getattr(chosen, option)
        if value is not None and value < 1:
            parser.error(f"--{option} {value}: at least 1 is needed")
    chosen.workloads = chosen.workloads or [name for name in WORKLOADS if name != "tiny"]
    return chosen


def main(given: Sequence[str] | None = None) -> None:
    """Measure the workloads one after the other; the page is written after each."""
    chosen = arguments(given)
    chosen.output.mkdir(parents=True, exist_ok=True)
    kept = chosen.output / "performance.json"
    results = stored_results(chosen.output)
    for name in chosen.workloads:
        results[name] = measure(
            name,
            chosen.rounds or WORKLOADS[name].rounds,
            chosen.blocks,
            chosen.workers,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            simulate=not chosen.no_flwr_run,
        )
        values = {key: result.as_json() for key, result in results.items()}
        kept.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        draw(results.values(), chosen.output / "performance.png")
        write_page(chosen.output, list(results.values()))
    print(chosen.output / "performance.md")


if __name__ == "__main__":
    main()
