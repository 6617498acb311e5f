"""What is put in, and where: settings, recipes, methods, commands, replies, and files."""

import contextlib
import io
import itertools
import json
import os
import re
import string
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from hypothesis import strategies as st

from coprefl_flwr import plugins
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.checksums import SUMS, damaged, write_sums
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import client_app
from coprefl_flwr.data.npz import load_npz
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import METHODS, short_forms
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.models.backbones import load_backbone
from coprefl_flwr.options import Option, declared
from coprefl_flwr.plugins import check_allowed
from coprefl_flwr.recipes import command_line
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.yaml_file import parse_yaml
from coprefl_flwr.rounds.checkpoint import Checkpoint, History, read_checkpoint, write_checkpoint
from coprefl_flwr.strategies import CoPreFL, FedAvg
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.kept import RESULT, read_result, write_result
from coprefl_flwr.studies.settings import Settings
from tests.chaos.hostile import Client, Heard
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.replies import START, Lying
from tests.common.studies import tiny_study

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


@dataclass(frozen=True)
class Target:
    """`put` takes an input of `inputs`, in an empty folder; it may raise a SettingsError."""

    name: str
    inputs: st.SearchStrategy[Any]
    put: Callable[[Any], object]


def targets(images: Path) -> list[Target]:
    return [
        Target("settings", st.dictionaries(keys(), anything(), max_size=4), put_settings),
        Target("typed settings", typed_settings(), put_settings),
        Target("studies", typed_settings(most=3), lambda given: put_study(given, images)),
        Target("methods", method_texts(), lambda text: put_method(text, images)),
        Target("recipes", changed_recipes(), put_recipe),
        Target("YAML", st.one_of(st.text(), yaml_texts()), lambda text: parse_yaml(text, "file")),
        Target("commands", commands(), lambda given: put_command(given, images)),
        Target(
            "run-configs",
            st.tuples(typed_settings(most=3), method_texts()),
            lambda given: put_study(given[0], images, given[1]),
        ),
        Target("replies", replies(), put_reply),
        Target("model.json", model_json_texts(), put_model_json),
        Target("npz", npz_files(), put_npz),
        Target("SHA256SUMS", st.one_of(st.binary(), changed(sums())), put_sums),
        Target("result.json", st.one_of(json_texts(), changed(result())), put_result),
        Target("checkpoints", changed(checkpoint()), put_checkpoint),
        Target("client states", changed(state()), put_state),
        Target("places", st.tuples(st.sampled_from(plugins.KINDS), place_texts()), put_place),
        Target("COPREFL_ALLOW", st.tuples(allow_texts(), place_texts()), put_allowed),
    ]


# ---- values -------------------------------------------------------------------------------------

ODD = [
    "", " ", "\0", "a\nb", "\x1b[2J", "x" * 300, "x" * 10**5, "[" * 3000, "null", "nan", "-1",
    "1e400", "9" * 5000, "../..", "/", "~", "a b", "\u202e", "\ud800", "é" * 200, "none:none",
    10**18, 10**400, -(10**400), 2**63, 2**63 - 1, 1e308, 5e-324, float("nan"), float("inf"),
    float("-inf"), -0.0, 0, -1, 1, True, False, None, b"", [], {}, (), 1j, object, [[]], {"a": 1},
]  # fmt: skip


def anything() -> st.SearchStrategy[Any]:
    simple = st.one_of(
        st.sampled_from(ODD), st.none(), st.booleans(), st.integers(), st.floats(), st.text(),
        st.binary(max_size=9),
    )  # fmt: skip
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=5,
    )


def known_keys() -> list[str]:
    return [*declared(Settings), *short_forms()]


def keys() -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(known_keys()), st.sampled_from(known_keys()), st.text())


