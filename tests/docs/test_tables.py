"""The documentation and pyproject.toml agree with the code, and links lead to existing files."""

import inspect
import itertools
import pydoc
import re
import textwrap
from operator import attrgetter

import pytest

import coprefl_flwr as cp
from coprefl_flwr.options import declared
from coprefl_flwr.recipes import schema
from coprefl_flwr.report.figures import FIGURES
from coprefl_flwr.studies.known_methods import METHODS
from coprefl_flwr.studies.settings import Settings
from docs import examples, interface, tables

SHARED = {"centralised-hybrid", "coprefl-std-sgd", *(n for n in METHODS if n.endswith("-refined"))}
"""Methods that are described on the page of another method."""
FUNCTIONS = (
    *("partition", "tasks", "pretrain", "evaluate_starts", "plot_history"),
    *("load_dataset", "of_flower", "register", "ServerData", "RoundStrategy.start"),
    *("clients.client_app", "clients.query_reply", "clients.gradient_reply", "clients.TorchClient"),
    *(
        "clients.StatefulClient",
        "federation.client_state.ClientState",
        "learning.training.LocalTraining",
    ),
    *("federation.Bounds", "federation.Exchange", "federation.keep.Keep"),
    *("grids.LocalGrid", "grids.RayGrid"),
    *("models.build_model", "models.load_saved_model", "load_start", "base_hash"),
    "save_start",
    "average_adapters",
)
"""Functions and classes whose parameters the Python reference lists."""
METHOD_PAGES = sorted((tables.PAGES / "methods").glob("*.md"))
WRITTEN = [tables.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
API_PAGES = sorted((tables.PAGES / "reference" / "api").glob("*.md"))
EXAMPLES = [page for page in API_PAGES if PYTHON.search(page.read_text())]
LINK = re.compile(r"\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def test_generated_parts_of_pages_are_up_to_date():
    found = tables.files()
    assert len(found) > 20
    for path, change in found.items():
        text = path.read_text()
        assert change(text) == text, f"{path} is not up to date: run `make tables`"


def test_every_table_and_method_is_on_one_page():
    """Earlier, a method without a page, or a table that no page shows, was not noticed."""
    pages = [path.read_text() for path in tables.PAGES.rglob("*.md")]
    shown = sorted(name for text in pages for name in tables.parts(text))
    frames = {f"{tables.FRAME}{name}" for name in METHODS if name not in SHARED}
    functions = {f"parameters of {name}" for name in FUNCTIONS}
    classes = {f"arguments of {name}" for name in strategies()}
    assert shown == sorted({*tables.TABLES, *frames, *functions, *classes})


HEADS = {f"strategies.{name}" for name in ("FedCGS", "FedCOF", "NCM", "Ridge")}


def strategies():
    """Return the strategies' names as pages write them; for a head, with the module."""
    found = {name for name in dir(cp) if isinstance(getattr(cp, name), type)}
    methods = {name for name in found if issubclass(getattr(cp, name), cp.RoundStrategy)}
    return methods - {"RoundStrategy"} | HEADS


def test_every_public_name_has_an_entry_in_the_reference():
    """Earlier, CoPreFL and all other built-in strategies had no entry."""
    pages = "".join(path.read_text() for path in API_PAGES)
    documented = set(re.findall(r"^::: coprefl_flwr\.(?:\w+\.)?(\w+)$", pages, flags=re.MULTILINE))
    public = {name for name in dir(cp) if not name.startswith("_")}
    ours = {name for name in public if callable(getattr(cp, name)) and _is_ours(getattr(cp, name))}
    assert "CoPreFL" in ours
    assert ours <= documented


def _is_ours(one):
    return one.__module__.startswith("coprefl_flwr.")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_of_a_function_has_a_line(name):
    text = interface.parameters(name)
    for parameter, one in inspect.signature(attrgetter(name)(cp)).parameters.items():
        if parameter == "self":
            continue
        stars = "**" if one.kind is one.VAR_KEYWORD else ""
        (line,) = re.findall(rf"^`{re.escape(stars + parameter)}`.*\n:   (.+)", text, re.MULTILINE)
        assert len(line) > 10


def test_argument_types_match_the_signature():
    """Earlier, `quiet` had the type and the default of the parameter next to it."""
    text = interface.parameters("evaluate_starts")
    assert "`quiet`{ #evaluate_starts.quiet } `bool`, default `False`\n" in text
    assert "`gamma`{ #coprefl.gamma } `float`, default `0.5`, between 0 and 1\n" in (
        interface.arguments("CoPreFL")
    )


def test_every_setting_has_a_unique_anchor():
    page = (tables.PAGES / "reference" / "settings.md").read_text()
    anchors = re.findall(r"\{ #([\w-]+) \}", page)
    assert sorted(anchors) == sorted(declared(Settings))
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    assert not {heading.lower().replace(" ", "-") for heading in headings} & set(anchors)


@pytest.mark.parametrize("page", [one for one in METHOD_PAGES if one.stem != "index"], ids=str)
def test_method_page_has_all_parts(page):
    text = page.read_text()
    for part in ("## What it computes", "## Who sends what", "```exchanges", "## What it costs"):
        assert part in text
    assert re.search("## Where (it|they) deviates? from the paper|in no paper|`Schedule`", text)
    assert examples.commands(page)[-1][:2] == ["coprefl", "run"]
    # The drawing shows the exchanges that the strategy names, in the same order.
    for name in (one.removeprefix(tables.FRAME) for one in tables.parts(text)):
        drawn = list(dict.fromkeys(re.findall(r": (train(?:\.query)?): ", text)))
        if name in METHODS and drawn:
            assert drawn == list(METHODS[name].strategy_class.actions)


def test_pages_of_recipes_name_every_key_and_figure():
    page = (tables.PAGES / "reference" / "recipe-keys.md").read_text()
    new = (tables.ROOT / "coprefl_flwr" / "recipes" / "new.yaml").read_text()
    for key in schema.KEYS:
        assert re.search(rf"^#?{key}:", new, flags=re.MULTILINE) or f"`{key}`" in page, key
    for figure in FIGURES:
        assert f"| `{figure}` |" in page


@pytest.mark.parametrize("part", ["data", "method", "model", "metric"])
def test_how_to_page_shows_the_whole_example(part):
    """The page includes the imports, so that code copied from the page runs."""
    text = (tables.PAGES / "how-to" / f"{part}.md").read_text()
    source = (tables.ROOT / "examples" / "own_parts" / f"{part}.py").read_text()
    blocks = re.findall(r"^( *)```python\n(.*?)^\1```$", text, flags=re.MULTILINE | re.DOTALL)
    shown = [textwrap.dedent(block) for _, block in blocks]
    assert source.partition('"""\n\n')[2] in shown


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_links_outside_the_site_lead_to_existing_files(path):
    """Links of the site are checked when the site is built."""
    found = list(LINK.finditer(path.read_text()))
    assert found
    for link in found:
        assert (path.parent / link["path"]).exists(), link["path"]


@pytest.mark.parametrize(
    "path", [*WRITTEN, *sorted(tables.PAGES.rglob("*.md"))], ids=lambda path: path.name
)
def test_lists_begin_after_an_empty_line(path):
    """Otherwise the site shows a list as a paragraph with dashes, as on the security page once."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = prose.splitlines()
    for before, line in itertools.pairwise(lines):
        begins = line.startswith("- ") and not before.startswith(("- ", "  "))
        assert not (begins and before.strip()), f"{before}\n{line}"


def test_every_method_page_is_in_the_list_of_methods():
    index = (tables.PAGES / "methods" / "index.md").read_text()
    listed = index.partition("## What each method does")[2].partition("\n## ")[0]
    pages = {f"({page.name})" for page in METHOD_PAGES if page.stem != "index"}
    assert {page for page in pages if page not in listed} == set()


def test_page_of_adapters_runs(tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for block in PYTHON.findall((tables.PAGES / "how-to" / "adapters.md").read_text()):
        exec(compile(block, "adapters.md", "exec"), names)
    assert isinstance(names["loaded"], peft.PeftModel)


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_examples_of_the_python_reference_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in PYTHON.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", API_PAGES, ids=lambda page: page.stem)
def test_every_name_of_the_python_reference_exists_in_the_package(page):
    """Otherwise a renamed class is noticed only when the site is built."""
    for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE):
        assert pydoc.locate(name) is not None, name
