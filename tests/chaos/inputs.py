"""Hypothesis strategies for inputs: settings, methods, recipes, commands, replies and files."""

import functools
import io
import itertools
import json
import string
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from hypothesis import strategies as st

from coprefl_flwr.methods import METHODS, short_forms
from coprefl_flwr.options import Option, declared
from coprefl_flwr.studies.settings import Settings

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"

# ---- values and settings ------------------------------------------------------------------------

ODD = [
    "", " ", "\0", "a\nb", "\x1b[2J", "x" * 300, "x" * 10**5, "[" * 3000, "null", "nan", "-1",
    "1e400", "9" * 5000, "../..", "/", "~", "a b", "\u202e", "\ud800", "é" * 200, "none:none",
    10**18, 10**400, -(10**400), 2**63, 2**63 - 1, 1e308, 5e-324, float("nan"), float("inf"),
    float("-inf"), -0.0, 0, -1, 1, True, False, None, b"", [], {}, (), 1j, object, [[]], {"a": 1},
]  # fmt: skip


def joined(parts: list[str], most: int, by: str = "") -> st.SearchStrategy[str]:
    """Draw texts that join some of these parts."""
    return st.lists(st.sampled_from(parts), max_size=most).map(by.join)


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


KEYS = [*declared(Settings), *short_forms()]


def untyped_settings() -> st.SearchStrategy[dict[str, Any]]:
    known = st.sampled_from(KEYS)
    return st.dictionaries(st.one_of(known, known, st.text()), anything(), max_size=4)


def value_of(option: Option) -> st.SearchStrategy[Any]:
    """Draw a value of a type of the option, often at its limits or far beyond them."""
    ends = [one for one in (option.minimum, option.maximum, option.above) if one is not None]
    words = [*option.choices, *(str(option.default).split()), "list:0-3", "1,2", "3", "0-2"]
    near = [int(end) + step for end in ends for step in (-1, 0, 1)]
    close = [float(end) + step for end in ends for step in (-1e-9, 0.0, 1e-9)]
    by_kind = {
        bool: st.booleans(),
        int: st.one_of(st.integers(0, 12), st.sampled_from([*near, 10**6, 10**9, 2**63])),
        float: st.one_of(st.floats(0, 2), st.sampled_from([*close, 1e-300, 1e300, 1.0])),
        str: st.one_of(
            st.sampled_from(words), joined(words, 9, " "), st.text(string.printable, max_size=12)
        ),
        type(None): st.just(""),
    }
    return st.one_of([by_kind[kind] for kind in by_kind if kind in option.kinds])


NOT_FUZZED = ("output-dir", "dataset", "task-dataset", "data-dir", "method", "model", "backbones",
              "personal-datasets")  # fmt: skip
"""Settings that would read other folders or download; `method_texts` draws the methods."""


@st.composite
def typed_settings(draw, most=6) -> dict[str, Any]:
    options = {k: one for k, one in declared(Settings).items() if k not in NOT_FUZZED}
    options |= {key: of[0] for key, of in short_forms().items()}
    chosen = draw(st.lists(st.sampled_from(list(options)), max_size=most, unique=True))
    return {key: draw(value_of(options[key])) for key in chosen}


def method_texts() -> st.SearchStrategy[str]:
    others = ["random", "fedavg-refined", "coprefl-sgd", "nothing", "tests.own:X", "a.py:B"]
    options = sorted({key for one in METHODS.values() for key in one.options} | {"rounds", "x"})
    values = ["", "0", "1", "0.5", "-1", "nan", "inf", "1e400", "9" * 5000, "true", "x", "0,1", "="]
    name = st.sampled_from([*METHODS, *others])
    option = st.tuples(st.sampled_from(options), st.sampled_from(values)).map("=".join)
    given = st.lists(option, max_size=3).map(",".join)
    one = st.one_of(name, st.tuples(name, given).map(":".join))
    chain = st.lists(one, min_size=1, max_size=3).map("+".join)
    odd = st.one_of(chain, chain, st.text(":=,+ \n\0abcfedavg", max_size=20))
    return st.lists(odd, max_size=3).map(" ".join)


@st.composite
def studies(draw) -> dict[str, Any]:
    """Draw some settings, or methods, or both."""
    what = draw(st.integers(0, 2))
    given = draw(typed_settings(most=3)) if what != 1 else {}
    return given | ({"method": draw(method_texts())} if what else {})


# ---- recipes and commands -----------------------------------------------------------------------