def value_of(option: Option) -> st.SearchStrategy[Any]:
    """Draw a value of an option's kind, often at its limits or beyond any size."""
    ends = [one for one in (option.minimum, option.maximum, option.above) if one is not None]
    found: list[st.SearchStrategy[Any]] = []
    if bool in option.kinds:
        found.append(st.booleans())
    if int in option.kinds:
        near = [int(end) + step for end in ends for step in (-1, 0, 1)]
        found.append(st.one_of(st.integers(0, 12), st.sampled_from([*near, 10**6, 10**9, 2**63])))
    if float in option.kinds:
        near = [float(end) + step for end in ends for step in (-1e-9, 0.0, 1e-9)]
        found.append(st.one_of(st.floats(0, 2), st.sampled_from([*near, 1e-300, 1e300, 1.0])))
    if str in option.kinds:
        words = [*option.choices, *(str(option.default).split()), "list:0-3", "1,2", "3", "0-2"]
        found.append(
            st.one_of(st.sampled_from(words), st.lists(st.sampled_from(words)).map(" ".join))
        )
        found.append(st.text(string.printable, max_size=12))
    if type(None) in option.kinds:
        found.append(st.just(""))
    return st.one_of(found)


NOT_FUZZED = ("output-dir", "dataset", "task-dataset", "data-dir", "method", "model", "backbones",
              "personal-datasets")  # fmt: skip
"""What would look at other places of this machine, or download; methods have a target."""


@st.composite
def typed_settings(draw, most=6) -> dict[str, Any]:
    options = {k: one for k, one in declared(Settings).items() if k not in NOT_FUZZED}
    short = {key: of[0] for key, of in short_forms().items()}
    chosen = draw(st.lists(st.sampled_from([*options, *short]), max_size=most, unique=True))
    return {key: draw(value_of((options | short)[key])) for key in chosen}


# ---- settings, studies, methods -----------------------------------------------------------------


def put_settings(given: dict[Any, Any]) -> None:
    made = Settings.from_config(given)
    assert Settings.from_config(made.to_config()) == made, "another after it was written and read"


def put_study(given: dict[str, Any], images: Path, method="random fedavg coprefl") -> None:
    """Build a study with changed settings and check it against its data."""
    # Under them is a study of which all that is not drawn is good.
    whole = tiny_study(images, Path()).to_config() | {"method": method} | given
    build(Settings.from_config(whole)).check()


def method_texts() -> st.SearchStrategy[str]:
    names = [
        *METHODS,
        "random",
        "fedavg-refined",
        "coprefl-sgd",
        "nothing",
        "tests.own:X",
        "a.py:B",
    ]
    options = sorted({key for one in METHODS.values() for key in one.options} | {"rounds", "x"})
    values = ["", "0", "1", "0.5", "-1", "nan", "inf", "1e400", "9" * 5000, "true", "x", "0,1", "="]
    option = st.tuples(st.sampled_from(options), st.sampled_from(values)).map("=".join)
    given = st.lists(option, max_size=3).map(",".join)
    one = st.one_of(st.sampled_from(names), st.tuples(st.sampled_from(names), given).map(":".join))
    chain = st.lists(one, min_size=1, max_size=3).map("+".join)
    odd = st.one_of(chain, chain, st.text(":=,+ \n\0abcfedavg", max_size=20))
    return st.lists(odd, max_size=3).map(" ".join)


def put_method(text: str, images: Path) -> None:
    build(replace(tiny_study(images, Path()), method=text))


# ---- recipes ------------------------------------------------------------------------------------


def changed_recipes() -> st.SearchStrategy[str]:
    small = sorted(one for one in RECIPES.glob("*.yaml") if one.stat().st_size < 2500)
    texts = [one.read_text() for one in small]
    return st.sampled_from(texts).flatmap(lambda text: changed_yaml(text))


