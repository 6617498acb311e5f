"""The settings: defaults in one place, and one clear line for whatever cannot be used."""

import pytest

from coprefl_flwr.errors import SettingsError, short
from coprefl_flwr.methods import HEAD, METHODS, short_forms
from coprefl_flwr.options import declared
from coprefl_flwr.studies.phases import TRAINING_KEYS
from coprefl_flwr.studies.settings import GROUPS, Settings


def typed(config):
    """Return {key: (type, value)}: in Python 1, 1.0 and True are equal, to Flower they are not."""
    return {key: (type(value), value) for key, value in config.items()}


def key_of(name):
    """Return the key of a name that is written with underscores."""
    return name.replace("_", "-")


def refusal(**config):
    """Return the one line that refuses `config`, whose keys are written with underscores."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_config({key_of(name): value for name, value in config.items()})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_round_trip():
    changed = {
        "seed": 7,
        "run-name": "a",
        "resume": True,
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
    assert line.startswith("unknown setting 'zzz': known are study, method, run-name, ")
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
    kept = Settings.from_config({key_of(name): good}).to_config()[key_of(name)]
    assert typed({name: kept}) == typed({name: good})
    assert refusal(**{name: bad}) == f"{key_of(name)} = {bad}: must be {allowed}"


def of_numbers():
    """Return the keys of all settings and of all options of methods that are numbers."""
    options = [*declared(Settings).values(), *(o for one in short_forms().values() for o in one)]
    return sorted({one.key for one in options if float in one.kinds})


@pytest.mark.parametrize("key", of_numbers())
def test_nan_is_outside_of_every_range(key):
    assert refusal(**{key: float("nan")}) == f"{key} = nan: must be a finite number"


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
    with pytest.raises(SettingsError, match=r"^momentum = 2\.0: must be between 0 and 0\.9999$"):
        Settings(momentum=2)
    with pytest.raises(SettingsError, match=r"^gamma = 2\.0: must be between 0 and 1$"):
        Settings.of(gamma=2)


def test_every_option_of_a_method_has_a_short_form_that_is_not_set_by_itself():
    config = Settings().to_config()
    for method in METHODS.values():
        if method.roles != (HEAD,):  # Their options are written behind the head alone.
            assert set(method.options) <= config.keys()
    assert {config[key] for key in short_forms()} == {""}
    assert config.keys() - short_forms().keys() == declared(Settings).keys()
    assert set(TRAINING_KEYS) < declared(Settings).keys()


def test_a_short_form_has_what_any_of_its_methods_allows():
    """SCAFFOLD has I and II, Per-FedAvg fo and hf."""
    assert Settings.of(variant="hf").short == (("variant", "hf"),)
    assert Settings.of(variant="II").short == (("variant", "II"),)
    assert refusal(variant="III") == "variant: unknown value 'III': did you mean 'II'?"
    known = refusal(variant="x").removeprefix("variant: unknown value 'x': known are ")
    assert {"I", "II", "fo", "hf", "maml"} < set(known.split(", "))
    assert refusal(variant=3) == "variant = 3: must be a text"
    assert refusal(mu="much") == "mu = 'much': must be a number"


def test_each_setting_belongs_to_one_group():
    keys = [key for group in GROUPS for key in declared(group)]
    assert sorted(keys) == sorted(declared(Settings))
    settings = Settings.of(seed=7, alpha=2.0, rounds=3, gamma=0.5)
    for group in GROUPS:
        part = vars(settings.part(group))
        assert part == {name: getattr(settings, name) for name in part}


def test_the_network_is_checked_in_python_too():
    with pytest.raises(SettingsError, match="norm: unknown value 'bathc': did you mean 'batch'"):
        Settings(norm="bathc")


def test_a_count_can_be_a_whole_number():
    assert Settings.from_config({"downstream-classes": 20}) == Settings()  # As the text "20".
    assert Settings.of(pretraining_classes=30).pretraining_classes == "30"
    for value in (2.5, True):
        with pytest.raises(SettingsError, match=r"downstream-classes = .*: must be a text"):
            Settings.from_config({"downstream-classes": value})


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("learning-rate", 10**400, "learning-rate = inf: must be a finite number"),
        (
            "rounds",
            10**400,
            f"rounds = 1{'0' * 56}...: must be at most {2**63 - 1}, as in messages",
        ),
        ("rounds", 10**5000, "rounds = a number of thousands of digits: must be at most"),
        ("seed", 10**400, f"seed = 1{'0' * 56}...: must be at most {2**63 - 1}, as in messages"),
        ("batch-size", 10**18, "batch-size = 1000000000000000000: must be at most 1,000,000,000"),
        ("clients", 10**18, "clients = 1000000000000000000: must be at most 1,000,000"),
        ("tasks", 10**9, "tasks = 1000000000: must be at most 100,000"),
        ("dataset", 10**400, f"dataset = 1{'0' * 56}...: must be a text"),
        ("dataset", "a\0b", "dataset = 'a\\x00b': holds a NUL character"),
        ("study", "x" * 10**5, "study: unknown value 'xxx"),
    ],
    ids=short,
)
def test_numbers_and_texts_of_any_size_are_one_short_line(key, value, line):
    with pytest.raises(SettingsError) as caught:
        Settings.from_config({key: value})
    assert str(caught.value).startswith(line)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_a_seed_may_be_large():
    assert Settings(seed=10**18).seed == 10**18


@pytest.mark.parametrize(
    ("key", "shown"),
    [("a\nb", "a\\nb"), ("\x1b[2J", "\\x1b[2J"), ("\ud800", "\\ud800"), ("\u2028", "\\u2028")],
)
def test_what_does_not_print_is_escaped_in_the_line_about_it(key, shown):
    """A line of two lines could be taken for another, and half a letter cannot be printed."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_config({key: 1})
    assert str(caught.value).startswith(f"unknown setting '{shown}': ")
    assert str(caught.value).isprintable()


def test_a_line_has_an_end():
    line = str(SettingsError(f"{'x' * 10**6}: cannot be read"))
    assert len(line) == 5000
    assert line.endswith("x: cannot be read")