YAML_VALUES = [
    "", "null", "~", "true", "0", "-1", "1", "0.5", ".nan", ".inf", "1e400", "9" * 400, "0x1F",
    "[]", "{}", "[1, 2]", "[[1, 2], [3]]", "{a: 1}", "[a, {b: [c]}]", "''", '"\\0"', "'a b'",
    '"\\x1b[2J\\n"', "&a [*a]", "*b", "!!python/name:os.system ''", "2026-01-01", "x" * 5000,
    "[" * 80 + "]" * 80, "fedavg", "coprefl:gamma=2", "a.py:B", "json:loads", "list:0-99", "?", "-",
    "|\n  text", "{coprefl: {gamma: [0, 1]}}", "[fedavg, fedavg]", "1_000", "0o17", "1:30:00",
    f"1{1000 * ':59'}", f"1{200 * ':59'}.5", f"1{350 * '0'}", str(list(range(1100))),
]  # fmt: skip


def changed_recipes() -> st.SearchStrategy[str]:
    """Draw a recipe of the examples with some changed lines or values."""
    small = sorted(one for one in RECIPES.glob("*.yaml") if one.stat().st_size < 2500)
    values = st.sampled_from([*YAML_VALUES, *KEYS])
    indents = st.sampled_from(["", "  ", "    ", "- ", "\t", "? "])
    keys = st.sampled_from([*KEYS, "seeds", "methods", "select", "search"])
    changes = st.one_of(
        values.map(lambda value: lambda line: f"{line.partition(':')[0]}: {value}"),
        st.tuples(indents, keys, values).map(lambda of: lambda line: "{}{}: {}".format(*of)),
        indents.map(lambda indent: lambda line: indent + line),
        st.just(lambda line: line[2:]),
    )
    lines = st.sampled_from(small).flatmap(
        lambda file: changed(file.read_text().splitlines, changes)
    )
    return lines.map(lambda found: "\n".join(found) + "\n")


def yaml_texts() -> st.SearchStrategy[str]:
    pieces = [*YAML_VALUES, "\n", ": ", "- ", "  ", "a", "'", '"', "#", "%", "---\n", "&x ", "*x "]
    return st.one_of(st.text(), joined(pieces, 12))


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
    key = st.sampled_from([*KEYS, "seeds", "methods", "metrics", "figures", "paper"])
    change = st.tuples(key, st.sampled_from(YAML_VALUES)).map(lambda two: ["--set", "=".join(two)])
    changes = st.lists(change, min_size=1, max_size=3).map(
        lambda found: ["run", "good.yaml", *itertools.chain(*found)]
    )
    short = st.tuples(st.sampled_from(words[:6]), word).map(list)
    return st.one_of(st.lists(word, max_size=6), changes, short)


# ---- replies ------------------------------------------------------------------------------------


def header(kind: str, shape: tuple[int, ...], fortran: bool = False, large: bool = False) -> bytes:
    """Return the header of an array in NumPy's file format."""
    file = io.BytesIO()
    about = {"descr": kind, "fortran_order": fortran, "shape": shape}
    write = np.lib.format.write_array_header_2_0 if large else np.lib.format.write_array_header_1_0
    write(file, about)
    return file.getvalue()


def shapes(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 4), max_size=most).map(tuple)


@st.composite
def arrays(draw) -> Array:
    """Draw an array of a reply; its bytes may be anything."""
    shape = draw(shapes(2))
    kinds = ["<f4", "<f8", "<f2", "<i8", "<u1", "|b1", "<c8", "<U2", "|S2", "|O"]
    kind = draw(st.sampled_from(kinds))
    before = draw(st.sampled_from([b"", header(kind, shape), header(kind, shape, fortran=True)]))
    content = before + draw(st.binary(max_size=40))
    return Array(dtype=kind, shape=shape, stype="numpy.ndarray", data=content)


def replies() -> st.SearchStrategy[tuple[str, dict[str, Any], bool]]:
    """Draw (message type, records by name, whether an honest reply's records are kept)."""
    integers = st.integers(-(2**62), 2**62)
    few = st.lists(st.integers(-2, 9), max_size=3)
    metric = st.one_of(st.floats(), integers, st.lists(st.floats(), max_size=3), few)
    setting = st.one_of(
        st.text(), integers, st.booleans(), st.binary(max_size=5), st.lists(st.text(), max_size=3),
        few,
    )  # fmt: skip

    def records(names, values, most):
        return st.dictionaries(st.sampled_from(names), values, max_size=most)

    metrics = ["clients", "loss", "num-examples", "correct", "x", "", "q" * 300]
    record = st.one_of(
        records(metrics, metric, 4).map(MetricRecord),
        records(["clients", "reasons", "failed", "x"], setting, 3).map(ConfigRecord),
        records(["w", "b", "n", "x", ""], arrays(), 4).map(ArrayRecord),
    )
    return st.tuples(
        st.sampled_from(["train", "train.query", "evaluate", "query.roster"]),
        records(["arrays", "metrics", "failed", "sum", "0", "x", "gradient"], record, 4),
        st.booleans(),
    )


