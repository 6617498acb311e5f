"""The command line: its error messages, its folders, and its output."""

import errno
import json
import os
import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import yaml

from coprefl_flwr import __version__
from coprefl_flwr.cli import main
from coprefl_flwr.errors import SettingsError, excerpt
from coprefl_flwr.files import LOCK, LOCKS, alone
from coprefl_flwr.recipes import command_line, execute
from coprefl_flwr.recipes.command_line import TEMPLATE
from coprefl_flwr.recipes.listing import purposes, store_of
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.schema import KEYS
from coprefl_flwr.recipes.search import check_runs
from coprefl_flwr.report import Report
from coprefl_flwr.report.figures import FIGURES
from tests.common.checks import files
from tests.common.recipes import Witness, tiny_recipe, write_recipe

TEXT_OF_SEARCH = """\
title: A search
settings: {downstream-classes: 5, tasks: 1}
methods: [{coprefl: {gamma: [0, 1]}}]
seeds: [0, 1]
"""


@pytest.fixture
def path(tiny_images, tmp_path):
    """A recipe that takes seconds, without keys that are not required."""
    methods = ["random", {"fedavg": {"rounds": 1}}]
    left_out = dict.fromkeys(["source", "validation-tasks", "reference", "metrics", "figures"])
    content = tiny_recipe(tiny_images, {"tasks": 1}, methods=methods, **left_out)
    return write_recipe(tmp_path / "tiny.yaml", content)


@pytest.fixture(scope="module")
def done(tiny_images, tmp_path_factory):
    """A folder `outputs` with one recipe's results."""
    outputs = tmp_path_factory.mktemp("done") / "outputs"
    content = tiny_recipe(tiny_images, {"tasks": 1}, methods=["random", "fedavg"], reference=None)
    path = write_recipe(outputs.parent / "tiny.yaml", content)
    assert main(["run", str(path), "--out", str(outputs / "tiny")]) == 0
    return outputs


def refusal(arguments, capsys):
    """Return the one-line error message of a command."""
    assert main([str(argument) for argument in arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("coprefl: ")
    return line.removeprefix("coprefl: ")


REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())["commands"]


@pytest.mark.parametrize("row", REFUSED, ids=excerpt)
def test_a_wrong_recipe_or_command_starts_nothing(row, tiny_images, refused):
    text = yaml.safe_dump(tiny_recipe(tiny_images, **row.get("keys", {})), sort_keys=False)
    command = row.get("command") or ["run", "recipe.yaml", *row.get("options", [])]
    line = refused(text, *command)
    assert [str(word) for word in row["named"] if str(word) not in line] == [], line
    if "at" in row:
        number = int(re.match(r"recipe\.yaml, line (\d+): ", line)[1])
        assert row["at"] in text.splitlines()[number - 1]


def test_an_unknown_scale_or_command_is_refused_by_the_parser(path, tmp_path):
    for arguments in (["run", str(path), "--scale", "tiny"], ["ran"], []):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert list(tmp_path.iterdir()) == [path]


def test_where_things_go(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "tiny.yaml", "--set", "methods=[random]"]) == 0
    folders = {str(file.parent.relative_to(tmp_path)) for file in tmp_path.rglob("*.*")}
    (model,) = (tmp_path / "outputs" / "models").glob("random-*")
    below = {"tiny", "tiny/report", "tiny/report/tables", f"models/{model.name}"}
    below |= {"tiny/report/figures"}  # The recipe names no figures.
    (task,) = (model / "tasks").iterdir()
    below |= {f"models/{model.name}/tasks/{task.name}", "models"}
    assert folders - {".", "outputs"} == {f"outputs/{name}" for name in below}
    place = (tmp_path / "outputs" / "tiny" / "models.txt").read_text()
    assert place == "../models\n"
    (tmp_path / "outputs").rename(tmp_path / "moved")
    before = (tmp_path / "moved" / "tiny" / "report" / "results.csv").read_bytes()
    assert main(["report", "moved/tiny"]) == 0
    assert (tmp_path / "moved" / "tiny" / "report" / "results.csv").read_bytes() == before
    elsewhere = ["--out", "a/b", "--models", "c", "--set", "figures=[]"]
    assert main(["run", "tiny.yaml", "--set", "methods=[random]", *elsewhere]) == 0
    assert (tmp_path / "a" / "b" / "report" / "report.html").exists()
    assert {path.name for path in (tmp_path / "c").iterdir()} == {LOCKS, model.name}


