"""The folders of results: what their names depend on, and one process at a time in each."""

import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

import coprefl_flwr
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import METHODS, PRETRAINING, VERSIONS, short_forms
from coprefl_flwr.options import declared
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.studies.hashes import content_hashes
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import Store

PACKAGE = Path(coprefl_flwr.__file__).parent
ROOT = PACKAGE.parent

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

# For each setting, another value and the results that it changes: the model, the tasks, both or
# none. A task's folder is below its model's folder, so its name need not repeat what changes the
# model. Every new setting must be added here: if it is missing in a name, two different results
# would count as the same. The settings of a personalised study are refused here.
MODEL, TASK, BOTH, NONE, REFUSED = "model", "task", "both", "none", "refused"
DECISIONS = {
    "study": ("starts", NONE),  # The other kind is tested in `test_personal_runs`.
    "run-name": ("other", NONE),
    "output-dir": ("elsewhere", NONE),
    "seed": (1, MODEL),
    "dataset": ("OTHER", MODEL),
    "data-dir": ("elsewhere", NONE),
    "samples-per-class": (20, MODEL),
    "relabel": (True, MODEL),
    "image-size": (8, MODEL),
    "task-dataset": ("OTHER", TASK),
    "downstream-classes": ("list:0-1", TASK),
    "pretraining-classes": ("list:3-6", MODEL),
    "downstream-domains": ("sketch", TASK),
    "pretraining-domains": ("photo", MODEL),
    "allow-class-overlap": (True, NONE),
    "task-reserve": (0.5, BOTH),
    "clients": (7, MODEL),
    "partition": ("dirichlet", MODEL),
    "alpha": (0.1, MODEL),
    "classes-per-client": (3, MODEL),
    "min-samples": (5, MODEL),
    "server-reserve": (0.2, MODEL),
    "server-share": (0.05, MODEL),
    "test-every": (1, MODEL),
    "model": ("lenet5", MODEL),
    "norm": ("group", MODEL),
    "method": ("fedavg", MODEL),
    "rounds": (51, MODEL),
    "participants": (4, MODEL),
    "client-wrapper": ("examples/attacks/attackers.py:Noise", MODEL),
    "client-wrapper-share": (0.5, MODEL),
    "local-steps": (6, MODEL),
    "local-epochs": (6, MODEL),
    "batch-size": (7, BOTH),
    "learning-rate": (0.3, MODEL),
    "learning-rate-decay": (0.3, MODEL),
    "momentum": (0.3, MODEL),
    "weight-decay": (0.3, MODEL),
    "clip-norm": (0.3, MODEL),
    "max-local-steps": (3, MODEL),
    "precision": ("bf16", BOTH),
    "tasks": (7, NONE),
    "task-classes": (3, TASK),
    "head": ("keep", TASK),
    "head-layer": ("fc", NONE),  # It enters the name if the head is computed.
    "diagnostics": (True, NONE),
    "start-loss": (True, NONE),
    "measurements": ("tests.common.measurements:Norm", NONE),
    "stop-at-loss": (3.0, MODEL),
    "stop-check-every": (2, NONE),
    "task-clients": (7, TASK),
    "task-partition": ("iid", TASK),
    "task-alpha": (0.3, TASK),
    "task-train-fraction": (0.3, TASK),
    "task-method": ("fedavg", TASK),
    "task-rounds": (7, TASK),
    "task-local-steps": (7, TASK),
    "task-local-epochs": (7, TASK),
    "task-learning-rate": (0.3, TASK),
    "task-evaluate-every": (7, TASK),
    "personal-datasets": ("OTHER", REFUSED),
    "personal-clients": (7, REFUSED),
    "shift": ("both", REFUSED),
    "train-per-class": (7, REFUSED),
    "test-per-class": (7, REFUSED),
    "backbones": ("resnet18", REFUSED),
    "head-norm": ("none", REFUSED),
    "noise-on": ("images", REFUSED),
    "noise-kind": ("gaussian", REFUSED),
    "noise-scale": (0.3, REFUSED),
    "noise-share": (0.3, REFUSED),
    "min-available-nodes": (2, NONE),
    "min-replies": (2, MODEL),
    "max-failed-rounds": (7, NONE),
    "timeout": (7.0, NONE),
    "checkpoint-every": (7, NONE),
    "client-metrics": ("tests.common.own_parts:entropy", TASK),
}


