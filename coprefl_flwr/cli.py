"""`coprefl`: run recipes, report their results, and list what a recipe can use.

    coprefl new NAME
    coprefl run RECIPE [--out DIR] [--models DIR] [--scale small] [--protocol NAME]
               [--set KEY=VALUE] [--workers N]
    coprefl plan RECIPE [as run]
    coprefl report DIR
    coprefl list [DIR]
    coprefl show RUN
    coprefl check-method PLACE [PLACE ...] [--no-flower]
    coprefl schema
    coprefl --version

DIR keeps the recipe as it was run and its report; the results themselves are in MODELS, by the hash
of their settings, for every recipe that needs them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import RunFailedError, SettingsError, os_error_line, say, waiting

INTERRUPTED = 130
REPORT_HELP = "the folder of a recipe, of a run of `flwr run`, or of `result.report()`"
WORKERS_HELP = (
    "processes of one thread each, on Ray or, of 1, this one (default: COPREFL_WORKERS, or one per "
    "GPU, or per core; then little work is done in this one too); RAY_ADDRESS names a cluster"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        # Only now: help, and a mistake in the command line, need neither torch nor Flower.
        with waiting("loading PyTorch and Flower"):
            from coprefl_flwr.federation.flower import without_colours
            from coprefl_flwr.recipes import command_line

        without_colours()
        return command_line.COMMANDS[options.command](options)
    except (SettingsError, RunFailedError) as error:
        say(f"coprefl: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # The disk is full, a folder is gone or may not be written to.
        say(f"coprefl: {os_error_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("\ncoprefl: stopped; the same command continues from here", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    whole = argparse.ArgumentParser(prog="coprefl", description=__doc__.partition("\n")[0])
    whole.add_argument("--version", action=_Version, nargs=0, help="print versions, and exit")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a recipe, and report")
    _add_recipe(run)
    run.add_argument("--workers", type=int, metavar="N", help=WORKERS_HELP)
    run.add_argument("--tensorboard", metavar="DIR", help="write metrics there too")
    run.add_argument("--mlflow", metavar="PLACE", help="there, for MLflow: a folder, or an address")
    run.add_argument("--wandb", metavar="PROJECT", help="there, at Weights & Biases")
    run.add_argument("--tracker", metavar="PLACE", help="your own: module:NAME or file.py:NAME")
    plan = commands.add_parser("plan", help="say what a recipe takes, before it is run")
    _add_recipe(plan)
    shared = "cores that share the hours (default: 1)"
    plan.add_argument("--workers", type=int, default=1, metavar="N", help=shared)
    new = commands.add_parser("new", help="write a small recipe with every key explained")
    new.add_argument("name", type=Path, help="of the recipe, which goes to NAME.yaml")
    report = commands.add_parser("report", help="write tables, figures and a page from results")
    report.add_argument("out", type=Path, help=REPORT_HELP)
    listed = commands.add_parser("list", help="what there is")
    folders = "the folder of recipes' folders and of studies (default: outputs)"
    listed.add_argument("outputs", type=Path, nargs="?", default=Path("outputs"), help=folders)
    show = commands.add_parser("show", help="one starting model and its tasks")
    show.add_argument("name", help="its name in `coprefl list`, or the beginning of it")
    models = Path("outputs/models")
    show.add_argument(
        "--models", type=Path, default=models, help=f"where results are stored (default: {models})"
    )
    check = commands.add_parser("check-method", help="check that a method keeps what studies need")
    check.add_argument("places", nargs="+", metavar="PLACE", help="as in the setting `method`")
    check.add_argument("--no-flower", action="store_true", help="leave out the run under Flower")
    commands.add_parser("schema", help="print the JSON Schema of a recipe, for editors")
    return whole


def _add_recipe(command: argparse.ArgumentParser) -> None:
    """Add a recipe and the options that change what of it is run."""
    add = command.add_argument
    add("recipe", type=Path, help="a YAML file, such as those in examples/recipes")
    add("--out", type=Path, help="its folder (default: outputs/RECIPE[-PROTOCOL])")
    add("--models", type=Path, help="where results are stored (default: models next to --out)")
    add("--scale", choices=("full", "small"), default="full", help="small: minutes on a CPU")
    add("--protocol", default="", metavar="NAME", help="of the recipe (default: the first)")
    changed = "a setting or a key of the recipe, as in YAML; give it again for more"
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes", help=changed)


class _Version(argparse.Action):
    """Prints versions, which take a while to find, where they are asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from coprefl_flwr.studies.provenance import versions

        say(", ".join(f"{name} {version}" for name, version in versions().items()))
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
