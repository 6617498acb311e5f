"""The folders of results: what their names depend on, and one process at a time in each."""

import logging
import threading
from pathlib import Path

import numpy as np
import pytest
import yaml

import coprefl_flwr
from coprefl_flwr.methods import PRETRAINING, VERSIONS
from coprefl_flwr.options import declared
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.studies.known_methods import METHODS, with_role
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import Store

BASE = {
    "model": "tests.common.networks:network",
    "downstream-classes": "list:0-2",
    "pretraining-classes": "list:3-7",
    "clients": 6,
    "participants": 3,
    "partition": "iid",
    "min-samples": 4,
    "server-reserve": 0.1,
    "task-method": "fedprox",
}

MODEL, TASK, BOTH, NONE, REFUSED = "model", "task", "both", "none", "refused"
DECISIONS = yaml.safe_load(Path(__file__).with_name("decisions.yaml").read_text())
"""{setting: (another value, the results that it changes)}. A new setting must be added there."""


def having(key):
    """Return a pre-training method that has an option: CoPreFL, if CoPreFL has it."""
    names = ["coprefl", *(name for name, method in METHODS.items() if PRETRAINING in method.roles)]
    return next(name for name in names if key in METHODS[name].declared_options)


def another(option):
    """Return a value that an option allows and that is not its default."""
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if isinstance(option.default, bool):
        return not option.default
    return option.default + 2 if isinstance(option.default, int) else option.default / 3 + 0.1


ATTACK = "examples/attacks/attackers.py:Scale"
WRAPPED = {"client-wrapper": ATTACK, "client-wrapper-share": 0.3}
"""Two settings that must be set together."""

HAVE = {
    key: having(key)
    for method in with_role(PRETRAINING).values()
    for key in method.declared_options
}
"""{option of methods: a method that has it}."""


@pytest.fixture(scope="module")
def in_domains(tiny_images, tmp_path_factory):
    """A folder with two files of the tiny images; every second image is a sketch."""
    arrays = dict(np.load(tiny_images))
    domains = np.arange(len(arrays["labels"])) % 2
    folder = tmp_path_factory.mktemp("domains")
    for name in ("base", "other"):
        names = ["photo", "sketch"]
        np.savez(folder / f"{name}.npz", **arrays, domains=domains, domain_names=names)
    return folder


@pytest.fixture
def base(in_domains):
    """Settings that can be combined with every value of `DECISIONS`."""
    return BASE | {"dataset": str(in_domains / "base.npz")}


def run(config, start):
    return Run.of(config, start, int(config.get("seed", 0)))


def names(config, start="coprefl"):
    of = run({key: value for key, value in config.items() if key != "method"}, start)
    return of.key, of.keys[1].partition("/tasks/")[2]


def test_every_setting_has_a_decision():
    assert sorted(DECISIONS) == sorted(declared(Settings))


@pytest.mark.parametrize("key", [key for key in DECISIONS if DECISIONS[key][1] != REFUSED])
def test_names_change_with_settings_that_change_results_alone(key, base, in_domains):
    value, enters = DECISIONS[key]
    value = str(in_domains / "other.npz") if value == "OTHER" else value
    start = "coprefl"
    if key in WRAPPED:
        base |= WRAPPED
    changed = base | {key: value}
    if key != "study":
        assert Settings.from_config(base | {"method": start}) != Settings.from_config(
            changed | {"method": start} if key != "method" else changed
        )
    before, after = names(base, start), names(changed, value if key == "method" else start)
    assert (before[0] != after[0]) == (enters in (MODEL, BOTH)), "the model's name"
    if enters != MODEL:  # A task of another model is another task, whatever its name is.
        assert (before[1] != after[1]) == (enters in (TASK, BOTH)), "the task's name"


@pytest.mark.parametrize(("key", "name"), HAVE.items())
def test_names_change_with_options_of_methods(key, name, base):
    value = str(another(METHODS[name].declared_options[key])).lower()
    # A mean uses neither of these two.
    robust = "aggregation=norm-clipping," * (key in ("tolerated-share", "clip-factor"))
    plain = f"{name}:{robust}".rstrip(":,")
    assert names(base, plain)[0] != names(base, f"{name}:{robust}{key}={value}")[0]