def having(key):
    """Return a pre-training method that has an option: CoPreFL, if CoPreFL has it."""
    names = ["coprefl", *(name for name, method in METHODS.items() if PRETRAINING in method.roles)]
    return next(name for name in names if key in METHODS[name].options)


def another(option):
    """Return a value that an option allows and that is not its default."""
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if isinstance(option.default, bool):
        return not option.default
    return option.default + 2 if isinstance(option.default, int) else option.default / 3 + 0.1


WRAPPED = {
    "client-wrapper": "examples/attacks/attackers.py:Scale",
    "client-wrapper-share": 0.3,
}
"""Two settings that must be set together."""

HAVE = {key: having(key) for key in short_forms()}
"""{option of methods: a method that has it}. Options of a new method need no entry above."""

for key, name in HAVE.items():
    in_tasks = key in METHODS[BASE["task-method"]].options
    DECISIONS[key] = (another(METHODS[name].options[key]), BOTH if in_tasks else MODEL)


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


def test_every_setting_was_decided_about():
    assert sorted(DECISIONS) == sorted([*declared(Settings), *short_forms()])


@pytest.mark.parametrize("key", [key for key in DECISIONS if DECISIONS[key][1] != REFUSED])
def test_names_change_with_what_enters_a_number_and_with_nothing_else(key, base, in_domains):
    value, enters = DECISIONS[key]
    value = str(in_domains / "other.npz") if value == "OTHER" else value
    start = HAVE.get(key, "coprefl")
    if key in WRAPPED:
        base |= WRAPPED
    if key in ("tolerated-share", "clip-factor"):  # A mean uses neither.
        base |= {"aggregation": "norm-clipping"}
    changed = base | {key: value}
    if key != "study":
        assert Settings.from_config(base | {"method": start}) != Settings.from_config(
            changed | {"method": start} if key != "method" else changed
        )
    before, after = names(base, start), names(changed, value if key == "method" else start)
    assert (before[0] != after[0]) == (enters in (MODEL, BOTH)), "the model's name"
    if enters != MODEL:  # A task of another model is another task, whatever its name is.
        assert (before[1] != after[1]) == (enters in (TASK, BOTH)), "the task's name"


@pytest.mark.parametrize("key", [key for key in DECISIONS if DECISIONS[key][1] == REFUSED])
def test_what_only_a_personalised_study_heeds_is_refused(key, base):
    value, _ = DECISIONS[key]
    with pytest.raises(SettingsError, match=rf"^{key} = .*: set study = personalised to use it$"):
        names(base | {key: value})


@pytest.mark.parametrize(
    "key", [key for key in short_forms() if key not in METHODS["fedavg"].options]
)
def test_what_only_other_methods_have_changes_nothing(key, base):
    value, _ = DECISIONS[key]
    plain = base | {"task-method": "fedavg"}
    assert names(plain | {key: value}, "fedavg") == names(plain, "fedavg")


def test_a_setting_is_the_same_however_it_is_written(base):
    """Two recipes that need the same model share it."""
    plain = names(base, "coprefl")
    assert names(base, "coprefl:gamma=0.5,rounds=50") == plain
    assert names(base | {"gamma": 0.5, "learning-rate": 0.05}, "coprefl") == plain
    assert names(base | {"gamma": 0.1}, "coprefl:gamma=0.5") == plain
    assert names(base, "coprefl:gamma=0.25") == names(base | {"gamma": 0.25}, "coprefl")
    assert names(base | {"task-method": "fedprox:mu=3"}) == names(base | {"mu": 3.0})
    drawn = base | {"pretraining-classes": "", "downstream-classes": "list:2,0,1"}
    assert names(drawn) == names(base)


