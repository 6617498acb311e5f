"""The command line: its error messages, its folders, and its output."""

import re
import shutil
from html import unescape
from pathlib import Path

import pytest
import yaml

from coprefl_flwr.cli import main
from coprefl_flwr.errors import excerpt
from coprefl_flwr.files import LOCK, LOCKS, alone
from coprefl_flwr.recipes import execute
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.schema import KEYS
from coprefl_flwr.report import Report
from coprefl_flwr.report.figures import FIGURES
from tests.common.checks import files
from tests.common.processes import new_process
from tests.common.recipes import Witness, tiny_recipe, write_recipe


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
def test_wrong_recipe_or_command_is_refused_in_one_line(row, tiny_images, refused):
    text = yaml.safe_dump(tiny_recipe(tiny_images, **row.get("keys", {})), sort_keys=False)
    command = row.get("command") or ["run", "recipe.yaml", *row.get("options", [])]
    line = refused(text, *command)
    assert [str(word) for word in row["named"] if str(word) not in line] == [], line
    if "at" in row:
        number = int(re.match(r"recipe\.yaml, line (\d+): ", line)[1])
        assert row["at"] in text.splitlines()[number - 1]


def test_run_writes_its_results_and_models_into_outputs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["run", "tiny.yaml", "--set", "methods=[random]", "--set", "figures=[]"]
    assert main(command) == 0
    outputs = tmp_path / "outputs"
    (model,) = (outputs / "models").glob("random-*")
    assert (outputs / "tiny" / "models.txt").read_text() == "../models\n"
    assert len(list(model.glob("tasks/*/result.json"))) == 1
    # A moved folder is reported with the same bytes.
    before = (outputs / "tiny" / "report" / "results.csv").read_bytes()
    outputs.rename(tmp_path / "moved")
    assert main(["report", "moved/tiny"]) == 0
    assert (tmp_path / "moved" / "tiny" / "report" / "results.csv").read_bytes() == before
    assert main([*command, "--out", "a/b", "--models", "c"]) == 0
    assert (tmp_path / "a" / "b" / "report" / "report.html").exists()
    assert {path.name for path in (tmp_path / "c").iterdir()} == {LOCKS, model.name}


def test_report_of_a_finished_recipe_has_the_same_bytes(done, capsys):
    before = files(done / "tiny")
    shutil.rmtree(done / "tiny" / "report")
    assert main(["report", str(done / "tiny")]) == 0
    shown = capsys.readouterr().out
    assert files(done / "tiny") == before
    assert "FedAvg" in shown
    page = (done / "tiny" / "report" / "report.html").resolve()
    assert shown.endswith(f"report: {page.as_uri()}\n")
    # A recipe's report has all its seeds, so there is none of several folders.
    line = refusal(["report", done / "tiny", done / "tiny"], capsys)
    assert "tiny/rounds.jsonl cannot be read" in line


@pytest.fixture
def users_recipe(tiny_images, tmp_path):
    """A recipe whose network and data are files of the user, in its folder."""
    shutil.copy(tiny_images, tmp_path / "images.npz")
    (tmp_path / "net.py").write_text("from tests.common.networks import network\n")
    settings = {"tasks": 1, "model": "net.py:network"}
    keys = {"methods": ["random", "fedavg"], "reference": None}
    content = tiny_recipe(tmp_path / "images.npz", settings, **keys)
    return write_recipe(tmp_path / "own.yaml", content)


def test_command_of_a_report_repeats_the_runs(users_recipe, tmp_path, monkeypatch):
    """Before, the command was for another folder, and relative paths of data were not found."""
    text = users_recipe.read_text().replace(f"{tmp_path}/images.npz", "images.npz")
    assert text != users_recipe.read_text()
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