# ---- files --------------------------------------------------------------------------------------


@st.composite
def changed(draw, whole: Callable[[], Sequence[Any]], changes: st.SearchStrategy[Any]) -> list[Any]:
    """Draw a sequence with pieces cut out, repeated or changed; `changes` draws functions."""
    found = list(whole())
    for _ in range(draw(st.integers(1, 4))):
        at, what = draw(st.integers(0, max(0, len(found) - 1))), draw(st.integers(0, 6))
        length = draw(st.integers(1, 40))
        if what == 0:
            del found[at:]
        elif what == 1:
            del found[at : at + length]
        elif what == 2:
            found[at:at] = found[-length:]
        elif found:
            found[at] = draw(changes)(found[at])
    return found


def changed_bytes(whole: Callable[[], bytes]) -> st.SearchStrategy[bytes]:
    bits = st.integers(0, 7).map(lambda bit: lambda byte: byte ^ 1 << bit)
    others = st.integers(0, 255).map(lambda other: lambda byte: other)
    return changed(whole, st.one_of(bits, others)).map(bytes)


def json_texts() -> st.SearchStrategy[bytes]:
    keys = st.sampled_from(["rows", "rounds", "model", "num-classes", "settings", "x"])
    parts = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner)),
        max_leaves=8,
    )
    odd = [b"", b"null", b"[" * 10**5, b"9" * 5000, b"\xff", b"{}", b'"\\ud800"']
    return st.one_of(parts.map(lambda value: json.dumps(value).encode()), st.sampled_from(odd))


ABOUT = {
    "model": "lenet5",
    "num-classes": 4,
    "input-shape": [1, 28, 28],
    "norm": "batch",
    "pixel-mean": [0.5],
    "pixel-std": [0.25],
    "settings": {"model": "lenet5", "norm": "batch"},
}


@st.composite
def odd_models(draw) -> bytes:
    """Draw the description of a model with one odd value; another value may be missing."""
    odd = [
        None, True, "", "x", 0, -1, 4, 0.5, 1e400, 10**400, [], [0.0], ["x"], [[1]], {}, {"a": 1},
    ]  # fmt: skip
    about = {**ABOUT, draw(st.sampled_from(sorted(ABOUT))): draw(st.sampled_from(odd))}
    if draw(st.booleans()):
        about.pop(draw(st.sampled_from(sorted(about))))
    return json.dumps(about).encode()


def models() -> st.SearchStrategy[bytes]:
    one = changed_bytes(functools.partial(bytes, json.dumps(ABOUT), "ascii"))
    return st.one_of(odd_models(), odd_models(), json_texts(), one)


@st.composite
def archives(draw) -> bytes:
    """Draw .npz files with odd arrays, odd headers or changed bytes."""
    n = draw(st.integers(0, 5))
    good = {"images": np.zeros((n, 6, 6), np.uint8), "labels": np.arange(n)}
    names = ["images", "labels", "groups", "domains", "classes", "train_images", "test_labels", "x"]
    kinds = ["|u1", "<i8", "<f4", "<f8", "<U3", "|b1", "<c8", "|S1", "<M8[D]"]
    for name in draw(st.lists(st.sampled_from(names), max_size=3)):
        good[name] = np.zeros(draw(shapes(4)), draw(st.sampled_from(kinds)))
    file = io.BytesIO()
    np.savez(file, **good)
    if draw(st.booleans()):
        sizes = st.sampled_from([-1, 0, 1, 7, 10**6, 10**12, 2**63])
        kind = draw(st.sampled_from(["|u1", "<f8", "|O", "V9", "nonsense", "<U999999"]))
        shape = tuple(draw(st.lists(sizes, max_size=3)))
        content = header(kind, shape, draw(st.booleans()), large=True) + b"12345678"
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(f"{draw(st.sampled_from(names))}2.npy", content)
    return draw(changed_bytes(file.getvalue)) if draw(st.booleans()) else file.getvalue()


# ---- places -------------------------------------------------------------------------------------


def place_texts() -> st.SearchStrategy[str]:
    parts = ["a", "tests.common.networks", "json", "network", "loads", ":", ".", "/", "..", ".py",
             "a.py", ":B", ":width=3", ",", "=", " ", "\0", "\n", "+", ";", "~", "~nobody",
             "x" * 300, "é", "__init__", "IidPartitioner", "9" * 5000, "-", "%"]  # fmt: skip
    return st.one_of(joined(parts, 6), st.text(max_size=12))


def allow_texts() -> st.SearchStrategy[str]:
    return joined(["none", "json", "tests", "a/", "a.b:C", ",", ".", "/", ":", " ", "..", "~"], 5)