def test_a_task_has_a_name_of_its_own(base):
    of = run(base, "random")
    first, second = (key.partition("/tasks/") for key in of.keys[1:3])
    assert (first[0], second[0]) == (of.key, of.key)
    assert (first[2][:2], second[2][:2]) == ("0-", "1-")
    assert first[2][2:] == second[2][2:]
    assert run(base, "cyclic:rounds=2+fedavg").key.startswith("cyclic-fedavg-")
    assert of.key.startswith("random-")


def test_grey_images_that_become_colour_make_another_model(base, in_domains):
    """The first layer then has three channels, although only the tasks use the colour dataset."""
    arrays = dict(np.load(in_domains / "base.npz"))
    arrays["images"] = np.repeat(arrays["images"][..., None], 3, axis=3)
    np.savez(in_domains / "colour.npz", **arrays)
    colour = base | {"task-dataset": str(in_domains / "colour.npz")}
    assert run(colour, "fedavg").main.architecture.input_shape == (3, 6, 6)
    assert names(colour)[0] != names(base)[0]


def test_samples_kept_for_the_tasks_make_another_model(base, in_domains):
    seen = base | {"downstream-classes": "list:3-5", "allow-class-overlap": True}
    reserved = seen | {"task-reserve": 0.5}
    assert (
        len({names(config)[0] for config in (seen, reserved, reserved | {"task-reserve": 0.4})})
        == 3
    )
    assert names(reserved | {"downstream-classes": "list:3-6"})[0] != names(reserved)[0]
    assert names(seen | {"downstream-classes": "list:3-6"})[0] == names(seen)[0]
    # Tasks of another dataset have their own samples: no samples are kept for them.
    assert (
        names(reserved | {"task-dataset": str(in_domains / "other.npz")})[0] != names(reserved)[0]
    )


def test_another_version_of_a_method_makes_other_results_and_of_the_package_does_not(
    base, monkeypatch
):
    before = names(base)
    monkeypatch.setattr(coprefl_flwr, "__version__", "9.9.9")
    assert names(base) == before
    monkeypatch.setitem(VERSIONS, "coprefl", 77)
    model = names(base)
    assert model[0] != before[0]
    monkeypatch.setitem(VERSIONS, "fedprox", 77)
    task = names(base)
    assert (task[0] != model[0], task[1] != model[1]) == (False, True)