def test_the_folder_of_another_recipe_is_left_alone(path, done, tmp_path, capsys):
    out = shutil.copytree(done, tmp_path / "outputs") / "tiny"
    before = files(tmp_path / "outputs")
    command = ["run", path, "--out", out]
    assert refusal([*command, "--set", "title=Another"], capsys) == (
        f"{out} holds the results of 'A tiny comparison': choose another folder with --out"
    )
    cut = tmp_path / "cut.yaml"
    cut.write_text(f"{path.read_text()}small: {{settings: {{rounds: 1}}}}\n")
    assert "of 'A tiny comparison' at another scale: choose" in refusal(
        ["run", cut, "--out", out, "--scale", "small"], capsys
    )
    assert files(tmp_path / "outputs") == before


def test_another_small_is_of_the_same_scale(path, tmp_path):
    """Before, a recipe with an edited `small` was refused as "at another scale"."""
    text, cut = path.read_text(), tmp_path / "cut.yaml"
    command = ["run", str(cut), "--out", str(tmp_path / "out"), "--scale", "small"]
    for rounds in (1, 2):
        cut.write_text(f"{text}small: {{settings: {{rounds: {rounds}}}}}\n")
        assert main(command) == 0
    assert "rounds 2" in (tmp_path / "out" / "report" / "report.html").read_text()


def test_a_report_is_made_again_from_what_is_there(done, tmp_path, capsys):
    """The models stay in their folder."""
    before = files(done / "tiny")
    shown = capsys.readouterr().out
    shutil.rmtree(done / "tiny" / "report")
    assert main(["report", str(done / "tiny")]) == 0
    shown = capsys.readouterr().out
    assert files(done / "tiny") == before
    assert "FedAvg" in shown
    page = (done / "tiny" / "report" / "report.html").resolve()
    assert shown.endswith(f"report: {page.as_uri()}\n")


CHANGED = (
    "a file that the recipe names, or this package, changed after the run began, so the results "
    "are not those of the recipe any more; the report is left as it is; `coprefl run` runs the "
    "changed recipe"
)


@pytest.fixture
def own(tiny_images, tmp_path):
    """A recipe whose network and data are files of the user, in its folder."""
    shutil.copy(tiny_images, tmp_path / "images.npz")
    (tmp_path / "net.py").write_text("from tests.common.networks import network\n")
    settings = {"tasks": 1, "model": "net.py:network"}
    keys = {"methods": ["random", "fedavg"], "reference": None}
    content = tiny_recipe(tmp_path / "images.npz", settings, **keys)
    return write_recipe(tmp_path / "own.yaml", content)


@pytest.mark.parametrize("name", ["net.py", "images.npz"])
def test_a_report_of_changed_files_is_left_as_it_is(name, own, tmp_path, capsys):
    """Before, an empty report replaced the report, and the exit status was 0."""
    out = tmp_path / "out"
    assert main(["run", str(own), "--out", str(out)]) == 0
    before, content = files(out), (tmp_path / name).read_bytes()
    if name == "images.npz":
        arrays = dict(np.load(tmp_path / name))
        np.savez(tmp_path / name, **arrays | {"images": arrays["images"][..., ::-1]})
    else:
        (tmp_path / name).write_bytes(content + b"# A comment.\n")
    capsys.readouterr()
    assert refusal(["report", out], capsys) == f"{out}: {CHANGED}"
    assert files(out) == before
    (tmp_path / name).write_bytes(content)
    assert main(["report", str(out)]) == 0
    assert files(out) == before


def test_files_that_change_during_a_run_do_not_empty_its_report(own, tmp_path, monkeypatch, capsys):
    out, whole = tmp_path / "out", command_line.run_recipe
    assert main(["run", str(own), "--out", str(out)]) == 0
    before = files(out / "report")

    def changing(*arguments):
        failed = whole(*arguments)
        (tmp_path / "net.py").open("a").write("# A comment.\n")
        return failed

    monkeypatch.setattr(command_line, "run_recipe", changing)
    assert main(["run", str(own), "--out", str(out)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"coprefl: {out}: {CHANGED}"
    assert files(out / "report") == before


def test_the_command_of_a_report_repeats_the_runs(own, tmp_path, monkeypatch):
    """Before, the command was for another folder, and relative paths of data were not found."""
    text = own.read_text().replace(f"{tmp_path}/images.npz", "images.npz")
    assert text != own.read_text()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "own.yaml").write_text(text)
    (tmp_path / "net.py").rename(tmp_path / "recipes" / "net.py")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "recipes/own.yaml", "--out", "results/own"]) == 0
    page = unescape((tmp_path / "results" / "own" / "report" / "report.html").read_text())
    assert str(tmp_path) not in page
    (command,) = re.findall(
        f"in {re.escape(Report.command_folder)}: <code>coprefl (.*)</code>", page
    )
    stored = len([*tmp_path.glob("results/models/*")])
    again = command.replace("FOLDER", "results/own").split()
    assert main([*again, "--out", "results/again"]) == 0
    assert len([*tmp_path.glob("results/models/*")]) == stored


