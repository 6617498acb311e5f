"""A stage's result on disk: written in one step; if damaged, found before use and made again."""

import functools
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import remove_checkpoint
from coprefl_flwr.files import SUMS, damaged, read_json, write_atomically, write_sums
from coprefl_flwr.report.frames import checked_round

logger = logging.getLogger("flwr.coprefl")

RESULT, CHECKPOINT, SECONDS = "result.json", "checkpoint.safetensors", "seconds.json"
ABOUT, MADE_OF = "model.json", "made-of.json"


def write_result(
    folder: Path, rows: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]]
) -> None:
    """Write a stage's result, in one step; a number that is not finite becomes null."""
    content = {"rows": list(map(_finite, rows)), "rounds": list(map(_finite, rounds))}
    text = json.dumps(content, indent=1, allow_nan=False).encode()
    # Before the result, which says that all is there.
    write_sums(folder, _left(folder), {RESULT: text})
    write_atomically(folder / RESULT, text)


def _left(folder: Path) -> list[str]:
    """Return the arrays that a stage left: not what says when, where and how they were made."""
    return [one.name for one in folder.glob("*.safetensors") if one.name != CHECKPOINT]


def _finite(record: Mapping[str, Any]) -> dict[str, Any]:
    infinite = [k for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)]
    return {**record, **dict.fromkeys(infinite)}


def read_result(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return {"rows", "rounds"} of a stage that is done.

    Raises a SettingsError if the result is not there, or damaged.
    """
    found = read_json(folder / RESULT)
    lists = [found.get(key) for key in ("rows", "rounds")] if isinstance(found, dict) else [None]
    if not all(isinstance(one, list) and all(isinstance(r, dict) for r in one) for one in lists):
        raise SettingsError(f"{folder / RESULT} is damaged: it has no rows and rounds")
    try:
        for row in found["rounds"]:
            checked_round(row)
    except SettingsError as error:
        raise SettingsError(f"{folder / RESULT} is damaged: {error}") from error
    if damaged(folder, RESULT, needed=RESULT):
        raise SettingsError(f"{folder / RESULT} is damaged: {SUMS} next to it does not fit")
    return {key: found[key] for key in ("rows", "rounds")}


def read_about(folder: Path, **kinds: type) -> dict[str, Any]:
    """Return how what is in a folder was made, with these keys (with underscores) of these types.

    Raises a SettingsError if the file is not there, or damaged.
    """
    found = read_json(folder / ABOUT)
    keys = {name.replace("_", "-"): kind for name, kind in kinds.items()}
    whole = isinstance(found, dict)
    wrong = [key for key, kind in keys.items() if not (whole and isinstance(found.get(key), kind))]
    if wrong or not whole:
        problem = f"{folder / ABOUT} is damaged: it has no {wrong[0] if wrong else 'keys'}"
        raise SettingsError(f"{problem}; remove {RESULT} next to it, and it is made again")
    return dict(found)


def is_done(folder: Path) -> bool:
    """Return whether a stage's result is there, and whole; of one that is not, a line is logged."""
    if not (folder / RESULT).exists():
        return False
    try:
        read_result(folder)
    except SettingsError as error:
        _warn_once(f"{error}; it is left out until the same command is run again")
        return False
    return True


@functools.lru_cache(maxsize=256)
def _warn_once(line: str) -> None:
    logger.warning("%s", line)


def put_aside_damaged(folder: Path) -> None:
    """Rename what is damaged of a stage that was done, so that it is made again."""
    if not (folder / RESULT).exists():
        return
    wrong = damaged(folder, needed=RESULT)
    try:
        read_result(folder)
    except SettingsError:
        wrong = [RESULT, *wrong]
    if not wrong:
        return
    logger.warning(
        "%s: damaged: %s; put aside as NAME.damaged, and made again",
        folder,
        ", ".join(dict.fromkeys(wrong)),
    )
    # One that a kill left is of the last round: it would leave no round that writes the result.
    remove_checkpoint(folder / CHECKPOINT)
    for name in {RESULT, SUMS, *wrong}:  # Without a result it is not done.
        if (folder / name).exists():
            os.replace(folder / name, folder / f"{name}.damaged")