@st.composite
def changed_yaml(draw, text: str) -> str:
    """Draw some changes of lines and of values."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        what = draw(st.integers(0, 8))
        odd = draw(st.sampled_from(YAML_VALUES))
        if what == 0 and len(lines) > 1:
            del lines[at]
        elif what == 1:
            lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
        elif what == 2:
            lines[at] = draw(st.sampled_from(["  ", " ", "- ", "\t", "? "])) + lines[at]
        elif what == 3:
            lines[at] = lines[at][2:]
        elif what == 4:
            lines = lines[: at + 1]
        elif what == 5:
            lines[at] = f"{lines[at].partition(':')[0]}: {draw(st.sampled_from(known_keys()))}"
        elif what == 6:
            key = draw(st.sampled_from([*known_keys(), "seeds", "methods", "select", "search"]))
            lines.insert(at, f"{' ' * draw(st.sampled_from([0, 2, 4]))}{key}: {odd}")
        else:
            lines[at] = f"{lines[at].partition(':')[0]}: {odd}"
    return "\n".join(lines) + "\n"


YAML_VALUES = [
    "", "null", "~", "true", "0", "-1", "1", "0.5", ".nan", ".inf", "1e400", "9" * 400, "0x1F",
    "[]", "{}", "[1, 2]", "[[1, 2], [3]]", "{a: 1}", "[a, {b: [c]}]", "''", '"\\0"', "'a b'",
    '"\\x1b[2J\\n"', "&a [*a]", "*b", "!!python/name:os.system ''", "2026-01-01", "x" * 5000,
    "[" * 80 + "]" * 80, "fedavg", "coprefl:gamma=2", "a.py:B", "json:loads", "list:0-99", "?", "-",
    "|\n  text", "{coprefl: {gamma: [0, 1]}}", "[fedavg, fedavg]", "1_000", "0o17", "1:30:00",
    f"1{1000 * ':59'}", f"1{200 * ':59'}.5", f"1{350 * '0'}", str(list(range(1100))),
]  # fmt: skip


def put_recipe(text: str) -> None:
    folder = tempfile.mkdtemp()  # Not the working folder, in which nothing may be left.
    path = Path(folder) / "recipe.yaml"
    try:
        path.write_bytes(text.encode(errors="surrogatepass"))
        read_recipe(path)
        assert [one.name for one in Path(folder).iterdir()] == ["recipe.yaml"], "files were left"
    finally:
        path.unlink()
        os.rmdir(folder)


def yaml_texts() -> st.SearchStrategy[str]:
    pieces = [*YAML_VALUES, "\n", ": ", "- ", "  ", "a", "'", '"', "#", "%", "---\n", "&x ", "*x "]
    return st.lists(st.sampled_from(pieces), max_size=12).map("".join)


# ---- commands -----------------------------------------------------------------------------------


def commands() -> st.SearchStrategy[list[str]]:
    words = [
        "run", "new", "report", "list", "show", "check-method", "--out", "--models",
        "--scale", "small", "full", "--protocol", "--set", "--workers", "0", "-1", "1e9", "x",
        f"1{20 * '0'}", "--tensorboard", "--mlflow", "--wandb", "--tracker",
        "--no-flower", "--version", "--help",
        "--", "-", "", ".", "..", "/", "/dev/null", "none.yaml", "good.yaml", "a.py:B", "json:x",
        "seeds=[1]", "seeds=", "rounds=0", "rounds=10", "a=b", "=", "methods=[fedavg]", "\n",
        "title=[", "x" * 300, "\u202e", "a\nb", "no:thing", "~", "~nobody/x", "settings={}",
    ]  # fmt: skip
    word = st.one_of(st.sampled_from(words), st.text(string.printable, max_size=8))
    key = st.one_of(
        st.sampled_from([*known_keys(), "seeds", "methods", "metrics", "figures", "paper"])
    )
    change = st.tuples(key, st.sampled_from(YAML_VALUES)).map(
        lambda pair: ["--set", "=".join(pair)]
    )
    free = st.lists(word, max_size=6)
    changes = st.lists(change, min_size=1, max_size=3).map(
        lambda all_of_them: ["run", "good.yaml", *itertools.chain(*all_of_them)]
    )
    return st.one_of(free, changes, st.tuples(st.sampled_from(words[:6]), word).map(list))


def put_command(arguments: list[str], images: Path) -> None:
    """Give arguments to `coprefl`, which makes no run: what it refuses them with is one line."""
    good = write_recipe(Path("good.yaml"), tiny_recipe(images))
    before = set(Path().rglob("*"))
    errors = io.StringIO()
    try:
        with (
            mock.patch.object(command_line, "_run_into", return_value=0),
            mock.patch.object(command_line, "check_methods", return_value=0),
            contextlib.redirect_stderr(errors),
        ):
            status = command_line.main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
        assert status in (0, 2), f"status {status}"
    lines = errors.getvalue().splitlines()
    if status == 1:
        assert len(lines) == 1, f"{len(lines)} lines: {lines[:3]}"
        assert lines[0].startswith("coprefl: "), lines[0]
        left = set(Path().rglob("*")) - before
        assert not left, f"left {left}"
    if status == 2:  # argparse's.
        assert any(re.match(r"coprefl.*: error: ", line) for line in lines), lines[-3:]
    good.unlink()


# ---- replies ------------------------------------------------------------------------------------


def replies():
    """Draw records of a reply: to be read, or nonsense of the right types."""
    number = st.one_of(st.floats(), st.integers(-(2**62), 2**62))
    of_metrics = st.dictionaries(
        st.sampled_from(["clients", "loss", "num-examples", "correct", "x", "", "q" * 300]),
        st.one_of(
            number, st.lists(st.floats(), max_size=3), st.lists(st.integers(-2, 9), max_size=3)
        ),
        max_size=4,
    ).map(MetricRecord)
    of_config = st.dictionaries(
        st.sampled_from(["clients", "reasons", "failed", "x"]),
        st.one_of(
            st.text(), st.integers(-(2**62), 2**62), st.booleans(), st.binary(max_size=5),
            st.lists(st.text(), max_size=3), st.lists(st.integers(-2, 9), max_size=3),
        ),
        max_size=3,
    ).map(ConfigRecord)  # fmt: skip
    record = st.one_of(of_metrics, of_config, array_records())
    names = st.sampled_from(["arrays", "metrics", "failed", "sum", "0", "x", "gradient"])
    return st.tuples(
        st.sampled_from(["train", "train.query", "evaluate", "query.roster"]),
        st.dictionaries(names, record, max_size=4),
        st.booleans(),
    )


def array_records():
    shapes = st.lists(st.integers(0, 4), max_size=2).map(tuple)
    kinds = st.sampled_from(["<f4", "<f8", "<f2", "<i8", "<u1", "|b1", "<c8", "<U2", "|S2", "|O"])

    @st.composite
    def one(draw):
        shape, kind = draw(shapes), draw(kinds)
        if draw(st.booleans()):
            data = draw(st.binary(max_size=40))
        else:
            file = io.BytesIO()
            about = {"descr": kind, "fortran_order": draw(st.booleans()), "shape": shape}
            np.lib.format.write_array_header_1_0(file, about)
            data = file.getvalue() + draw(st.binary(max_size=40))
        return Array(dtype=kind, shape=shape, stype="numpy.ndarray", data=data)

    names = st.sampled_from(["w", "b", "n", "x", ""])
    return st.dictionaries(names, one(), max_size=4).map(ArrayRecord)


def put_reply(given) -> None:
    """Let the middle one of three nodes answer so: the others' work ends, in finite numbers."""
    message_type, records, merged = given

    def lie(node, asked, reply):
        if node != 3 or asked != message_type:
            return None
        return {**reply.content, **records} if merged else records

    app = client_app(lambda _, i: Client(i, {}))
    for strategy in (FedAvg(min_nodes=2), CoPreFL(min_nodes=2)):
        with Heard() as heard:
            result = strategy.start(Lying(app, 3, lie), to_record(START), 1)
        arrays = from_record(result.arrays)
        assert all(np.isfinite(array).all() for array in arrays.values()), "not finite"
        for line in heard.lines:
            assert "node 3" in line, f"another is named: {line}"
            assert line.isprintable(), f"does not print: {line!r}"


