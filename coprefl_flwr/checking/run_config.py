"""Check that the settings of `flwr run APP -c "..."` are some that the app has, and Ray's cluster.

    python -m coprefl_flwr.checking.run_config APP [flwr run options ...]

Flower answers a misspelt one with "[code: 15] Invalid run configuration." alone. Only for this
package's own app; whatever else is wrong is left to Flower and to the app. Of a Ray cluster that is
gone, Ray itself would say so after 12 minutes.
"""

import itertools
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from coprefl_flwr.errors import RunFailedError, SettingsError, unknown
from coprefl_flwr.flower import check_cluster, flat, given_config

OPTIONS = ("-c", "--run-config")
OURS = "coprefl_flwr.server_app:app"


def check_names(app: Path, options: Sequence[str]) -> None:
    """Raise a SettingsError for a setting that `options` give and this package has not."""
    try:
        made = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]
        if made["app"]["components"]["serverapp"] != OURS:
            return
        known, given = flat(made["app"]["config"]), given_config(_configs(options))
    except Exception:  # No app, no TOML: Flower says which.
        return
    for key in given:
        if key not in known:
            raise SettingsError(unknown("setting", key, known), key)


def _configs(options: Sequence[str]) -> list[str]:
    """Return what follows each -c or --run-config."""
    found = [text for option, text in itertools.pairwise(options) if option in OPTIONS]
    long = f"{OPTIONS[1]}="
    return found + [one.removeprefix(long) for one in options if one.startswith(long)]


def main(app: str, *options: str) -> int:
    """Say what is wrong in one line; return the exit status."""
    try:
        check_names(Path(app), options)
        check_cluster()
    except (SettingsError, RunFailedError) as error:
        print(f"simulate.sh: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
