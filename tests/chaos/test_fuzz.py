"""Every input is accepted, or soon refused with an error message of one line and without a file."""

import contextlib
import functools
import io
import os
import re
import signal
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import example
from hypothesis import strategies as st

from coprefl_flwr import cli, plugins
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.data.readers import read_npz
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import (
    Checkpoint,
    History,
    read_checkpoint,
    write_checkpoint,
)
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.files import SUMS, damaged, write_sums
from coprefl_flwr.models import build_model, model_arrays, save_model
from coprefl_flwr.models.backbones import load_backbone
from coprefl_flwr.named import Named
from coprefl_flwr.recipes import command_line
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.yaml_file import parse_yaml
from coprefl_flwr.strategies import CoPreFL, FedAvg
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.store import RESULT, read_result, write_result
from tests.chaos import inputs
from tests.chaos.forked import quiet
from tests.chaos.hostile import Client, Heard
from tests.chaos.length import examples
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.replies import START, Lying
from tests.common.studies import tiny_study

PROPERTIES = 15
SECONDS = 60
"""The time that one input may take."""
LARGEST = 20_000
"""The maximum number of characters of an error message."""
GIVEN = Path("given")
"""The folder with the input files; no other file may be left in the working folder."""


class Late(BaseException):
    """Raised when an input takes too long; nothing of the package may catch it."""


def fuzz(drawn):
    """Make a property test of a function that uses an input; each input gets a new folder."""

    def property_of(put):
        @functools.wraps(put)
        def test(**arguments):
            with alone():
                refused(lambda: put(**arguments))

        return examples("fuzz", 12, PROPERTIES, given=drawn)(test)

    return property_of