# ---- files --------------------------------------------------------------------------------------


@contextlib.contextmanager
def elsewhere():
    """Make a folder for what is read, which is not the working folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def made(write: Callable[[Path], Path]) -> bytes:
    """Return the bytes of the file that is written."""
    with elsewhere() as folder:
        return write(folder).read_bytes()


@st.composite
def changed(draw, content: bytes) -> bytes:
    """Draw some flipped bits, pieces cut out, put in, or written over."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        if not found:
            break
        at, what = draw(st.integers(0, len(found) - 1)), draw(st.integers(0, 4))
        if what == 0:
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif what == 1:
            del found[at:]
        elif what == 2:
            del found[at : at + draw(st.integers(1, 40))]
        elif what == 3:
            found[at:at] = draw(st.binary(max_size=20))
        else:
            piece = draw(st.binary(min_size=1, max_size=8))
            found[at : at + len(piece)] = piece
    return bytes(found)


def json_texts() -> st.SearchStrategy[bytes]:
    parts = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["rows", "rounds", "model", "num-classes", "settings", "x"]), inner
            ),
        ),
        max_leaves=8,
    )
    return st.one_of(
        parts.map(lambda value: json.dumps(value).encode()),
        st.sampled_from([b"", b"null", b"[" * 10**5, b"9" * 5000, b"\xff", b"{}", b'"\\ud800"']),
    )


