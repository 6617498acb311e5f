"""Complete studies on a grid in this process: their files, and how they resume."""

import html
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from flwr.app import Context
from flwr.common.config import parse_config_args
from safetensors.torch import load_file

from coprefl_flwr import client_app as shipped
from coprefl_flwr import server_app
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.files import SUMS
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.report.frames import read_rounds, read_rows
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from tests.common.checks import Killed
from tests.common.networks import network
from tests.common.studies import start_named, tiny_study

STARTS = ("random", "fedavg", "coprefl:gamma=0.25")
FOLDERS = ("random", "fedavg", "coprefl-gamma-0.25")
LAST = "starts/coprefl-gamma-0.25"
TASKS = tuple((f"task-{n}", f"tasks/{n}/{folder_name}") for n in (0, 1) for folder_name in FOLDERS)


class Witness(LocalGrid):
    """A grid that records (population, round, stage) of every train message.

    The process is killed before the message `kill`.
    """

    def __init__(self, settings, kill=None, app=shipped.app, nodes=2):
        super().__init__(app, nodes, settings.to_config())
        self.kill, self.seen = kill, []

    def _handle(self, message):
        if message.metadata.message_type == "train":
            config = message.content["config"]
            self.seen.append((config["population"], config["server-round"], config["stage"]))
            if self.seen[-1] == self.kill:
                raise Killed
        return super()._handle(message)


