"""Complete studies on a grid in this process: their files, and how they resume."""

import html
import json
import shlex
import shutil
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
from coprefl_flwr.cli import main
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.files import SUMS
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.report.frames import frame, read_rounds, read_rows
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import read_result
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
    names += [f"tasks/{number}/{start}/result.json" for number in (0, 1) for start in FOLDERS]
    return {name: (folder / name).read_bytes() for name in names}


def test_files(whole, module_settings):
    assert whole == Path(module_settings.output_dir) / "tiny"
    assert {str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file()} == {
        ".coprefl",
        ".coprefl.lock",
        "settings.yaml",
        *(f"starts/{start}/model.safetensors" for start in FOLDERS),
        *(f"starts/{start}/model.json" for start in FOLDERS),
        *(
            f"starts/{start}/{file}"
            for start in FOLDERS
            for file in ("result.json", "made-of.json", SUMS)
        ),
        *(
            f"tasks/{number}/{start}/{file}"
            for number in (0, 1)
            for start in FOLDERS
            for file in ("result.json", "made-of.json", SUMS)
        ),
        "rows.jsonl",
        "rounds.jsonl",
        "about.json",
        "report/.coprefl",
        "report/report.html",
        "report/provenance.md",
        "report/results.csv",
        "report/units.csv",
        "report/tables/table.md",
        "report/tables/table.tex",
        *(
            f"report/figures/table-{kind}.{suffix}"
            for kind in ("accuracies", "curves")
            for suffix in ("png", "pdf")
        ),
    }
    settings = yaml.safe_load((whole / "settings.yaml").read_text())
    assert Settings.from_config(settings) == module_settings


def test_rows_are_those_of_the_clients_and_make_the_table(whole, module_settings):
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
    parts = [
        row
        for start in FOLDERS
        for task in (0, 1)
        for row in read_result(whole / f"tasks/{task}/{start}")["rows"]
    ]
    assert frame(parts).equals(rows)


def test_the_report_is_made_again_by_the_command(whole):
    before = {path: path.read_bytes() for path in (whole / "report").rglob("*.*")}
    shutil.rmtree(whole / "report")
    assert main(["report", str(whole)]) == 0
    assert {path: path.read_bytes() for path in (whole / "report").rglob("*.*")} == before
    assert "Summed step size" in (whole / "report" / "report.html").read_text()


def test_the_page_has_the_command_that_repeats_the_study(whole, module_settings):
    command = json.loads((whole / "about.json").read_text())["command"]
    flwr, run, app, option, config = shlex.split(command)
    assert (flwr, run, app, option) == ("flwr", "run", ".", "--run-config")
    again = Settings.from_config(parse_config_args([config]))
    assert again.changed() == module_settings.changed()
    assert command in html.unescape((whole / "report" / "report.html").read_text())


def test_the_stored_settings_have_their_types(whole, module_settings):
    """The sentence on the set-up depends on them: with the text "1" it had "1 tasks"."""
    assert json.loads((whole / "about.json").read_text())["settings"] == module_settings.changed()


def test_the_page_begins_with_data_clients_rounds_and_seed(whole, module_settings):
    """The line also has settings with default values."""
    page = html.unescape((whole / "report" / "report.html").read_text())
    chosen = module_settings
    assert f"{chosen.dataset}, {chosen.clients} clients ({chosen.participants} per round)" in page
    assert f"{chosen.task_rounds} rounds; seed {chosen.seed}" in page


def test_rounds_of_every_part(whole):
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


def test_models_load_into_any_pytorch_program(whole, module_settings):
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
        assert [p["method"] for p in about["phases"]] == [start.partition(":")[0]][
            start == "random" :
        ]
        assert [p.get("gamma") for p in about["phases"] if "gamma" in p] == [0.25] * (
            "gamma" in start
        )
        assert about["settings"]["learning-rate"] == 0.05
        assert about["pixel-mean"] == pytest.approx(source.mean.tolist())


def test_every_start_of_a_task_gets_the_same_head(module_settings, whole):
    study = build(module_settings)
    start = start_named(study, "random").initial(None)
    other = {name: array + 1 for name, array in start.items()}
    make = study.stages[0].architecture.with_fresh_head
    models = [make(arrays, 2, "task-0") for arrays in (start, other)]
    for name in ("4.weight", "4.bias"):
        assert models[0][name].shape[0] == 2
        np.testing.assert_array_equal(models[0][name], models[1][name])
    np.testing.assert_array_equal(models[1]["1.weight"], start["1.weight"] + 1)
    assert (make(start, 2, "task-1")["4.weight"] != models[0]["4.weight"]).any()


def test_a_kept_head_goes_on_in_the_task(tiny_images, tmp_path):
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
def test_an_interrupted_study_goes_on_to_the_same_results(kill, still_to_do, tiny_settings, whole):
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