ABOUT = {
    "model": "lenet5",
    "num-classes": 4,
    "input-shape": [1, 28, 28],
    "norm": "batch",
    "pixel-mean": [0.5],
    "pixel-std": [0.25],
    "settings": {"model": "lenet5", "norm": "batch"},
}


def _saved(folder: Path) -> None:
    save_model(folder, model_arrays(build_model("lenet5", 4, (1, 28, 28))), ABOUT)


def model_json() -> bytes:
    return json.dumps(ABOUT).encode()


def put_model_json(content: bytes) -> None:
    with elsewhere() as folder:
        _saved(folder)
        (folder / "model.json").write_bytes(content)
        load_backbone(str(folder))


@st.composite
def model_json_texts(draw) -> bytes:
    """Draw texts, and descriptions of which one thing is odd or missing."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.one_of(json_texts(), changed(model_json())))
    about = dict(ABOUT)
    odd = [
        None,
        True,
        "",
        "x",
        0,
        -1,
        4,
        0.5,
        1e400,
        10**400,
        [],
        [0.0],
        ["x"],
        [[1]],
        {},
        {"a": 1},
    ]
    key = draw(st.sampled_from(sorted(about)))
    about[key] = draw(st.sampled_from(odd))
    if draw(st.booleans()):
        about.pop(draw(st.sampled_from(sorted(about))))
    return json.dumps(about).encode()


def sums() -> bytes:
    return made(lambda folder: (_result(folder), folder / SUMS)[1])


def _result(folder: Path) -> None:
    write_result(folder, [{"start": "a", "client": 0, "loss": 0.5, "n": 4, "correct": 1}], [])


def result() -> bytes:
    return made(lambda folder: (_result(folder), folder / RESULT)[1])


def put_sums(content: bytes) -> None:
    with elsewhere() as folder:
        _result(folder)
        (folder / SUMS).write_bytes(content)
        damaged(folder)
        read_result(folder)


def put_result(content: bytes) -> None:
    """Read a result: of one that is beside its checksum, what is read is what was written."""
    with elsewhere() as folder:
        _result(folder)
        whole = read_result(folder)
        (folder / RESULT).write_bytes(content)
        with contextlib.suppress(SettingsError):
            assert read_result(folder) == whole, "another result was read than was written"
        write_sums(folder, [RESULT], {})
        read_result(folder)


def checkpoint() -> bytes:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}

    def write(folder: Path) -> Path:
        file = folder / "checkpoint.safetensors"
        state = {"momentum": arrays, "loss": 0.5}
        write_checkpoint(
            file, Checkpoint(2, arrays, state, History({1: {"loss": 1.0}}), {"seed": 0}, {1: "1-0"})
        )
        return file

    return made(write)


def put_checkpoint(content: bytes, known=[]) -> None:  # noqa: B006
    """Read a changed checkpoint: it is refused, or is what was written."""
    with elsewhere() as folder:
        file = folder / "checkpoint.safetensors"
        known.append(checkpoint()) if not known else None
        file.write_bytes(known[0])
        whole = repr(read_checkpoint(file))
        file.write_bytes(content)
        assert repr(read_checkpoint(file)) == whole, "another checkpoint was read than was written"


STATE = {"run": "r", "population": "p", "client": 1, "server-round": 2}


def state() -> bytes:
    def write(folder: Path) -> Path:
        ClientState(folder).write(STATE, {"w": np.arange(4.0), "n": np.array(1)})
        return next(folder.rglob("*.safetensors"))

    return made(write)


def put_state(content: bytes) -> None:
    with elsewhere() as folder:
        states = ClientState(folder)
        states.write(STATE, {"w": np.arange(4.0), "n": np.array(1)})
        config = {**STATE, "state-version": "2-0"}
        whole = repr(states.read(config))
        next(folder.rglob("*.safetensors")).write_bytes(content)
        assert repr(states.read(config)) == whole, "another state was read than was written"


@st.composite
def npz_files(draw) -> bytes:
    """Draw archives: of odd arrays, of odd headers, and of changed bytes."""
    n = draw(st.integers(0, 5))
    good = {"images": np.zeros((n, 6, 6), np.uint8), "labels": np.arange(n)}
    names = ["images", "labels", "groups", "domains", "classes", "train_images", "test_labels", "x"]
    shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
    kinds = st.sampled_from(["|u1", "<i8", "<f4", "<f8", "<U3", "|b1", "<c8", "|S1", "<M8[D]"])
    for name in draw(st.lists(st.sampled_from(names), max_size=3)):
        good[name] = np.zeros(draw(shapes), draw(kinds))
    file = io.BytesIO()
    np.savez(file, **good)
    if draw(st.booleans()):
        with zipfile.ZipFile(file, "a") as archive:
            header = io.BytesIO()
            shape = draw(st.lists(st.sampled_from([-1, 0, 1, 7, 10**6, 10**12, 2**63]), max_size=3))
            about = {
                "descr": draw(st.sampled_from(["|u1", "<f8", "|O", "V9", "nonsense", "<U999999"])),
                "fortran_order": draw(st.booleans()),
                "shape": tuple(shape),
            }
            np.lib.format.write_array_header_2_0(header, about)
            archive.writestr(
                f"{draw(st.sampled_from(names))}2.npy", header.getvalue() + b"12345678"
            )
    if draw(st.booleans()):
        return draw(changed(file.getvalue()))
    return file.getvalue()


def put_npz(content: bytes) -> None:
    with elsewhere() as folder:
        file = folder / "a.npz"
        file.write_bytes(content)
        load_npz(file)


# ---- places -------------------------------------------------------------------------------------


def place_texts() -> st.SearchStrategy[str]:
    parts = ["a", "tests.common.networks", "json", "network", "loads", ":", ".", "/", "..", ".py",
             "a.py", ":B", ":width=3", ",", "=", " ", "\0", "\n", "+", ";", "~", "~nobody",
             "x" * 300, "é", "__init__", "IidPartitioner", "9" * 5000, "-", "%"]  # fmt: skip
    return st.one_of(
        st.lists(st.sampled_from(parts), max_size=6).map("".join), st.text(max_size=12)
    )


def put_place(given) -> None:
    kind, text = given
    plugins.is_place(kind, text)
    plugins.hash_at(kind, text)
    plugins.portable(text)
    for read in (
        lambda: plugins.options_of(text),
        lambda: plugins.resolved(text, Path.cwd()),
        lambda: plugins.find(kind, text),
    ):
        with contextlib.suppress(Refused):
            _refuse(read)


class Refused(Exception):
    """The first of several reads was refused, as it may be."""


def _refuse(read) -> None:
    try:
        read()
    except SettingsError as error:
        from tests.chaos.fuzz import wrong_line

        problem = wrong_line(str(error))
        assert not problem, problem
        raise Refused from error


def allow_texts() -> st.SearchStrategy[str]:
    parts = ["none", "json", "tests", "a/", "a.b:C", ",", ".", "/", ":", " ", "..", "é", "~"]
    return st.lists(st.sampled_from(parts), max_size=5).map("".join)


def put_allowed(given) -> None:
    allowed, text = given
    with mock.patch.dict(os.environ, {"COPREFL_ALLOW": allowed}):
        check_allowed(text)
