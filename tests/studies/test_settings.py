"""The settings: defaults in one place, and a clear one-line error for every wrong value."""

import itertools
import re
from pathlib import Path

import pytest
import yaml

from coprefl_flwr.errors import SettingsError, excerpt
from coprefl_flwr.methods import HEAD, METHODS, short_forms
from coprefl_flwr.options import declared
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.phases import TRAINING_KEYS
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import GROUPS, Settings
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
def test_what_cannot_be_is_one_line_before_any_work(of, changes, named, bases, tmp_path):
    """There is no grid, so a study that starts to work would fail with another error."""
    with pytest.raises(SettingsError) as caught:
        run_study(None, build(Settings.from_config(bases[of] | changes)))
    line = str(caught.value)
    assert [str(value) for value in named if str(value) not in line] == [], line
    assert "\n" not in line
    assert not (tmp_path / "outputs").exists()


def test_round_trip():
    changed = {
        "seed": 7,
        "run-name": "a",
        "alpha": 0.1,
        "local-epochs": 3,
        "clip-norm": 2.5,
        "method": "coprefl:gamma=0.25",
        "gamma": 0.5,
        "variant": "I",
    }
    settings = Settings.from_config(changed)
    assert (settings.local_epochs, settings.local_steps, settings.clip_norm) == (3, None, 2.5)
    config = settings.to_config()
    assert config == Settings().to_config() | changed
    assert Settings.from_config(config) == settings
    assert Settings.of(**{key.replace("-", "_"): v for key, v in changed.items()}) == settings


def test_empty_config_is_the_defaults():
    assert Settings.from_config({}) == Settings()


def test_whole_numbers_are_numbers():
    learning_rate = Settings.from_config({"learning-rate": 1, "clip-norm": 2})
    assert typed({"a": learning_rate.learning_rate}) == {"a": (float, 1.0)}
    assert typed({"a": learning_rate.clip_norm}) == {"a": (float, 2.0)}


@pytest.mark.parametrize(
    "key", ["local-steps", "local-epochs", "task-local-steps", "clip-norm", "mu", "variant"]
)
def test_empty_text_is_not_set_where_that_is_possible(key):
    assert Settings.from_config({key: ""}) == Settings()


def test_a_key_near_to_none_is_told_all_keys():
    line = refusal({"zzz": 1})
    assert all(key in line for key in Settings().to_config())


@pytest.mark.parametrize(("key", "end"), [(key, end) for key, end, _, _ in ENDS])
def test_ends_of_ranges_are_allowed(key, end):
    written = Settings.from_config({key: end}).to_config()[key]
    assert typed({key: written}) == typed({key: end})


def of_numbers():
    """Return the keys of all settings and of all options of methods that are numbers."""
    options = [*declared(Settings).values(), *itertools.chain.from_iterable(short_forms().values())]
    return sorted({option.key for option in options if float in option.kinds})


@pytest.mark.parametrize("key", of_numbers())
def test_nan_is_outside_of_every_range(key):
    assert refusal({key: float("nan")}).startswith(f"{key} = nan: ")


def test_limits_hold_however_settings_are_made():
    for make, changes, named in [
        (Settings, {"momentum": 2}, "momentum = 2.0"),
        (Settings.of, {"gamma": 2}, "gamma = 2.0"),
        (Settings, {"norm": "bathc"}, "norm: unknown value 'bathc'"),
    ]:
        with pytest.raises(SettingsError, match=named):
            make(**changes)
    assert Settings.from_config({"clients": 5, "participants": 5}).participants == 5


def test_every_option_of_a_method_has_a_short_form_that_is_not_set_by_itself():
    config = Settings().to_config()
    for method in METHODS.values():
        if method.roles != (HEAD,):  # Options of heads are written after the head only.
            assert set(method.options) <= config.keys()
    assert {config[key] for key in short_forms()} == {""}
    assert config.keys() - short_forms().keys() == declared(Settings).keys()
    assert set(TRAINING_KEYS) < declared(Settings).keys()


def test_a_short_form_has_what_any_of_its_methods_allows():
    """SCAFFOLD has I and II, Per-FedAvg fo and hf."""
    assert Settings.of(variant="hf").short == (("variant", "hf"),)
    assert Settings.of(variant="II").short == (("variant", "II"),)


def test_each_setting_belongs_to_one_group():
    keys = [key for group in GROUPS for key in declared(group)]
    assert sorted(keys) == sorted(declared(Settings))
    settings = Settings.of(seed=7, alpha=2.0, rounds=3, gamma=0.5)
    for group in GROUPS:
        part = vars(settings.part(group))
        assert part == {name: getattr(settings, name) for name in part}


def test_a_count_can_be_a_whole_number():
    assert Settings.from_config({"downstream-classes": 20}) == Settings()  # As the text "20".
    assert Settings.of(pretraining_classes=30).pretraining_classes == "30"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("learning-rate", 10**400, "learning-rate = inf: "),
        ("rounds", 10**400, f"rounds = 1{'0' * 56}...: must be at most {2**63 - 1}"),
        ("rounds", 10**5000, "rounds = a number with thousands of digits: "),
        ("seed", 10**400, f"seed = 1{'0' * 56}...: must be at most {2**63 - 1}"),
        ("dataset", 10**400, f"dataset = 1{'0' * 56}...: "),
        ("study", "x" * 10**5, "study: unknown value 'xxx"),
    ],
    ids=excerpt,
)
def test_numbers_and_texts_of_any_size_are_one_short_line(key, value, line):
    problem = refusal({key: value})
    assert problem.startswith(line)
    assert len(problem) < 300


def test_a_seed_may_be_large():
    assert Settings(seed=10**18).seed == 10**18


@pytest.mark.parametrize(
    ("key", "shown"),
    [("a\nb", "a\\nb"), ("\x1b[2J", "\\x1b[2J"), ("\ud800", "\\ud800"), ("\u2028", "\\u2028")],
)
def test_what_does_not_print_is_escaped_in_the_line_about_it(key, shown):
    """A message with two lines could look like two messages.

    Half of a character cannot be printed.
    """
    line = refusal({key: 1})
    assert line.startswith(f"unknown setting '{shown}': ")
    assert line.isprintable()


def test_a_line_has_an_end():
    line = str(SettingsError(f"{'x' * 10**6}: cannot be read"))
    assert len(line) == 5000
    assert line.endswith("x: cannot be read")


def test_a_personalised_study_refuses_each_setting_that_it_does_not_use():
    """The settings are tested one by one.

    Each gets a value that a study of starting models allows.
    """
    texts = {"partition": "iid", "task-dataset": "MNIST", "client-wrapper": "a.py:Wrapper"}
    for key, option in declared(Settings).items():
        if not option.starts_only or key.startswith("client-wrapper"):
            continue
        value = texts.get(key, "list:1" if option.kind is str else True)
        if option.kind in (int, float):
            value = (option.default or 0) + (1 if option.kind is int else 0.01)
        settings = Settings.from_config(
            {"study": "personalised", "method": "fedavg", "server-reserve": 0.05} | {key: value}
        )
        with pytest.raises(SettingsError, match=re.escape(option.starts_only)) as caught:
            build(settings)
        assert caught.value.keys == (key,)


def test_settings_that_were_changed_and_count():
    changed = Settings.of(timeout=5.0, run_name="a", data_dir="b", rounds=7, gamma=0.25).changed()
    assert changed == {"rounds": 7, "gamma": 0.25}
