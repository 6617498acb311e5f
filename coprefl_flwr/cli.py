"""Run experiments from recipes (YAML files), report their results, and list them.

    coprefl new NAME
    coprefl run RECIPE [--out DIR] [--models DIR] [--scale small] [--protocol NAME]
               [--set KEY=VALUE] [--workers N]
    coprefl choose RECIPE [the options of `run`]
    coprefl plan RECIPE [--scale small] [--protocol NAME] [--set KEY=VALUE]
    coprefl report DIR [DIR ...] [--reference NAME]
    coprefl list [DIR]
    coprefl check-method PLACE [PLACE ...] [--no-flower]
    coprefl check-app FOLDER [--nodes N] [--node-config VALUES]
    coprefl schema
    coprefl --version

The folder --out holds a copy of the recipe with all changes, and its report. The folder --models
holds each result under the hash of its settings, so that all recipes with these settings reuse it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from coprefl_flwr.errors import RunFailedError, SettingsError, os_error_line, say
from coprefl_flwr.studies.provenance import versions

INTERRUPTED = 130
REPORT_HELP = "folder of a recipe, or folders of studies (`flwr run`, `result.report()`)"
WORKERS_HELP = (
    "processes to use, one thread each; 1 needs no Ray (default: COPREFL_WORKERS, else one per "
    "GPU, else one per core); RAY_ADDRESS names a Ray cluster to use"
)
TRACKER_HELP = (
    "log metrics: tensorboard (in --out), mlflow (at MLFLOW_TRACKING_URI, else in --out), wandb "
    "(in the project WANDB_PROJECT), or your own: module:NAME or file.py:NAME"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        # Imported here, because help and wrong arguments need neither torch nor Flower.
        from coprefl_flwr.federation.flower import without_colours
        from coprefl_flwr.recipes import command_line

        without_colours()
        return command_line.COMMANDS[options.command](options) or 0
    except (SettingsError, RunFailedError) as error:
        say(f"coprefl: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # For example, the disk is full or a folder is read-only.
        say(f"coprefl: {os_error_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("\ncoprefl: stopped; the same command continues from here", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments of `coprefl`, with all its commands."""
    whole = argparse.ArgumentParser(prog="coprefl", description=__doc__.partition("\n")[0])
    whole.epilog = "`coprefl COMMAND --help` lists the options of a command, with an example."
    numbers = ", ".join(f"{name} {number}" for name, number in versions().items())
    whole.add_argument("--version", action="version", version=numbers, help="print versions")
    commands = whole.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )

    def add(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example:\n  coprefl {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    new = add("new", "write a small recipe in which every key is explained", "new first")
    new.add_argument("name", type=Path, help="name of the new recipe; writes NAME.yaml")
    workers = os.environ.get("COPREFL_WORKERS") or None
    for name, summary, example in (
        ("run", "run a recipe and write its report", "first.yaml --set seeds=[0,1,2]"),
        ("choose", "choose the best start with few of a recipe's runs", "first.yaml"),
    ):
        run = add(name, summary, f"{name} {example}")
        _add_recipe(run)
        output = run.add_argument_group("output")
        ending = "-choice" * (name == "choose")
        out = f"folder of the report (default: outputs/RECIPE[-PROTOCOL]{ending})"
        output.add_argument("--out", type=Path, metavar="DIR", help=out)
        results = "folder of the stored results (default: models next to --out)"
        output.add_argument("--models", type=Path, metavar="DIR", help=results)
        run.add_argument("--workers", type=int, default=workers, metavar="N", help=WORKERS_HELP)
        run.add_argument("--tracker", metavar="NAME", help=TRACKER_HELP)
    summary = "count the runs and rounds of a recipe, and measure a round of each kind"
    _add_recipe(add("plan", summary, "plan first.yaml"))
    summary = "write the report of finished results again, or print a table of several studies"
    report = add("report", summary, "report outputs/first")
    report.add_argument("out", type=Path, nargs="+", help=REPORT_HELP)
    row = "row that the others are tested against (default: the recipe's, or the first)"
    report.add_argument("--reference", metavar="NAME", help=row)
    listing = add("list", "list recipes, stored runs and studies", "list outputs")
    folders = "folder with the folders of recipes and studies (default: outputs)"
    listing.add_argument("outputs", type=Path, nargs="?", default=Path("outputs"), help=folders)
    summary = "check your own method against the rules that studies rely on"
    check = add("check-method", summary, "check-method mine.py:Mine")
    places = "a method as in the setting `method`: a name, module:NAME or file.py:NAME"
    check.add_argument("places", nargs="+", metavar="PLACE", help=places)
    check.add_argument("--no-flower", action="store_true", help="skip the run under Flower")
    summary = "send both exchanges of CoPreFL once to a Flower app, in one process"
    app = add("check-app", summary, "check-app my-app")
    app.add_argument("folder", type=Path, metavar="FOLDER", help="folder of a Flower app")
    app.add_argument("--nodes", type=int, default=2, help="number of nodes (default: 2)")
    of_nodes = "the nodes' settings, as for `flower-supernode`"
    app.add_argument("--node-config", default="", metavar="VALUES", help=of_nodes)
    add("schema", "print the JSON Schema of recipes, for editors", "schema > recipe.schema.json")
    return whole


def _add_recipe(command: argparse.ArgumentParser) -> None:
    """Add to a command the argument for a recipe, and the options that change its run."""
    command.add_argument("recipe", type=Path, help="a YAML file, such as those in examples/recipes")
    how = command.add_argument_group("what is run")
    scales = "full: as written; small: a trial of minutes on a CPU (default: full)"
    how.add_argument("--scale", choices=("full", "small"), default="full", help=scales)
    protocol = "protocol of the recipe to run (default: its first)"
    how.add_argument("--protocol", default="", metavar="NAME", help=protocol)
    changed = "change a setting or a key of the recipe; may be repeated"
    how.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="changes", help=changed
    )


if __name__ == "__main__":
    sys.exit(main())