def test_another_text_of_a_users_own_model_makes_another_model(base, tmp_path, monkeypatch):
    text = "from tests.common.networks import network\n"
    (tmp_path / "own_model_of_a_user.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = base | {"model": "own_model_of_a_user:network"}
    before = names(own)
    assert names(own) == before
    (tmp_path / "own_model_of_a_user.py").write_text(f"{text}\n# Another text.\n")
    assert names(own)[0] != before[0]
    (tmp_path / "own_model_of_a_user.py").write_text(text)
    assert names(own) == before


def test_the_settings_of_a_run_are_those_that_were_asked_for(base):
    of = run(base | {"q": 5.0, "gamma": 0.25}, "coprefl")
    assert str(of.settings.method) == "coprefl"
    assert of.settings.short == (("gamma", 0.25),)
    assert of.study.config["checkpoint-every"] == 1  # A crash loses at most one round.


def test_one_at_a_time(base, tmp_path):
    store, of = Store(tmp_path), run(base, "random")
    inside, most = [], []

    def work():
        for _ in range(5):
            with store.locked(of.main):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 30
    assert list(store.folder(of.main).iterdir()) == []


HOLD = """
import json, sys
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.studies.store import Store
from pathlib import Path
from subprocess import PIPE
run = Run.of(json.loads(sys.argv[2]), "random", 0)
with Store(Path(sys.argv[1])).locked(run.main):
    print(run.key, flush=True)
    sys.stdin.readline()
"""


def test_a_run_that_another_process_makes_is_waited_for(base, tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr.coprefl")
    store, of = Store(tmp_path), run(base, "random")
    inside = threading.Event()

    def wait():
        with store.locked(of.main):
            inside.set()

    arguments = [sys.executable, "-c", HOLD, str(tmp_path), json.dumps(base)]
    with subprocess.Popen(arguments, text=True, stdin=PIPE, stdout=PIPE, cwd=ROOT) as other:
        assert other.stdout.readline() == f"{of.key}\n"
        waiting = threading.Thread(target=wait)
        waiting.start()
        deadline = time.monotonic() + 30
        message = f"{of.key} is running in another process; waiting for its end"
        while message not in caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        assert caplog.messages == [message]
        assert not inside.wait(0.3)
        other.communicate("go on\n")
        waiting.join(30)
    assert inside.is_set()
    # The process does not wait if the run is free.
    with store.locked(of.main):
        assert caplog.messages == [message]


def test_the_lock_is_not_of_one_operating_system():
    """Windows has no fcntl."""
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    assert [path for path, text in sources.items() if "fcntl" in text] == []


def test_what_a_killed_process_was_writing_is_removed(base, tmp_path):
    store, of = Store(tmp_path), run(base, "random")
    folder = store.folder(of.main)
    (folder / "tasks" / "0-ab").mkdir(parents=True)
    for remains in (".rounds.jsonl.77.coprefl-part", "tasks/0-ab/.result.json.77.coprefl-part"):
        (folder / remains).touch()
    (folder / "model.json").touch()
    with pytest.raises(ValueError, match="stop"), store.locked(of.main):
        raise ValueError("stop")
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["model.json"]


def test_what_a_file_holds_is_part_of_the_name(tmp_path):
    """Another model in the same folder is another backbone, another file another dataset."""
    weights, data = tmp_path / "model.safetensors", tmp_path / "data.npz"
    named = [f"{data}:coarse", str(tmp_path), str(weights), f"{data}@photo"]
    keys = []
    for first, second in ((b"a", b"b"), (b"A", b"b"), (b"A", b"B")):
        weights.write_bytes(first)
        data.write_bytes(second)
        keys.append(content_hashes(named))
    assert list(keys[0]) == named
    assert keys[0][str(tmp_path)] == keys[0][str(weights)] != keys[1][str(weights)]
    assert keys[0][named[0]] == keys[1][named[0]] != keys[2][named[0]]
    assert keys[0][named[0]] == keys[0][named[3]]
    assert content_hashes(["CIFAR100", "resnet18", "pixels", "glyphs:domains@*"]) == {}


def test_a_head_that_is_computed_makes_other_tasks_of_the_same_model(base):
    keys = {
        head: names(base | {"head": head})
        for head in ("fresh", "ncm", "ridge", "ridge:penalty=1", "ridge:logit-scale=2")
    }
    assert len({task for _, task in keys.values()}) == len(keys)
    assert len({model for model, _ in keys.values()}) == 1
    layer = base | {"head": "ridge", "head-layer": "fc"}
    assert names(layer)[1] != keys["ridge"][1]


def test_a_diagnosis_is_the_same_whatever_head_the_task_begins_with(base):
    def diagnosis(**changes):
        of = run(base | {"diagnostics": True, "tasks": 1, **changes}, "coprefl")
        return [stage.key for stage in of.study.stages if stage.phase == "diagnosis"]

    plain = diagnosis()
    assert len(plain) == 1
    assert diagnosis(head="ncm") == diagnosis(**{"task-rounds": 9}) == plain
    assert diagnosis(**{"task-learning-rate": 0.7}) != plain
    assert diagnosis(seed=5) != plain