def test_equal_settings_in_other_words_have_the_same_names(base):
    """Two recipes that need the same model share it."""
    plain = names(base, "coprefl")
    assert names(base, "coprefl:gamma=0.5,rounds=50") == plain
    assert names(base | {"learning-rate": 0.05}, "coprefl") == plain
    assert names(base | {"learning-rate": 0.1}, "coprefl:learning-rate=0.05") == plain
    three = [names(base | {"task-method": f"fedprox:mu={mu}"}) for mu in ("3", "3.0")]
    assert three[0] == three[1]
    drawn = base | {"pretraining-classes": "", "downstream-classes": "list:2,0,1"}
    assert names(drawn) == names(base)


def test_name_of_a_task_has_its_number(base):
    of = run(base, "random")
    first, second = (key.partition("/tasks/") for key in of.keys[1:3])
    assert (first[0], second[0]) == (of.key, of.key)
    assert (first[2][:2], second[2][:2]) == ("0-", "1-")
    assert first[2][2:] == second[2][2:]
    assert run(base, "cyclic:rounds=2+fedavg").key.startswith("cyclic-fedavg-")
    assert of.key.startswith("random-")


def test_colour_task_dataset_makes_another_model_of_grey_images(base, in_domains):
    """The first layer then has three channels, although only the tasks use the colour dataset."""
    arrays = dict(np.load(in_domains / "base.npz"))
    arrays["images"] = np.repeat(arrays["images"][..., None], 3, axis=3)
    np.savez(in_domains / "colour.npz", **arrays)
    colour = base | {"task-dataset": str(in_domains / "colour.npz")}
    assert run(colour, "fedavg").main.architecture.input_shape == (3, 6, 6)
    assert names(colour)[0] != names(base)[0]


def test_samples_reserved_for_tasks_make_another_model(base, in_domains):
    seen = base | {"downstream-classes": "list:3-5", "allow-class-overlap": True}
    reserved = seen | {"task-reserve": 0.5}
    configs = (seen, reserved, reserved | {"task-reserve": 0.4})
    assert len({names(config)[0] for config in configs}) == 3
    assert names(reserved | {"downstream-classes": "list:3-6"})[0] != names(reserved)[0]
    assert names(seen | {"downstream-classes": "list:3-6"})[0] == names(seen)[0]
    # Tasks of another dataset have their own samples: no samples are kept for them.
    assert (
        names(reserved | {"task-dataset": str(in_domains / "other.npz")})[0] != names(reserved)[0]
    )


def test_names_change_with_the_version_of_a_method_alone(base, monkeypatch):
    before = names(base)
    monkeypatch.setattr(coprefl_flwr, "__version__", "9.9.9")
    assert names(base) == before
    monkeypatch.setitem(VERSIONS, "coprefl", 77)
    model = names(base)
    assert model[0] != before[0]
    monkeypatch.setitem(VERSIONS, "fedprox", 77)
    task = names(base)
    assert (task[0] != model[0], task[1] != model[1]) == (False, True)


def test_run_waits_for_another_process_with_the_same_run(base, tmp_path, caplog):
    """The other process is a thread with the same lock file."""
    caplog.set_level(logging.INFO, "flwr.coprefl")
    store, of = Store(tmp_path), run(base, "random")
    inside = threading.Event()

    def wait():
        with store.locked(of.main):
            inside.set()

    waiting = threading.Thread(target=wait)
    message = f"{of.key} is running in another process; waiting for its end"
    with store.locked(of.main):
        waiting.start()
        assert not inside.wait(0.3)
        assert caplog.messages == [message]
    waiting.join(30)
    assert inside.is_set()


def test_computed_head_makes_other_tasks_of_the_same_model(base):
    keys = {
        head: names(base | {"head": head})
        for head in ("fresh", "ncm", "ridge", "ridge:penalty=1", "ridge:logit-scale=2")
    }
    assert len({task for _, task in keys.values()}) == len(keys)
    assert len({model for model, _ in keys.values()}) == 1


def test_diagnosis_does_not_depend_on_the_head(base):
    def diagnosis(**changes):
        of = run(base | {"diagnostics": True, "tasks": 1, **changes}, "coprefl")
        return [stage.key for stage in of.study.stages if stage.phase == "diagnosis"]

    plain = diagnosis()
    assert len(plain) == 1
    assert diagnosis(head="ncm") == diagnosis(**{"task-rounds": 9}) == plain
    assert diagnosis(**{"task-learning-rate": 0.7}) != plain
    assert diagnosis(seed=5) != plain
