"""Cases, what of them held, and a file of outcomes, after which a stopped run goes on."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

LONGEST = 300
"""Characters that are kept of why a case does not hold."""


@dataclass(frozen=True)
class Case:
    """`check` raises what does not hold; it returns how many it counts for, None for one."""

    name: str
    check: Callable[[], int | None]


class NotHeldError(AssertionError):
    """Of several inputs that a case stands for, those before this one held."""

    def __init__(self, why: str, count: int = 1, held: int = 0) -> None:
        super().__init__(why)
        self.count, self.held = count, held


@dataclass(frozen=True)
class Outcome:
    kind: str
    case: str
    count: int
    held: int
    why: str
    seconds: float


class Tally:
    """Outcomes by kind and case, each written to `file` at once; those that held stay."""

    def __init__(self, file: Path, tell: Callable[[str], None] = lambda line: None) -> None:
        self.file, self.tell = file, tell
        self.found: dict[tuple[str, str], Outcome] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                self._keep(Outcome(**json.loads(line)))

    def _keep(self, outcome: Outcome) -> None:
        self.found[outcome.kind, outcome.case] = outcome

    def run(self, kind: str, cases: Iterable[Case], enough: int) -> None:
        """Run cases until those of this kind count for `enough`, or there are no more."""
        counted = 0
        for case in cases:
            if counted >= enough:
                break
            known = self.found.get((kind, case.name))
            if known is None or known.why:
                known = self._of(kind, case)
                self._keep(known)
                with self.file.open("a") as file:
                    file.write(json.dumps(vars(known)) + "\n")
                if known.why:
                    self.tell(f"{kind}: {case.name}: DOES NOT HOLD: {known.why}")
            counted += known.count
            self.tell(f"{kind}: {counted} of {enough}")

    def _of(self, kind: str, case: Case) -> Outcome:
        begun = time.monotonic()
        count = held = 1
        why = ""
        try:
            returned = case.check()
            count = held = 1 if returned is None else returned
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            text = " ".join(str(error).split())
            why = f"{type(error).__name__}: {text}"[:LONGEST]
            count, held = getattr(error, "count", 1), getattr(error, "held", 0)
        return Outcome(kind, case.name, count, held, why, round(time.monotonic() - begun, 3))

    def exceptions(self) -> list[Outcome]:
        return [one for one in self.found.values() if one.why]

    def table(self) -> str:
        """Return a line a kind, then each case that does not hold and why."""
        lines = [f"{'kind':<12}{'cases':>8}{'held':>8}{'seconds':>10}"]
        for kind in dict.fromkeys(kind for kind, _ in self.found):
            of = [one for one in self.found.values() if one.kind == kind]
            counts = sum(one.count for one in of), sum(one.held for one in of)
            seconds = sum(one.seconds for one in of)
            lines.append(f"{kind:<12}{counts[0]:>8}{counts[1]:>8}{seconds:>10.0f}")
        lines += [f"{one.kind}: {one.case}: {one.why}" for one in self.exceptions()]
        return "\n".join(lines)