def test_several_folders_of_recipes_are_refused(done, capsys):
    """Before, the message was that a file rounds.jsonl is missing."""
    line = refusal(["report", done / "tiny", done / "tiny"], capsys)
    name_it = "name it alone, or name several folders of studies"
    whose = "is the folder of a recipe, whose report has all its seeds"
    assert line == f"{done / 'tiny'} {whose}: {name_it}"


def test_a_stopped_run_says_so_and_can_be_reported(path, tmp_path, monkeypatch, capsys):
    stop = Witness(("train", "fedavg", "pretrain", 1), KeyboardInterrupt)
    monkeypatch.setattr(execute, "LocalGrid", stop)
    out = tmp_path / "out"
    assert main(["run", str(path), "--out", str(out)]) == 130
    assert capsys.readouterr().err.endswith(
        "coprefl: stopped; the same command continues from here\n"
    )
    assert main(["list", str(tmp_path)]) == 0
    assert f"{out}  1 of 2 runs  A tiny comparison\n" in capsys.readouterr().out
    assert main(["report", str(out)]) == 0
    page = (out / "report" / "report.html").read_text()
    assert "fedavg:rounds=1, seed 0: not run yet" in page
    capsys.readouterr()
    assert main(["list", str(tmp_path)]) == 0  # Before, the line said "reported".
    assert f"{out}  1 of 2 runs  A tiny comparison\n" in capsys.readouterr().out


def test_list(done, capsys):
    assert main(["list", str(done)]) == 0
    recipes, runs = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    assert recipes[0] == "Recipes:"
    assert recipes[2].split() == [str(done / "tiny"), "reported", "A", "tiny", "comparison"]
    assert runs[0] == f"Runs of recipes, in {done / 'models'}:"
    assert runs[1].split() == ["run", "method", "seed", "tasks", "used", "by"]
    names = sorted(folder.name for folder in (done / "models").glob("*-*"))
    assert [line.split() for line in runs[2:]] == [
        [name, name.partition("-")[0], "0", "1", "tiny"] for name in names
    ]


def test_list_tells_validation_and_studies_of_flwr_run_apart(done, tmp_path, capsys):
    """Before, all lines were alike and had no seed, and folders of `flwr run` were not shown."""
    outputs = shutil.copytree(done, tmp_path / "outputs")
    known = json.loads((outputs / "tiny" / "runs.json").read_text())
    fedavg = next(run for run in known if run["run"].startswith("fedavg"))
    (outputs / "tiny" / "runs.json").write_text(json.dumps([fedavg | {"for": "validation"}]))
    for run, finished in (("one", True), ("two", False)):
        (outputs / run).mkdir()
        (outputs / run / "settings.yaml").write_text("{seed: 7, method: random fedavg}")
        if finished:
            (outputs / run / "rounds.jsonl").touch()
    (outputs / "spoilt").mkdir()
    (outputs / "spoilt" / "settings.yaml").write_text("- 1")
    assert main(["list", str(outputs)]) == 0
    _, runs, studies = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    assert runs[2].endswith("  tiny (validation)")
    assert runs[3].endswith("  no recipe in this folder")
    assert [" ".join(line.split()) for line in studies] == [
        "Studies of flwr run:",
        "folder state seed method",
        f"{outputs}/one finished 7 random fedavg",
        f"{outputs}/spoilt not finished ? its settings.yaml cannot be read",
        f"{outputs}/two not finished 7 random fedavg",
    ]


def test_a_searched_recipe_says_which_of_its_runs_only_choose(read):
    recipe = read(TEXT_OF_SEARCH)
    runs = check_runs(recipe)
    keys, seeds = purposes(recipe, runs), {run.key: run.settings.seed for run in runs}
    assert {seeds[key] for key, purpose in keys.items() if purpose == "validation"} == {100}
    assert {seeds[key] for key, purpose in keys.items() if purpose == "reported"} == {0, 1}