@pytest.fixture(scope="module")
def module_settings(tiny_images, tmp_path_factory):
    """The settings of the finished study below."""
    return tiny_study(tiny_images, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def whole(module_settings):
    """The folder of a study that was not interrupted."""
    return run_study(Witness(module_settings), build(module_settings))


def results(folder):
    """Return the bytes of every file that must not depend on how often a run was interrupted."""
    names = ["rows.jsonl", "rounds.jsonl", "report/units.csv", "report/tables/table.md"]
    names += [f"starts/{start}/model.safetensors" for start in FOLDERS]
    names += [f"starts/{start}/result.json" for start in FOLDERS]
    names += [f"starts/{start}/README.md" for start in FOLDERS if start != "random"]
    names += [f"tasks/{number}/{start}/result.json" for number in (0, 1) for start in FOLDERS]
    return {name: (folder / name).read_bytes() for name in names}


def test_study_has_its_files(whole, module_settings):
    assert whole == Path(module_settings.output_dir) / "tiny"
    stages = [f"starts/{start}" for start in FOLDERS] + [folder for _, folder in TASKS]
    of_stage = ("result.json", "made-of.json", SUMS)
    expected = {f"{stage}/{name}" for stage in stages for name in of_stage}
    for name in ("model.safetensors", "model.json"):
        expected |= {f"starts/{start}/{name}" for start in FOLDERS}
    expected |= {f"starts/{start}/README.md" for start in FOLDERS if start != "random"}
    expected |= {"rows.jsonl", "rounds.jsonl", "about.json", "settings.yaml"}
    found = {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    others = {".coprefl", ".coprefl.lock"}
    assert {name for name in found if not name.startswith("report/")} == expected | others
    report = {"report.html", "results.csv", "tables/table.md", "figures/table-curves.png"}
    assert {f"report/{name}" for name in report} < found
    settings = yaml.safe_load((whole / "settings.yaml").read_text())
    assert Settings.from_config(settings) == module_settings


def test_rows_of_clients_make_the_table(whole, module_settings):
    rows = read_rows(whole / "rows.jsonl")
    assert [(r.start, r.task, r.client) for r in rows.itertuples()] == [
        (start, task, client) for start in STARTS for task in (0, 1) for client in (0, 1, 2)
    ]
    tasks = build(module_settings).stages[-1].tasks
    for row in rows.itertuples():
        client = tasks[row.task].clients[row.client]
        assert row.n == len(client.test)
        assert 0 <= row.correct <= row.n
        assert np.isfinite(row.loss)
    accuracy = pd.read_csv(whole / "report" / "units.csv").set_index(["row", "unit"])["accuracy"]
    for (start, task), of_task in rows.groupby(["start", "task"]):
        expected = (100 * of_task["correct"] / of_task["n"]).mean()
        assert accuracy[start, f"seed {module_settings.seed}, task {task}"] == expected


def test_page_has_the_command_that_repeats_the_study(whole, module_settings):
    about = json.loads((whole / "about.json").read_text())
    # The sentence on the set-up depends on types: with the text "1" it had "1 tasks".
    assert about["settings"] == module_settings.changed()
    flwr, run, app, option, config = shlex.split(about["command"])
    assert (flwr, run, app, option) == ("flwr", "run", ".", "--run-config")
    again = Settings.from_config(parse_config_args([config]))
    assert again.changed() == module_settings.changed()
    assert about["command"] in html.unescape((whole / "report" / "report.html").read_text())


def test_rounds_of_every_stage_are_stored(whole):
    rounds = read_rounds(whole / "rounds.jsonl")
    expected = []
    for start in STARTS:
        if start != "random":
            expected += [("pretraining", start, None, number) for number in (1, 2, 3)]
        expected += [("downstream", start, task, number) for task in (0, 1) for number in (1, 2)]
    lines = [json.loads(line) for line in (whole / "rounds.jsonl").read_text().splitlines()]
    assert [(r["phase"], r["start"], r["task"], r["round"]) for r in lines] == expected
    rows = read_rows(whole / "rows.jsonl")
    means = (100 * rows["correct"] / rows["n"]).groupby([rows["start"], rows["task"]]).mean()
    last = rounds[(rounds["phase"] == "downstream") & (rounds["round"] == 2)]
    assert len(last) == len(means) == 6
    for entry in last.to_dict("records"):
        assert entry["accuracy"] == pytest.approx(means[entry["start"], entry["task"]])
    of_pretraining = rounds[rounds["phase"] == "pretraining"]
    with_query = of_pretraining[of_pretraining["query-loss"].notna()]
    assert with_query["start"].tolist() == [STARTS[2]] * 3


def test_stored_models_load_into_a_pytorch_module(whole, module_settings):
    study = build(module_settings)
    initial = start_named(study, "random").initial(None)
    source = study.stages[0].clients.source.dataset
    for folder, start in zip(FOLDERS, STARTS, strict=True):
        model = network(5)
        arrays = load_file(whole / "starts" / folder / "model.safetensors")
        model.load_state_dict(arrays, strict=True)
        changed = (arrays["1.weight"].numpy() != initial["1.weight"]).any()
        assert changed == (start != "random")
        # Each client takes two steps per round, for three rounds.
        assert int(model[2].num_batches_tracked) == (0 if start == "random" else 6)
        about = json.loads((whole / "starts" / folder / "model.json").read_text())
        assert (about["start"], about["num-classes"]) == (start, 5)
        phases = {"random": [], "fedavg": [("fedavg", None)]}.get(start, [("coprefl", 0.25)])
        assert [(phase["method"], phase.get("gamma")) for phase in about["phases"]] == phases
        assert about["settings"]["learning-rate"] == 0.05
        assert about["pixel-mean"] == pytest.approx(source.mean.tolist())


def test_kept_head_is_used_in_the_task(tiny_images, tmp_path):
    """As in PACS, both phases have all classes, and each phase has its own domains."""
    arrays = dict(np.load(tiny_images))
    of_two = np.arange(len(arrays["labels"])) % 2
    np.savez(tmp_path / "domains.npz", **arrays, domains=of_two, domain_names=["photo", "sketch"])
    settings = replace(
        tiny_study(tmp_path / "domains.npz", tmp_path),
        method="random fedavg",
        pretraining_classes="list:0-7",
        downstream_classes="list:0-7",
        pretraining_domains="photo",
        downstream_domains="sketch",
        task_classes=8,
        head="keep",
    )
    sent = []

    class FirstModels(LocalGrid):
        def _handle(self, message):
            if message.metadata.message_type == "train":
                config = message.content["config"]
                if (config["population"], config["server-round"]) == ("task-0", 1):
                    sent.append(message.content["arrays"].to_torch_state_dict())
            return super()._handle(message)

    folder = run_study(FirstModels(shipped.app, 1, settings.to_config()), build(settings))
    for start, model in zip(("random", "fedavg"), sent, strict=True):
        saved = load_file(folder / "starts" / start / "model.safetensors")
        assert saved.keys() == model.keys()
        assert all(saved[name].equal(model[name]) for name in saved)


@pytest.mark.parametrize(
    ("kill", "still_to_do"),
    [
        (("pretrain", 2, LAST), {("pretrain", LAST), *TASKS}),
        (("task-1", 1, TASKS[3][1]), set(TASKS[3:])),
    ],
    ids=["in the second pre-training", "after the first task"],
)
def test_interrupted_study_ends_with_the_same_results(kill, still_to_do, tiny_settings, whole):
    """Another minimum of nodes, timeout or checkpoint interval does not change the results."""
    with pytest.raises(Killed):
        run_study(Witness(tiny_settings, kill), build(tiny_settings))
    grid = Witness(tiny_settings)
    settings = replace(tiny_settings, min_available_nodes=2, timeout=60.0, checkpoint_every=2)
    folder = run_study(grid, build(settings))
    assert {(population, stage) for population, _, stage in grid.seen} == still_to_do
    # Finished rounds of an unfinished stage are not run again either.
    assert grid.seen[0] == kill
    assert results(folder) == results(whole)
    assert not list(folder.rglob("checkpoint*"))
    # A finished study is not run again.
    run_study(again := Witness(settings), build(settings))
    assert again.seen == []
    assert results(folder) == results(whole)


def test_changed_setting_runs_its_stages_again_and_keeps_earlier_results(tiny_settings, caplog):
    """The tasks get more rounds, so they are run again for every start; the starts are not."""
    settings = replace(tiny_settings, method="random fedavg", tasks=1)
    folder = run_study(Witness(settings), build(settings))
    before = results_of_tasks(folder)
    notes = folder / "tasks" / "0" / "random" / "notes.txt"
    notes.write_text("A file of the user, which stays.")
    changed = replace(settings, task_rounds=3)
    grid = Witness(changed)
    caplog.clear()
    run_study(grid, build(changed))
    assert {stage for _, _, stage in grid.seen} == {"tasks/0/random", "tasks/0/fedavg"}
    lines = [line for line in caplog.messages if "is run again" in line]
    assert len(lines) == 2
    assert lines[0].startswith("task 0 from random is run again (changed: rounds); ")
    assert lines[0].endswith(f"{folder}/tasks/0/random/earlier-1")
    assert results_of_tasks(folder, "earlier-1") == before
    assert results_of_tasks(folder) != before
    assert notes.exists()
    run_study(Witness(settings), build(settings))  # A third run, with the first settings.
    assert results_of_tasks(folder) == before
    assert len([*(folder / "tasks/0/random").glob("earlier-*")]) == 2


def results_of_tasks(folder, below="."):
    files = (folder / f"tasks/0/{name}" / below / "result.json" for name in ("random", "fedavg"))
    return [file.read_bytes() for file in files]


def test_run_without_a_name_is_named_by_date_and_time(tiny_settings):
    settings = replace(tiny_settings, run_name="", method="random", tasks=0).named()
    folder = run_study(Witness(settings), build(settings))
    assert folder.name.startswith("20")
    assert f"run-name: {folder.name}\n" in (folder / "settings.yaml").read_text()


def test_client_that_never_evaluates_fails_the_run(tiny_settings):
    """A mean without this client could be too good.

    Results that were finished earlier are kept.
    """

    def client_fn(context, client_id, config):
        client = shipped.client_fn(context, client_id, config)
        if (client_id, config["population"]) == (1, "task-1"):
            client.test = None
        return client

    app = client_app(client_fn)
    settings = replace(tiny_settings, method="random")
    with pytest.raises(RunFailedError, match=r"clients \[1\] did not evaluate the model"):
        run_study(Witness(settings, app=app), build(settings))
    folder = Path(settings.output_dir) / "tiny"
    assert (folder / "tasks/0/random/result.json").exists()
    assert not (folder / "tasks/1/random/result.json").exists()
    assert not (folder / "rows.jsonl").exists()


def test_server_app_runs_a_study_and_measures_its_starts(tiny_settings):
    settings = replace(tiny_settings, method="fedavg", rounds=1, tasks=0, start_loss=True)
    server_app.main(Witness(settings), Context(1, 1, {}, None, settings.to_config()))
    folder = Path(settings.output_dir) / "tiny"
    rounds = read_rounds(folder / "rounds.jsonl")
    assert list(rounds["phase"]) == ["pretraining", "start-loss"]
    assert rounds["start-loss"].iloc[1] > 0
    assert (folder / "report" / "figures" / "table-curves.png").exists()


def test_data_seed_equal_to_the_seed_changes_no_number(whole, module_settings, tmp_path):
    """The rows, rounds and models are the same to the last bit."""
    settings = replace(module_settings, data_seed=module_settings.seed, output_dir=str(tmp_path))
    again = run_study(Witness(settings), build(settings))
    left_out = ("report/units.csv", "report/tables/table.md")  # They name the draw.
    here, before = results(again), results(whole)
    assert {n: here[n] for n in here if n not in left_out} == {
        n: before[n] for n in before if n not in left_out
    }
    units = pd.read_csv(again / "report" / "units.csv")
    assert list(units["unit"][:2]) == [f"draw 0, seed 0, task {task}" for task in (0, 1)]
    assert units[["draw", "seed"]].eq(0).all(axis=None)