@contextlib.contextmanager
def alone():
    """Work in an empty folder without output, and raise `Late` if it takes too long."""

    def late(*_):
        raise Late(f"not within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quiet():
            GIVEN.mkdir()
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(put):
    """Call a function; return whether it refused its input. The error message must be one line."""
    try:
        put()
    except SettingsError as error:
        text = str(error)
        assert text.strip(), "refused without a word"
        assert len(text.splitlines()) == 1, f"refused in several lines: {text[:100]!r}"
        assert len(text) <= LARGEST, f"refused in {len(text)} characters"
        left = [one for one in Path().rglob("*") if GIVEN not in (one, *one.parents)]
        assert not left, f"left {left}"
        return True
    return False


@pytest.mark.parametrize("text", [" ", "one line, and a file is left"])
def test_what_is_refused_without_a_word_or_leaves_a_file_is_noticed(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def refusing():
        if "file" in text:
            Path("left").touch()
        raise SettingsError(text)

    with pytest.raises(AssertionError):
        refused(refusing)


# ---- settings, studies, methods -----------------------------------------------------------------


@fuzz(st.one_of(inputs.untyped_settings(), inputs.typed_settings()))
def test_settings(given):
    made = Settings.from_config(given)
    assert Settings.from_config(made.to_config()) == made, "another after it was written and read"


@fuzz(inputs.studies())
def test_studies(given, tiny_images):
    """The drawn settings are added to a correct study with data."""
    build(Settings.from_config(tiny_study(tiny_images, Path()).to_config() | given)).check()


# ---- recipes and commands -----------------------------------------------------------------------


@fuzz(inputs.changed_recipes())
def test_recipes(given):
    path = GIVEN / "recipe.yaml"
    path.write_bytes(given.encode(errors="surrogatepass"))
    try:
        read_recipe(path)
    finally:
        assert list(GIVEN.iterdir()) == [path], "files were left"


@fuzz(inputs.yaml_texts())
@example(given=f"1{1000 * ':59'}")
@example(given="[" * 3000)
def test_yaml(given):
    parse_yaml(given, "file")


@fuzz(inputs.commands())
@example(given=["run", "good.yaml", "--set", "seeds=[1"])
def test_commands(given, tiny_images):
    """Pass arguments to `coprefl`, which runs nothing; wrong arguments are refused in one line."""
    write_recipe(Path("good.yaml"), tiny_recipe(tiny_images))
    before = set(Path().rglob("*"))
    errors = io.StringIO()
    try:
        with (
            mock.patch.object(command_line, "_run_all", return_value={}),
            mock.patch.object(command_line, "check_methods", return_value=0),
            contextlib.redirect_stderr(errors),
        ):
            status = cli.main(given)
    except SystemExit as ended:
        status = int(ended.code or 0)
        assert status in (0, 2), f"status {status}"
    lines = errors.getvalue().splitlines()
    if status == 1:
        assert len(lines) == 1, f"{len(lines)} lines: {lines[:3]}"
        assert lines[0].startswith("coprefl: "), lines[0]
        left = set(Path().rglob("*")) - before
        assert not left, f"left {left}"
    if status == 2:  # From argparse.
        assert any(re.match(r"coprefl.*: error: ", line) for line in lines), lines[-3:]


# ---- replies ------------------------------------------------------------------------------------


@fuzz(inputs.replies())
def test_replies(given):
    """The middle node of three sends this reply; the run still ends, with finite numbers."""
    message_type, records, merged = given

    def lie(node, asked, reply):
        if node != 3 or asked != message_type:
            return None
        return {**reply.content, **records} if merged else records

    app = client_app(lambda _, i: Client(i, {}))
    for strategy in (FedAvg(min_available_nodes=2), CoPreFL(min_available_nodes=2)):
        with Heard() as heard:
            result = strategy.start(Lying(app, 3, lie), to_record(START), 1)
        arrays = from_record(result.arrays)
        assert all(np.isfinite(array).all() for array in arrays.values()), "not finite"
        for line in heard.lines:
            assert "node 3" in line, f"another is named: {line}"
            assert line.isprintable(), f"does not print: {line!r}"


# ---- files --------------------------------------------------------------------------------------

HISTORY = "checkpoint.rounds.jsonl"
STATE = {"run": "r", "population": "p", "client": 1, "server-round": 2}


def write_files():
    """Write a result and its checksum, a checkpoint, and a client's state; return their paths."""
    write_result(GIVEN, [{"start": "a", "client": 0, "loss": 0.5, "n": 4, "correct": 1}], [])
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}
    state = {"momentum": arrays, "loss": 0.5}
    made = Checkpoint(2, arrays, state, History({1: {"loss": 1.0}}), {"seed": 0}, {1: "1-0"})
    write_checkpoint(GIVEN / "checkpoint", made)
    ClientState(GIVEN / "states").write(STATE, {"w": np.arange(4.0), "n": np.array(1)})
    (of_client,) = GIVEN.glob("states/**/*.safetensors")
    known = {name: GIVEN / name for name in (RESULT, SUMS, "checkpoint", HISTORY)}
    return known | {"client's state": of_client}


READ = {
    RESULT: lambda: read_result(GIVEN),
    SUMS: lambda: (read_result(GIVEN), damaged(GIVEN))[0],
    "checkpoint": lambda: read_checkpoint(GIVEN / "checkpoint"),
    HISTORY: lambda: read_checkpoint(GIVEN / "checkpoint"),
    "client's state": lambda: ClientState(GIVEN / "states").read({**STATE, "state-version": "2-0"}),
}


@functools.cache
def whole_files():
    with alone():
        return {name: file.read_bytes() for name, file in write_files().items()}


def never_believed(name):
    """Return the property test that a damaged file is refused or read with its old content."""
    # A file with one changed digit is well-formed; only its checksum does not match.
    number = st.integers(0, 9).map(
        lambda n: re.sub(rb"\d", b"%d" % n, whole_files()[name], count=1)
    )
    changed = inputs.changed_bytes(lambda: whole_files()[name])

    @fuzz(st.one_of(number, changed, changed, inputs.json_texts(), st.binary()))
    def test(given):
        file = write_files()[name]
        whole = repr(READ[name]())
        file.write_bytes(given)
        assert repr(READ[name]()) == whole, "something else was read than was written"

    return test


(
    test_result,
    test_sha256sums,
    test_checkpoint,
    test_history,
    test_client_state,
) = map(never_believed, READ)


@fuzz(inputs.json_texts())
def test_results_whose_checksum_fits(given):
    write_files()[RESULT].write_bytes(given)
    write_sums(GIVEN, [RESULT], {})
    read_result(GIVEN)


@fuzz(inputs.models())
def test_model_json(given):
    save_model(GIVEN, model_arrays(build_model("lenet5", 4, (1, 28, 28))), inputs.ABOUT)
    (GIVEN / "model.json").write_bytes(given)
    load_backbone(str(GIVEN))


@fuzz(inputs.archives())
def test_npz(given):
    file = GIVEN / "a.npz"
    file.write_bytes(given)
    read_npz(file)


# ---- places -------------------------------------------------------------------------------------


@fuzz(st.tuples(st.sampled_from(plugins.KINDS), inputs.place_texts(), inputs.allow_texts()))
def test_places(given):
    kind, text, allowed = given
    plugins.is_place(kind, text)
    plugins.hash_at(kind, text)
    plugins.without_folders(text)
    refused(lambda: Named.parse(text))
    refused(lambda: plugins.resolved(text, Path.cwd()))
    refused(lambda: plugins.find(kind, text))
    with mock.patch.dict(os.environ, {"COPREFL_ALLOW": allowed}):
        plugins.check_allowed(text)