def test_a_new_recipe_explains_every_key_and_can_be_read(tmp_path, capsys):
    assert main(["new", str(tmp_path / "mine")]) == 0
    path = tmp_path / "mine.yaml"
    assert capsys.readouterr().out == f"wrote {path}; run it with `coprefl run {path}`\n"
    assert set(read_recipe(path).effective) == {
        *("title", "settings", "methods", "reference", "seeds", "metrics", "figures"),
    }
    # The file has every key, ready to use, except `scale` and `protocol`, which options write.
    every = re.sub("^#(?=[a-z]|  )", "", path.read_text(), flags=re.MULTILINE)
    (tmp_path / "every.yaml").write_text(every)
    assert set(read_recipe(tmp_path / "every.yaml").effective) == {*KEYS} - {"scale"}
    before = (tmp_path / "every.yaml").read_bytes()
    message = refusal(["new", tmp_path / "every.yaml"], capsys)
    assert message == f"{tmp_path}/every.yaml exists already: choose another name"
    assert (tmp_path / "every.yaml").read_bytes() == before
    nowhere = refusal(["new", tmp_path / "no" / "folder"], capsys)
    assert nowhere == f"{tmp_path}/no/folder.yaml cannot be written: No such file or directory"


def test_a_new_recipe_names_every_figure_and_says_its_rates(tmp_path):
    """The file sets all settings that decide whether runs learn, instead of using the defaults."""
    text = TEMPLATE.read_text()
    assert all(kind in text for kind in FIGURES)
    settings = read_recipe(TEMPLATE).settings
    assert {"rounds", "local-steps", "learning-rate", "task-learning-rate"} <= settings.keys()
    assert all(
        "meta-learning-rate=" in str(trial.method)
        for trial in read_recipe(TEMPLATE).rows[2].trials()
    )


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"coprefl-flwr {__version__}, python 3.")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"title: Old\nsettings: {rounds: 1}\nmethods: [fedavg]\nlayout: 1\n", "unknown key 'lay"),
        (b"settings: {rounds: 1}\nmethods: [fedavg]\n", "a recipe needs 'title', such as"),
        (b"title: [\n", "not YAML"),
        (b"", "is empty"),
        (b"\xff\xfe", "is not a text in UTF-8"),
    ],
)
def test_what_cannot_be_read_is_listed_beside_the_others(content, problem, done, tmp_path, capsys):
    """A recipe of another version, or one with mistakes, does not hide the other results."""
    outputs = shutil.copytree(done, tmp_path / "outputs")
    (outputs / "stale").mkdir()
    (outputs / "stale" / "recipe.yaml").write_bytes(content)
    # A result without a record of how it was made.
    (outputs / "models" / "fedavg-0").mkdir()
    (outputs / "models" / "fedavg-0" / "result.json").write_text("{}")
    assert main(["list", str(outputs)]) == 0
    recipes, runs = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    *_, stale, tiny = recipes
    assert stale.startswith(f"  {outputs / 'stale'}  cannot be read  {outputs}/stale/recipe.yaml")
    assert problem in stale
    assert tiny.endswith("  reported        A tiny comparison")
    assert len(runs) == 2 + 2


def test_a_damaged_place_of_results_does_not_hide_the_others(done, tmp_path, capsys):
    outputs = shutil.copytree(done, tmp_path / "outputs")
    shutil.copytree(outputs / "tiny", outputs / "spoilt")
    (outputs / "spoilt" / "models.txt").write_text("")
    (outputs / "spoilt" / "failed.json").unlink()
    assert main(["list", str(outputs)]) == 0
    recipes, runs = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    assert "models.txt is damaged" in recipes[2]
    assert recipes[3].endswith("  reported        A tiny comparison")
    assert len(runs) == 2 + 2


