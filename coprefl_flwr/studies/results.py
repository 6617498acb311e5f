"""What a study came to: the rows and rounds of its stages, as files, tables and figures.

`python -m coprefl_flwr.studies.results FOLDER FOLDER ...` prints the comparison of several
runs of a personalised study, of other seeds.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.methods import PERSONALISED
from coprefl_flwr.report import figures, results
from coprefl_flwr.report.columns import SENT, STEP_SIZE
from coprefl_flwr.report.forms import markdown, plain
from coprefl_flwr.report.learnt import CHAINED
from coprefl_flwr.report.personal import PersonalRun, personal_tables
from coprefl_flwr.report.starts import pretraining_summary, pretraining_table, summary_table
from coprefl_flwr.report.table import Table
from coprefl_flwr.studies.budgets import cost
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Store, read_result
from coprefl_flwr.studies.study import Study
from coprefl_flwr.studies.told import told

logger = logging.getLogger("flwr.coprefl")


def gather(study: Study, store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (a row per client, a row per round) of all stages, those of a start together."""
    starts = list(dict.fromkeys(stage.start for stage in study.stages))
    stages = sorted(study.stages, key=lambda stage: starts.index(stage.start))
    found = [read_result(store.folder(stage)) for stage in stages]
    rows = [row for result in found for row in result["rows"]]
    rounds = [row for result in found for row in result["rounds"]]
    return results.frame(rows), results.frame(rounds)


def write_results(study: Study, store: Store, folder: Path) -> None:
    """Write rows, rounds, tables and figures of a finished study; log the tables."""
    rows, rounds = gather(study, store)
    results.write_rounds(folder / "rounds.jsonl", rounds)
    if not rows.empty:
        results.write_rows(folder / "rows.jsonl", rows)
    troubles = told(study, store)
    if study.config["study"] == PERSONALISED:
        _write(folder / "summary.md", personal_tables([read_personal(folder)]))
    else:
        _write_starts(study, folder, rows, rounds, troubles)
    logger.info("")
    logger.info("models, rows, tables and figures are in %s", folder)


def _write_starts(
    study: Study,
    folder: Path,
    rows: pd.DataFrame,
    rounds: pd.DataFrame,
    troubles: Mapping[str, str],
) -> None:
    made = {stage.start: stage for stage in study.stages if isinstance(stage, Pretraining)}
    if not rounds.empty:
        of = zip(rounds["phase"], rounds["start"], rounds["round"], strict=True)
        chained = [phase == "pretraining" and made[start].chained(at) for phase, start, at in of]
        drawn = figures.learning_figure(rounds.assign(**{CHAINED: chained}))
        figures.save(drawn, folder / "learning_curves.png")
    entries = pretraining_summary(rounds)
    if not entries.empty:
        run = zip(entries["start"], entries["rounds"], strict=True)
        found = [cost(made[str(start)], int(rounds)) for start, rounds in run]
        entries[STEP_SIZE] = [one.step_size for one in found]
        entries["gradients"] = [one.gradients / 1e6 for one in found]
        _write(folder / "pretraining.md", [pretraining_table(entries, troubles)])
    if not rows.empty:
        results.write_csv(folder / "summary.csv", results.summary(rows))
        figures.save(figures.accuracy_figure(rows), folder / "client_accuracies.png")
        _write(folder / "summary.md", [summary_table(rows, troubles)])


def _write(path: Path, tables: Sequence[Table]) -> None:
    """Write tables in Markdown, and log them as text after an empty line."""
    write_atomically(path, markdown(*tables).encode())
    for table in tables:
        for line in ["", *plain(table).splitlines()]:
            logger.info("%s", line)


def read_personal(folder: Path) -> PersonalRun:
    """Return what the methods of a finished run came to; SettingsError where it is none."""
    if not (folder / "rows.jsonl").is_file():
        raise SettingsError(f"{folder} holds no finished run: it has no rows.jsonl")
    rounds = results.read_rounds(folder / "rounds.jsonl")
    last = rounds.groupby("start", sort=False)[list(SENT)].last()
    sent = {str(start): {key: int(row[key]) for key in SENT} for start, row in last.iterrows()}
    return results.read_rows(folder / "rows.jsonl"), sent


def main(folders: Sequence[str]) -> None:
    """Print the comparison over several runs."""
    print(markdown(*personal_tables([read_personal(Path(folder)) for folder in folders])))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingsError as error:
        sys.exit(str(error))
