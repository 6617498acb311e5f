"""A misspelt setting of `flwr run` is named, and other apps are not affected."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.simulation import SCRIPT, check_names, main
from tests.common.simulation import ROOT


@pytest.mark.parametrize(
    "options",
    [
        ["--stream", "-c", "rounds=3 ronds=3"],
        ["-c", "rounds=3", "-c", "method='fedavg' ronds=3"],
        ["--run-config=ronds=3"],
        ["--run-config", "FILE"],
    ],
)
def test_misspelt_setting_is_refused_with_the_nearest_name(options, tmp_path):
    (tmp_path / "some.toml").write_text("method = 'fedavg'\nronds = 3\n")
    arguments = [str(tmp_path / "some.toml") if option == "FILE" else option for option in options]
    with pytest.raises(SettingsError) as caught:
        check_names(ROOT, arguments)
    assert str(caught.value) == "unknown setting 'ronds': did you mean 'rounds'?"


@pytest.mark.parametrize(
    ("app", "options"),
    [
        (ROOT, ["-c", "rounds=3 alpha=0.5"]),
        (ROOT, ["-c", str(ROOT / "examples" / "quickstart.toml")]),
        (ROOT, ["--stream"]),
        (ROOT, ["-c", "rounds='"]),  # Flower reports the error.
        (ROOT / "examples" / "own_app", ["-c", "ronds=3"]),
        (ROOT / "no-app", ["-c", "ronds=3"]),
    ],
)
def test_other_arguments_and_apps_are_left_to_flower(app, options, capsys):
    assert main(str(app), *options) == 0
    assert capsys.readouterr() == ("", "")


def test_script_starts_nothing_for_a_misspelt_setting(tmp_path):
    """Earlier, half a minute passed before the error "[code: 15] Invalid run configuration."."""
    home = tmp_path / "home"
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", SCRIPT, ROOT, "2", "-c", "ronds=3"],
        env={**os.environ, "PATH": paths, "SIMULATION_HOME": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == "simulate.sh: unknown setting 'ronds': did you mean 'rounds'?\n"
    assert not home.exists()