def test_a_finished_study_is_not_run_again(tiny_settings, whole, module_settings):
    before = results(whole)
    grid = Witness(module_settings)
    run_study(grid, build(module_settings))
    assert grid.seen == []
    assert results(whole) == before


def test_number_of_nodes_does_not_matter(tiny_settings, whole):
    settings = replace(tiny_settings, method="coprefl:gamma=0.25", tasks=0)
    folder = run_study(Witness(settings, nodes=1), build(settings)) / "starts" / FOLDERS[2]
    arrays = load_file(folder / "model.safetensors")
    for name, array in load_file(whole / "starts" / FOLDERS[2] / "model.safetensors").items():
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-6, err_msg=name)
    assert not (folder.parents[1] / "rows.jsonl").exists()


def test_what_a_changed_setting_makes_anew_is_said_and_the_earlier_results_stay(
    tiny_settings, caplog
):
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
    assert lines == [
        f"task 0 from {name} is run again (changed: rounds); the earlier results are moved to "
        f"{folder}/tasks/0/{name}/earlier-1"
        for name in ("random", "fedavg")
    ]
    assert results_of_tasks(folder, "earlier-1") == before
    assert results_of_tasks(folder) != before
    assert notes.exists()
    run_study(grid := Witness(settings), build(settings))  # A third run, with the first settings.
    assert len(grid.seen) > 0
    assert results_of_tasks(folder) == before
    assert sorted(path.name for path in (folder / "tasks/0/random").glob("earlier-*")) == [
        "earlier-1",
        "earlier-2",
    ]


def results_of_tasks(folder, below="."):
    files = (folder / f"tasks/0/{name}" / below / "result.json" for name in ("random", "fedavg"))
    return [file.read_bytes() for file in files]


def test_a_run_without_a_name_is_called_by_date_and_time(tiny_settings):
    settings = replace(tiny_settings, run_name="").named()
    assert settings.run_name.startswith("20")
    nameless = replace(tiny_settings, run_name="", method="random", tasks=0)
    nameless = replace(nameless, output_dir=str(Path(tiny_settings.output_dir) / "more"))
    nameless = nameless.named()
    folder = run_study(Witness(nameless), build(nameless))
    assert folder.name.startswith("20")
    assert f"run-name: {folder.name}\n" in (folder / "settings.yaml").read_text()


def test_a_client_that_never_evaluates_fails_the_run(tiny_settings):
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
    with pytest.raises(
        RunFailedError, match=r"task 1 from random: clients \[1\] did not evaluate the model"
    ):
        run_study(Witness(settings, app=app), build(settings))
    folder = Path(settings.output_dir) / "tiny"
    assert (folder / "tasks/0/random/result.json").exists()
    assert not (folder / "tasks/1/random/result.json").exists()
    assert not (folder / "rows.jsonl").exists()


def test_evaluation_after_the_last_round_only(tiny_settings):
    settings = replace(tiny_settings, method="random", tasks=1, task_evaluate_every=0)
    folder = run_study(Witness(settings), build(settings))
    rounds = read_result(folder / "tasks/0/random")["rounds"]
    assert [entry["accuracy"] is None for entry in rounds] == [True, False]
    assert len(read_rows(folder / "rows.jsonl")) == 3


def test_the_serverapp_runs_the_study_of_the_run_config(tiny_settings):
    settings = replace(tiny_settings, method="fedavg", rounds=1, tasks=0)
    context = Context(1, 1, {}, None, settings.to_config())
    server_app.main(Witness(settings), context)
    assert (Path(settings.output_dir) / "tiny/starts/fedavg/model.safetensors").exists()


def test_scenario_two_end_to_end(tiny_settings):
    starts = "fedavg-refined coprefl-sgd coprefl-hybrid:gamma=1"
    settings = replace(tiny_settings, run_name="two", method=starts, tasks=1)
    folder = run_study(Witness(settings), build(settings))
    assert set(read_rows(folder / "rows.jsonl")["start"]) == set(starts.split())
    refined = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    assert refined["start"] == "fedavg-refined"
    assert "server-loss" in refined


def test_a_measured_loss_of_the_starts_stands_beside_the_rounds(tiny_settings):
    """An earlier version failed at the end of the study: "unknown phase 'start-loss'"."""
    settings = replace(tiny_settings, method="fedavg", rounds=1, tasks=0, start_loss=True)
    folder = run_study(LocalGrid(shipped.app, 1, settings.to_config()), build(settings))
    rounds = read_rounds(folder / "rounds.jsonl")
    assert list(rounds["phase"]) == ["pretraining", "start-loss"]
    assert rounds["start-loss"].iloc[1] > 0
    assert (folder / "report" / "figures" / "table-curves.png").exists()
