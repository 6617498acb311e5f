"""The settings: defaults in one place, and one clear line for whatever cannot be used."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import coprefl_flwr
from coprefl_flwr.data import SCHEMES
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.settings import PARTITIONS, Settings, key_of, settings_table

PYPROJECT = Path(coprefl_flwr.__file__).parents[1] / "pyproject.toml"


def typed(config):
    """Return {key: (type, value)}: in Python 1, 1.0 and True are equal, to Flower they are not."""
    return {key: (type(value), value) for key, value in config.items()}


def refusal(**config):
    """Return the one line that refuses `config`, whose keys are written with underscores."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_config({key_of(name): value for name, value in config.items()})
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.skipif(not PYPROJECT.exists(), reason="an installed package has no pyproject.toml")
def test_defaults_are_those_of_pyproject():
    app = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]
    assert typed(app["config"]) == typed(Settings().to_config())


def test_round_trip():
    changed = {
        "seed": 7,
        "run-name": "a",
        "resume": True,
        "alpha": 0.1,
        "local-epochs": 3,
        "clip-norm": 2.5,
        "method": "coprefl:gamma=0.25",
    }
    settings = Settings.from_config(changed)
    assert (settings.local_epochs, settings.local_steps, settings.clip_norm) == (3, None, 2.5)
    config = settings.to_config()
    assert config == Settings().to_config() | changed
    assert Settings.from_config(config) == settings


def test_empty_config_is_the_defaults():
    assert Settings.from_config({}) == Settings()


def test_whole_numbers_are_numbers():
    learning_rate = Settings.from_config({"learning-rate": 1, "clip-norm": 2})
    assert typed({"a": learning_rate.learning_rate}) == {"a": (float, 1.0)}
    assert typed({"a": learning_rate.clip_norm}) == {"a": (float, 2.0)}


@pytest.mark.parametrize("key", ["local-steps", "local-epochs", "task-local-steps", "clip-norm"])
def test_empty_text_is_not_set_where_that_is_possible(key):
    assert Settings.from_config({key: ""}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("rond", 3, "unknown setting 'rond': did you mean 'rounds'?"),
        ("gama", 0.5, "unknown setting 'gama': did you mean 'gamma'?"),
        ("rounds", True, "rounds = True: must be a whole number"),
        ("rounds", 2.0, "rounds = 2.0: must be a whole number"),
        ("rounds", "5", "rounds = '5': must be a whole number"),
        ("rounds", None, "rounds = None: must be a whole number"),
        ("rounds", "", "rounds = '': must be a whole number"),
        ("local_steps", 2.5, "local-steps = 2.5: must be a whole number"),
        ("local_steps", False, "local-steps = False: must be a whole number"),
        ("alpha", "0.5", "alpha = '0.5': must be a number"),
        ("alpha", True, "alpha = True: must be a number"),
        ("clip_norm", "none", "clip-norm = 'none': must be a number"),
        ("resume", 1, "resume = 1: must be true or false"),
        ("resume", "true", "resume = 'true': must be true or false"),
        ("run_name", 3, "run-name = 3: must be a text"),
        ("norm", "bach", "norm: unknown value 'bach': did you mean 'batch'?"),
        ("norm", "x", "norm: unknown value 'x': known are batch, group"),
    ],
)
def test_unknown_keys_types_and_choices(name, value, line):
    assert refusal(**{name: value}) == line


def test_a_key_near_to_none_is_told_all_keys():
    line = refusal(zzz=1)
    assert line.startswith("unknown setting 'zzz': known are run-name, ")
    assert all(key in line for key in Settings().to_config())


def test_python_names_are_not_keys():
    with pytest.raises(SettingsError, match="'local_steps': did you mean 'local-steps'"):
        Settings.from_config({"local_steps": 3})


@pytest.mark.parametrize(
    ("name", "good", "bad", "allowed"),
    [
        ("seed", 0, -1, "at least 0"),
        ("rounds", 1, 0, "at least 1"),
        ("local_steps", 1, 0, "at least 1"),
        ("min_samples", 2, 1, "at least 2"),
        ("tasks", 0, -1, "at least 0"),
        ("gamma", 0.0, -0.01, "between 0 and 1"),
        ("gamma", 1.0, 1.01, "between 0 and 1"),
        ("momentum", 0.0, -0.1, "between 0 and 0.9999"),
        ("momentum", 0.9999, 1.0, "between 0 and 0.9999"),
        ("meta_learning_rate", 0.0, -1e-9, "at least 0"),
        ("alpha", 1e-9, 0.0, "above 0"),
        ("clip_norm", 1e-9, 0.0, "above 0"),
        ("support_fraction", 0.99, 1.0, "above 0 and at most 0.99"),
        ("support_fraction", 0.01, 0.0, "above 0 and at most 0.99"),
        ("learning_rate_decay", 1.0, 1.001, "above 0 and at most 1"),
        ("timeout", 0.1, 0.0, "above 0"),
    ],
)
def test_ends_of_ranges(name, good, bad, allowed):
    assert getattr(Settings.from_config({key_of(name): good}), name) == good
    assert refusal(**{name: bad}) == f"{key_of(name)} = {bad}: must be {allowed}"


@pytest.mark.parametrize(
    "name", [f.name for f in fields(Settings) if f.type in (float, float | None)]
)
def test_nan_is_outside_of_every_range(name):
    assert refusal(**{name: float("nan")}).startswith(f"{key_of(name)} = nan: must be ")


def test_what_must_hold_between_settings():
    assert refusal(local_steps=5, local_epochs=2) == (
        "local-steps = 5 and local-epochs = 2: set one of them, not both"
    )
    assert refusal(task_local_steps=5, task_local_epochs=2) == (
        "task-local-steps = 5 and task-local-epochs = 2: set one of them, not both"
    )
    assert refusal(clients=4, participants=5) == "participants = 5: must be at most clients = 4"
    assert Settings.from_config({"clients": 5, "participants": 5}).participants == 5
    assert refusal(resume=True) == "resume = true: needs the run-name of the run to go on with"


def test_limits_hold_however_settings_are_made():
    with pytest.raises(SettingsError, match="gamma = 2: must be between 0 and 1"):
        Settings(gamma=2)


def test_partitions_are_those_there_are():
    assert PARTITIONS == SCHEMES


def test_table_has_a_row_per_key():
    rows = settings_table().splitlines()[2:]
    keys = [re.match(r"\| `([a-z-]+)` \|", row)[1] for row in rows]
    assert keys == list(Settings().to_config())
    # A column more or less would be an unescaped bar: |M| and |m| stand in the meanings.
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
    (gamma,) = (row for row in rows if "`gamma`" in row)
    assert gamma.startswith("| `gamma` | not set | between 0 and 1 | ")
    (steps,) = (row for row in rows if "`local-steps`" in row)
    assert steps.startswith("| `local-steps` | not set (steps) | at least 1 | ")
