"""A personalised study: methods that give every client a model of its own, over frozen features.

Its folder, OUTPUT-DIR/RUN-NAME:

    settings.yaml                          the settings as used
    features/CLIENT-{train,test}.npy       while the study runs: what the backbones made of images
    methods/METHOD/result.json             rows per client, metrics per round, numbers sent
    methods/METHOD/global.safetensors      the global arrays: a model, a body, prototypes
    methods/fedpcl/local.safetensors       every client's padded prototypes, by client
    methods/METHOD/client-state/           what the clients keep: their heads and models
    methods/METHOD/checkpoint.safetensors  while the method runs
    rows.jsonl, rounds.jsonl, summary.md   all of these, and the comparison

A method is done when its result is there: a run that was interrupted goes on with the first that is
not. `python -m coprefl_flwr.studies.personalised FOLDER FOLDER ...` prints the comparison over
several runs, of other seeds.
"""

import json
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import yaml
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from coprefl_flwr.arrays import Arrays, to_record
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.report import tables
from coprefl_flwr.report.personal_tables import Run, comparison
from coprefl_flwr.rounds.strategy import Hook
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.personal_data import domain_of, images, num_clients
from coprefl_flwr.studies.personal_methods import initial_arrays, personal_phases, strategy
from coprefl_flwr.studies.progress import PERSONAL_KIND, Progress, quiet_flower
from coprefl_flwr.studies.runs import client_rows, write_lines
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.starts import Phase, folder_of
from coprefl_flwr.studies.study import make_folder, show, with_run_name

RESULT, GLOBAL, LOCAL = "result.json", "global.safetensors", "local.safetensors"

logger = logging.getLogger("flwr.coprefl")


@dataclass(frozen=True)
class PersonalStudy:
    """A checked study, ready to run."""

    settings: Settings
    methods: dict[str, Phase]
    folder: Path

    def folder_of(self, name: str) -> Path:
        """Return the folder of an entry of `method`."""
        return self.folder / "methods" / folder_of(name)


def run_personalised(grid: Grid, settings: Settings) -> Path:
    """Run the study and return its folder.

    Raises
    ------
    SettingsError
        Before any work, if something set cannot be used.
    RunFailedError
        If the clients failed a round too often; what was finished stays, and can be resumed.
    """
    study = prepare(settings)
    logger.info("results go to %s", study.folder)
    with quiet_flower():
        rounds = sum(method.settings.rounds for method in study.methods.values())
        progress = Progress(len(study.methods), {PERSONAL_KIND: rounds})
        features = study.folder / "features"
        for name, method in study.methods.items():
            run_method(method, name, grid, study.folder_of(name), features, progress)
    shutil.rmtree(features, ignore_errors=True)
    write_results(study)
    return study.folder


def prepare(settings: Settings) -> PersonalStudy:
    """Check everything the study needs and make its folder; nothing is written before that."""
    settings = with_run_name(settings)
    methods = check(settings)
    return PersonalStudy(settings, methods, make_folder(settings))


def check(settings: Settings) -> dict[str, Phase]:
    """Return the methods by entry, or raise a SettingsError; nothing is written."""
    methods = personal_phases(settings)
    images(settings)
    for method in methods.values():
        initial_arrays(method)
    return methods


def run_method(
    method: Phase,
    name: str,
    grid: Grid,
    folder: Path,
    features: Path,
    progress: Progress,
    hooks: Sequence[Hook] = (),
) -> None:
    """Run a method and write its result into its folder, unless that is done.

    Parameters
    ----------
    name : str
        The method as it was written, with its options.
    features : Path
        The folder that keeps features from run to run.
    """
    settings = method.settings
    result, checkpoint = folder / RESULT, folder / "checkpoint.safetensors"
    if result.exists():
        checkpoint.unlink(missing_ok=True)
        progress.skip(name, PERSONAL_KIND, settings.rounds)
        return
    progress.begin(name, PERSONAL_KIND, settings.rounds)
    one = strategy(method)
    resume = checkpoint.exists()
    if not resume:
        shutil.rmtree(folder / "client-state", ignore_errors=True)

    def keep(report: RoundReport) -> None:
        """Write the result before the last checkpoint, which has no evaluation to resume with."""
        if report.round < report.num_rounds:
            return
        clients = num_clients(settings)
        rows = client_rows(name, 0, report.evaluation, clients)
        domains = [domain_of(settings, client).name for client in range(clients)]
        history = one.history.rounds().items()
        rounds = [{"method": name, "round": number, **metrics} for number, metrics in history]
        for file, arrays in ((GLOBAL, report.arrays), (LOCAL, one.kept_arrays("local", {}))):
            if arrays:
                plain = {number: np.asarray(a, order="C") for number, a in arrays.items()}
                write_atomically(folder / file, safetensors.numpy.save(plain))
        content = {"rows": rows, "rounds": rounds, "domains": domains}
        content |= numbers_sent(report.arrays)
        write_atomically(result, json.dumps(content, indent=1).encode())

    def folders() -> ConfigRecord:
        """Return what tells a client its method, and where its state and its features are."""
        state = str(folder / "client-state")
        return ConfigRecord({"method": name, "state-dir": state, "feature-dir": str(features)})

    one.start(
        grid,
        to_record(initial_arrays(method)),
        settings.rounds,
        settings.timeout,
        folders(),
        folders(),
        checkpoint=checkpoint,
        checkpoint_every=settings.checkpoint_every,
        resume=resume,
        hooks=[progress, keep, *hooks],
    )
    checkpoint.unlink()


def numbers_sent(arrays: Arrays) -> dict[str, int]:
    """Return how many numbers a client sends in a round: weights alone, and all of them.

    The paper's "# of Comm Params" (Table 2) leaves out biases and BatchNorm.
    """
    return {
        "weights-sent": sum(array.size for array in arrays.values() if array.ndim > 1),
        "numbers-sent": sum(array.size for array in arrays.values()),
    }


def write_results(study: PersonalStudy) -> None:
    """Gather the methods' files into rows, rounds and the comparison; log it."""
    rows: list[tables.ClientRow] = []
    rounds: list[dict[str, Any]] = []
    for name in study.methods:
        part = json.loads((study.folder_of(name) / RESULT).read_text())
        rows += part["rows"]
        rounds += part["rounds"]
    tables.write_rows(study.folder / "rows.jsonl", rows)
    write_lines(study.folder / "rounds.jsonl", rounds)
    table = comparison([read_run(study.folder)])
    write_atomically(study.folder / "summary.md", table.encode())
    show(table)
    logger.info("")
    logger.info("rows, rounds, the table and the clients' models are in %s", study.folder)


def read_run(folder: Path) -> Run:
    """Return what the methods of a finished run came to; SettingsError where it is none."""
    if not (folder / "rows.jsonl").is_file():
        raise SettingsError(f"{folder} holds no finished run: it has no rows.jsonl")
    settings = Settings.from_config(yaml.safe_load((folder / "settings.yaml").read_text()))
    results = {}
    for name in personal_phases(settings):
        file = folder / "methods" / folder_of(name) / RESULT
        results[name] = json.loads(file.read_text())
    (first, *_) = results.values()
    return Run(tuple(first["domains"]), results)


def main(folders: Sequence[str]) -> None:
    """Print the comparison over several runs."""
    print(comparison([read_run(Path(folder)) for folder in folders]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingsError as error:
        sys.exit(str(error))
