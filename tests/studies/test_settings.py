"""The settings: defaults in one place, and a clear one-line error for every wrong value."""

from pathlib import Path

import pytest
import yaml

from coprefl_flwr.errors import SettingsError, excerpt
from coprefl_flwr.options import declared
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import OF_STARTS, Settings
from tests.common.data import write_domain

REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
ENDS = REFUSED.pop("ends")
ROWS = [(of, *row) for of, rows in REFUSED.items() for row in rows]
ROWS += [("tiny", {key: bad}, [key, bad, allowed]) for key, _, bad, allowed in ENDS]


def typed(config):
    """Return {key: (type, value)}: 1, 1.0 and True are equal in Python, but not for Flower."""
    return {key: (type(value), value) for key, value in config.items()}


def refusal(config):
    """Return the one-line error message for a run-config."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_config(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def three_datasets(tmp_path_factory):
    """The paths of the datasets of a personalised study, in one text."""
    folder = tmp_path_factory.mktemp("datasets")
    paths = [folder / f"{name}.npz" for name in ("plain", "noisy", "noisier")]
    for number, path in enumerate(paths):
        write_domain(path, number)
    return " ".join(map(str, paths))


@pytest.fixture
def bases(tiny_settings, three_datasets):
    """The run-configs that the rows of refused.yaml change."""
    every, folder = "list:0-6", {"run-name": "tiny", "output-dir": tiny_settings.output_dir}
    split = {"pretraining-domains": "plain inverted outlined", "downstream-domains": "turned"}
    classes = {"pretraining-classes": every, "downstream-classes": every, "task-classes": 7}
    sizes = {"clients": 6, "participants": 3, "task-clients": 4}
    personal = {"personal-datasets": three_datasets, "method": "fedpcl", "train-per-class": 6}
    return {
        "tiny": tiny_settings.to_config(),
        "domains": {"dataset": "glyphs:domains", **split, **classes, **sizes, **folder},
        "personalised": {"study": "personalised", "test-per-class": 20, **personal, **folder},
    }


@pytest.mark.parametrize(("of", "changes", "named"), ROWS, ids=excerpt)
def test_wrong_setting_is_refused_in_one_line_before_any_work(of, changes, named, bases, tmp_path):
    """There is no grid, so a study that starts to work would fail with another error."""
    with pytest.raises(SettingsError) as caught:
        run_study(None, build(Settings.from_config(bases[of] | changes)))
    line = str(caught.value)
    assert [str(value) for value in named if str(value) not in line] == [], line
    assert "\n" not in line
    assert not (tmp_path / "outputs").exists()


def test_settings_equal_those_read_from_their_config():
    changed = {
        "seed": 7,
        "run-name": "a",
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
    assert Settings(**{key.replace("-", "_"): v for key, v in changed.items()}) == settings


def test_settings_keep_or_convert_types_of_values():
    """An empty text is a setting that is not set; 1, 1.0 and True are equal in Python."""
    for key in ("local-steps", "local-epochs", "task-local-steps", "clip-norm"):
        assert Settings.from_config({key: ""}) == Settings()
    settings = Settings.from_config({"learning-rate": 1, "clip-norm": 2, "seed": 10**18})
    assert (type(settings.learning_rate), type(settings.clip_norm)) == (float, float)
    assert settings.seed == 10**18
    assert Settings.from_config({"downstream-classes": 20}) == Settings()  # As the text "20".
    assert Settings.from_config({"pretraining-classes": 30}).pretraining_classes == "30"
    assert build(Settings(clients=5, participants=5)).stages


@pytest.mark.parametrize(("key", "end"), [(key, end) for key, end, _, _ in ENDS])
def test_ends_of_ranges_are_allowed_values(key, end):
    written = Settings.from_config({key: end}).to_config()[key]
    assert typed({key: written}) == typed({key: end})


NUMBERS = [key for key, option in declared(Settings).items() if float in option.kinds]


@pytest.mark.parametrize("key", NUMBERS)
def test_nan_is_refused_for_every_number(key):
    assert refusal({key: float("nan")}).startswith(f"{key} = nan: ")


def test_personalised_study_refuses_settings_that_it_does_not_use():
    """The settings are tested one by one.

    Each gets a value that a study of starting models allows.
    """
    texts = {"partition": "iid", "task-dataset": "MNIST", "keep": "loss", "task-partition": "iid"}
    texts |= {
        "head": "ncm",
        "adapter": "lora:targets=conv1",
        "task-method": "fedprox",
        "task-optimiser": "adam",
    }
    for key in OF_STARTS:
        if key.startswith("client-wrapper"):
            continue
        option = declared(Settings)[key]
        value = texts.get(key, "list:1" if option.kind is str else True)
        if option.kind in (int, float):
            value = (option.default or 0) + (1 if option.kind is int else 0.01)
        settings = Settings.from_config({"study": "personalised", "method": "fedavg", key: value})
        with pytest.raises(SettingsError, match="not used with study = personalised") as caught:
            build(settings)
        assert caught.value.keys == (key,)


def test_changed_settings_are_those_that_change_results():
    changed = Settings(timeout=5.0, run_name="a", data_dir="b", rounds=7, alpha=0.25).changed()
    assert changed == {"rounds": 7, "alpha": 0.25}
