"""A start to hand on: a folder with the weights, their description, and a card for people and hubs.

The card is the file README.md: YAML metadata, as model hubs read it, and then Markdown.
"""

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy
from jinja2 import ChainableUndefined, Environment, PackageLoader
from torch import nn

from coprefl_flwr.errors import check_name
from coprefl_flwr.files import SUMS, expanded, read_json, replace_files, sha256_of, write_atomically
from coprefl_flwr.models import load_saved_model, model_arrays, save_model
from coprefl_flwr.models.adapters import FILES, save_adapters
from coprefl_flwr.models.base import base_hash
from coprefl_flwr.models.build import MODELS
from coprefl_flwr.models.weights import ABOUT, WEIGHTS
from coprefl_flwr.report import columns
from coprefl_flwr.report.answer import CONFIDENCE, value_text
from coprefl_flwr.report.formats import escaped, markdown
from coprefl_flwr.report.starts_result import StartsResult
from coprefl_flwr.report.statistics import summarise
from coprefl_flwr.report.tables import shown, simple
from coprefl_flwr.studies.architecture import checked_network
from coprefl_flwr.studies.provenance import versions
from coprefl_flwr.studies.store import CARD


def save_start(
    start: nn.Module | str | Path,
    folder: str | Path,
    *,
    name: str = "",
    license: str = "",  # noqa: A002  The word of the hubs.
    data: str = "",
    data_license: str = "",
    datasets: Sequence[str] = (),
    method: str = "",
    network: str = "",
    not_for: str = "",
    result: StartsResult | None = None,
) -> Path:
    """Write a start into a folder to hand on, with its card; return the folder.

    The folder gets `model.safetensors`, `model.json`, the card `README.md`, and `SHA256SUMS`, by
    which `load_start` refuses other weights. What is not stated is "not stated" on the card, except
    what the folder of a pre-training has: classes, options of the method, and its costs.

    Parameters
    ----------
    start : nn.Module, or path of a folder
        A network with its weights, or the folder of a pre-training: `checkpoint` of `pretrain`, or
        that of a recipe or of `flwr run`.
    folder : path of a folder
        Where to write: a new or empty folder, or that of an earlier call.
    name : str
        Name of the start, which is its row in `result`. Default: the name of the pre-training.
    license : str
        Licence of the weights, by its name on model hubs, such as "apache-2.0".
    data : str
        What the data are, and whose.
    data_license : str
        Licence of the data.
    datasets : sequence of str
        Names of the data on the Hugging Face Hub.
    method : str
        How the weights were trained.
    network : str
        Python code that makes the network as `model`, without this package.
    not_for : str
        What the start must not be used for.
    result : StartsResult, optional
        What `evaluate_starts` measured, for the card's table.

    Raises
    ------
    SettingsError
        If the folder has files of other programs, if `start` is no folder with a complete model, or
        if `result` has no row `name`.
    """
    files = _files_of(start)
    about, results = json.loads(files[ABOUT]), ""
    about["start"] = name or about.get("start", "")
    if result is not None:
        check_name("row", about["start"], result.outcome.starts, "result")
        results = _results(result)
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    of_data = {"data": data, "data_license": data_license, "datasets": datasets}
    of_use = {"license": license, "network": network, "not_for": not_for}
    text = card(about, sums[WEIGHTS], method=method, results=results, **of_data, **of_use)
    files[CARD] = text.encode()
    files[SUMS] = "".join(f"{sums[file]}  {file}\n" for file in sorted(sums)).encode()
    replace_files(expanded(folder), files, f"folder = {folder}")
    return expanded(folder)


def write_card(folder: Path) -> None:
    """Write the card of a saved start into its folder, with nothing stated."""
    text = card(read_json(folder / ABOUT), sha256_of(folder / WEIGHTS))
    write_atomically(folder / CARD, text.encode())


def card(about: Mapping[str, Any], sha256: str, **stated: Any) -> str:
    """Return the card of weights with this checksum.

    `about` is the content of `model.json`, and `stated` are arguments of `save_start`, and the
    table `results` in Markdown.
    """
    cards = Environment(
        loader=PackageLoader(__package__, ""),
        undefined=ChainableUndefined,  # What is not known is "".
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    known = {"about": about, "sha256": sha256, "built_in": about.get("model") in MODELS}
    return cards.get_template("card.md").render(**known, **stated, escaped=escaped)


def _files_of(start: nn.Module | str | Path) -> dict[str, bytes]:
    """Return {name: content} of the weights of a start, and of their description."""
    if isinstance(start, str | Path):
        load_saved_model(start)  # It is complete, and has its checksums.
        paths = [expanded(start) / name for name in (WEIGHTS, ABOUT, *FILES)]
        return {path.name: path.read_bytes() for path in paths if path.is_file()}
    network = checked_network("start", start, "Net() or 'folder'")
    arrays, base = model_arrays(network), base_hash(network)
    of_base = {"base": {"hash": base, "network": type(network).__name__}} if base else {}
    with tempfile.TemporaryDirectory() as place:
        save_model(place, arrays, {"versions": versions(), **of_base})
        save_adapters(Path(place), network, arrays)
        return _files_of(place)


def _results(result: StartsResult) -> str:
    """Return a table in Markdown: a row per start, its means over tasks with intervals."""
    outcome = result.outcome
    first, cells = outcome.starts[0], {}
    values: Any = outcome.values()
    for metric in columns.of_measure(["accuracy", "worst-10%"], outcome.measure.metric):
        heading, of_first = columns.column(metric, outcome.headings), values.loc[first, metric]
        places = heading.places(values[metric])
        of_starts = [values.loc[start, metric] for start in outcome.starts]
        cells[heading.title] = [_interval(of_start, places) for of_start in of_starts]
        gains = [_interval(of_start - of_first, places) for of_start in of_starts[1:]]
        cells[f"{heading.title}, minus {first}"] = ["", *gains]
    settings = result.about.get("settings", {})
    how = ", ".join(f"{key} = {value_text(value)}" for key, value in settings.items())
    return markdown(simple("", "Start", cells, outcome.starts)) + f"\n`{how}`\n"


def _interval(values: Any, places: int) -> str:
    """Return "mean ± half" of the confidence interval of a mean, by the t distribution."""
    mean, std, n = summarise(values)
    half = scipy.special.stdtrit(n - 1, (1 + CONFIDENCE) / 2) * std / math.sqrt(n)
    return shown(mean, half, places)
