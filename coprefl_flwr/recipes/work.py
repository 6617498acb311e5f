"""What is left of a recipe's runs, stage by stage, and on how many workers each is made.

First what comes first in each run, then the tasks and the like of the starting models that are
there. Where fewer stages are ready than workers are free, each gets several.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.sweep import Failures
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import Store


@dataclass(frozen=True)
class Piece:
    """A stage to be made, without its study, which holds data."""

    run: Run
    key: str
    title: str
    kind: str
    rounds: int
    switch: int
    at_once: int
    tries: int = 1

    @classmethod
    def of(cls, run: Run, stage: Stage, mark: str) -> "Piece":
        """Return a stage of a run, whose title ends with a mark."""
        at_once = stage.at_once() if stage.rounds else 1
        about = stage.key, stage.title + mark, stage.kind, stage.rounds, stage.switch
        return cls(run, *about, at_once)


class Work:
    """The stages of runs that are not there yet, each once; `failed` are the runs that failed."""

    def __init__(self, runs: Sequence[Run], store: Store) -> None:
        self.failed: Failures = {}
        self._ready: deque[Piece] = deque()
        self._waiting: dict[str, list[Piece]] = {}
        self.pieces: dict[str, Piece] = {}
        several = len({run.settings.seed for run in runs}) > 1
        for run in runs:
            # Side by side runs of two seeds are not told apart by their order.
            mark = f", seed {run.settings.seed}" if several else ""
            first, *_ = stages = run.study.stages
            for stage in stages:
                store.settle(stage)
            for stage in stages:
                if stage.key not in self.pieces and not store.has(stage):
                    self._add(Piece.of(run, stage, mark), first)

    def _add(self, piece: Piece, first: Stage) -> None:
        if first.key in self.pieces:
            self._waiting.setdefault(first.key, []).append(piece)
        else:
            self._ready.append(piece)
        self.pieces[piece.key] = piece

    @property
    def participations(self) -> int:
        """An upper bound of the rounds of a client that are left, in all."""
        return sum(piece.rounds * piece.at_once for piece in self.pieces.values())

    @property
    def left(self) -> bool:
        """Whether there is a stage that nobody makes yet, and that can be made."""
        return bool(self._ready)

    def take(self, free: int) -> tuple[Piece, int] | None:
        """Return the next stage, and how many free workers it gets; None if there is none."""
        if not (free and self._ready):
            return None
        share = -(-free // len(self._ready))
        piece = self._ready.popleft()
        return piece, min(share, piece.at_once)

    def put_back(self, piece: Piece) -> None:
        """Let a stage be the next again."""
        self._ready.appendleft(piece)

    def end(self, piece: Piece, problem: str = "") -> bool:
        """Take note of the end of a stage: what waited for it is ready, or is not made.

        Returns whether it is the first of its run that failed.
        """
        key, behind = piece.run.key, self._waiting.pop(piece.key, [])
        if not problem:
            self._ready.extend(behind)
            return False
        # Runs of one start have one key, but tasks of their own.
        self._ready = deque(one for one in self._ready if one.run != piece.run)
        first = key not in self.failed
        self.failed.setdefault(key, problem)
        return first