def test_show(done, capsys):
    models = ["--models", str(done / "models")]
    assert main(["show", "fedavg", *models]) == 0
    lines = capsys.readouterr().out.splitlines()
    (folder,) = (done / "models").glob("fedavg-*")
    assert lines[0] == str(folder)
    assert lines[1].startswith("  fedavg: batch-size = 8, learning-rate = 0.05, ")
    assert lines[2] == "  tests.common.networks:network, 6 classes, seed 0"
    assert lines[3] == "  after round 3:"
    assert lines[4].startswith("    loss = ")
    assert lines[-1].startswith("  task 0: ")
    assert lines[-1].endswith(" % over 3 clients")
    assert main(["show", folder.name, *models]) == 0
    capsys.readouterr()
    assert main(["show", "random", *models]) == 0
    (other,) = (done / "models").glob("random-*")
    assert capsys.readouterr().out.splitlines()[1] == "  random"
    assert refusal(["show", "", *models], capsys) == (
        f"'' matches 2 runs: name one of {folder.name}, {other.name}"
    )
    assert refusal(["show", f"{folder.name}x", *models], capsys) == (
        f"unknown run '{folder.name}x': did you mean '{folder.name}'?"
    )
    assert refusal(["show", "/etc", *models], capsys).startswith("unknown run '/etc': known are ")


@pytest.fixture
def copied(done, tmp_path):
    """A copy of the results that a test may damage."""
    return shutil.copytree(done, tmp_path / "outputs")


def test_two_runs_into_one_folder(path, tmp_path, capsys):
    out = tmp_path / "outputs" / "tiny"
    with alone(out / LOCK, "x"):
        line = refusal(["run", path, "--out", out], capsys)
    assert line == f"--out {out}: another `coprefl run` writes there: choose another"
    assert [path.name for path in out.iterdir()] == [LOCK]


def test_damaged_results_are_not_reported_and_made_again(done, copied, capsys, caplog):
    recipe, out = done.parent / "tiny.yaml", copied / "tiny"
    (result,) = (copied / "models").glob("fedavg-*/tasks/*/result.json")
    whole = result.read_bytes()
    result.write_bytes(whole.replace(b'"correct": 1', b'"correct": 2', 1))
    assert result.read_bytes() != whole
    assert main(["report", str(out)]) == 0
    assert any(
        "result.json is damaged: its checksum is not the one in SHA256SUMS" in line
        for line in caplog.messages
    )
    text = (out / "report" / "tables" / "table.md").read_text()
    assert text != (done / "tiny" / "report" / "tables" / "table.md").read_text()
    features = copied / "models" / "features"
    remains = [out / ".recipe.yaml.7.coprefl-part", features / ".a.npy.7.coprefl-part"]
    for file in remains:
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (0, 0))
    assert main(["run", str(recipe), "--out", str(out)]) == 0
    assert result.read_bytes() == whole
    assert result.with_name("result.json.damaged").exists()
    text = (out / "report" / "tables" / "table.md").read_text()
    assert text == (done / "tiny" / "report" / "tables" / "table.md").read_text()
    assert not any(file.exists() for file in remains)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 99999], ids=excerpt)
def test_a_damaged_file_beside_the_results_is_one_line(copied, content, capsys):
    (copied / "tiny" / "failed.json").write_bytes(content)
    line = refusal(["report", copied / "tiny"], capsys)
    assert line.startswith(f"{copied / 'tiny' / 'failed.json'} is damaged: ")


def test_a_full_disk_is_one_line_and_nothing_is_lost(path, tmp_path, capsys, monkeypatch):
    room, out = iter(range(6)), tmp_path / "outputs" / "tiny"

    def full(descriptor):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")

    command = ["run", str(path), "--out", str(out), "--set", "methods=[fedavg]"]
    command += ["--set", "tasks=0", "--set", "figures=[]"]
    monkeypatch.setattr("os.fsync", full)
    assert main(command) == 1
    assert list(out.parent.glob("models/*/*"))
    assert capsys.readouterr().err.splitlines()[-1] == "coprefl: No space left on device"
    assert not list(tmp_path.rglob(".*.coprefl-part"))
    monkeypatch.undo()
    assert main(command) == 0


def test_a_name_longer_than_any_files_is_one_line(path, tmp_path, capsys):
    line = refusal(
        ["run", path, "--out", tmp_path / "outputs", "--set", f"dataset={'x' * 5000}.npz"], capsys
    )
    assert len(line) < 500


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"a\0b"])
def test_a_recipes_folder_that_does_not_say_where_its_results_are(tmp_path, content):
    """Before, an empty file meant the recipe's own folder, and an empty report was written."""
    (tmp_path / "models.txt").write_bytes(content)
    with pytest.raises(SettingsError, match=r"models\.txt is damaged: it names no folder"):
        store_of(tmp_path)