def test_report_of_changed_code_leaves_the_report_as_it_is(
    users_recipe, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COPREFL_ALLOW", "all")
    out, code = tmp_path / "out", tmp_path / "net.py"
    assert main(["run", str(users_recipe), "--out", str(out)]) == 0
    before = (out / "report" / "report.html").read_bytes()
    code.write_text(f"{code.read_text()}\nOTHER = 1\n")
    new_process()
    capsys.readouterr()
    line = refusal(["report", str(out)], capsys)
    assert line.startswith(f"{out}: its code or data changed after the run")
    assert (out / "report" / "report.html").read_bytes() == before


def test_stopped_run_can_be_listed_and_reported(path, tmp_path, monkeypatch, capsys):
    stop = Witness(("train", "fedavg", "pretrain", 1), KeyboardInterrupt)
    monkeypatch.setattr(execute, "LocalGrid", stop)
    out = tmp_path / "out"
    assert main(["run", str(path), "--out", str(out)]) == 130
    assert "coprefl: stopped; the same command continues from here" in capsys.readouterr().err
    assert main(["report", str(out)]) == 0
    page = (out / "report" / "report.html").read_text()
    assert "fedavg, seed 0: not run yet" in page
    capsys.readouterr()
    assert main(["list", str(tmp_path)]) == 0
    assert f"{out}  1 of 2 runs  A tiny comparison\n" in capsys.readouterr().out


def test_list_has_every_recipe_and_run(done, capsys):
    assert main(["list", str(done)]) == 0
    recipes, runs = (part.splitlines() for part in capsys.readouterr().out.split("\n\n"))
    assert recipes[2].split() == [str(done / "tiny"), "reported", "A", "tiny", "comparison"]
    assert runs[1].split() == ["run", "method", "seed", "tasks"]
    names = sorted(folder.name for folder in (done / "models").glob("*-*"))
    assert [line.split() for line in runs[2:]] == [
        [name, name.partition("-")[0], "0", "1"] for name in names
    ]


def test_list_has_studies_of_flwr_run(tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "settings.yaml").write_text("{seed: 7, method: random fedavg}")
    drawn = "{seed: 7, data-seed: 0, method: random}"
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "settings.yaml").write_text(drawn)
    (tmp_path / "one" / "rounds.jsonl").touch()
    assert main(["list", str(tmp_path)]) == 0
    _, _, *studies = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in studies] == [
        f"{tmp_path}/one finished 7 random fedavg",
        f"{tmp_path}/three not finished 7, draw 0 random",
        f"{tmp_path}/two not finished 7 random fedavg",
    ]


def test_new_recipe_explains_every_key_and_can_be_read(tmp_path, capsys):
    assert main(["new", str(tmp_path / "mine")]) == 0
    path = tmp_path / "mine.yaml"
    assert f"wrote {path}" in capsys.readouterr().out
    # The settings that decide whether runs learn are set, instead of left to defaults.
    recipe = read_recipe(path)
    assert {"rounds", "local-steps", "learning-rate", "task-learning-rate"} <= {*recipe.settings}
    assert all("meta-learning-rate=" in str(one.method) for one in recipe.rows[2].trials())
    # The file has every key, ready to use, except `scale` and `protocol`, which options write.
    text = path.read_text()
    assert all(kind in text for kind in FIGURES)
    every = re.sub("^#(?=[a-z]|  )", "", text, flags=re.MULTILINE)
    (tmp_path / "every.yaml").write_text(every)
    assert set(read_recipe(tmp_path / "every.yaml").effective) == {*KEYS} - {"scale"}
    message = refusal(["new", tmp_path / "every.yaml"], capsys)
    assert message == f"{tmp_path}/every.yaml: File exists"
    assert (tmp_path / "every.yaml").read_text() == every


def test_second_run_into_a_folder_in_use_is_refused(path, tmp_path, capsys):
    out = tmp_path / "outputs" / "tiny"
    with alone(out / LOCK, "x"):
        line = refusal(["run", path, "--out", out], capsys)
    assert line == f"--out {out}: another `coprefl` writes there: choose another"
    assert [path.name for path in out.iterdir()] == [LOCK]


def test_report_against_another_reference(done, capsys):
    """The recipe keeps its own reference."""
    out = str(done / "tiny")
    page = done / "tiny" / "report" / "report.html"
    assert main(["report", out, "--reference", "random"]) == 0
    capsys.readouterr()
    assert "FedAvg minus random" in page.read_text()
    line = refusal(["report", out, "--reference", "randon"], capsys)
    assert line.startswith("reference: unknown row 'randon': did you mean 'random'")
    assert main(["report", out]) == 0
    assert "random minus FedAvg" in page.read_text()
