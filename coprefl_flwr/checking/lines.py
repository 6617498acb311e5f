"""What a check found, as a line."""

from collections.abc import Callable
from dataclasses import dataclass

OK, FAILS, SKIPPED, TOLD = "ok", "FAILS", "skipped", "-"

Write = Callable[[str], object]
"""Takes a line of the output."""


@dataclass(frozen=True)
class Line:
    """A check of a method in a role: whether it holds, and the figure or the reason."""

    check: str
    role: str
    status: str
    why: str = ""

    def __str__(self) -> str:
        return f"  {self.check:<10} {self.status:<8} {self.why}".rstrip()


def held(check: str, role: str, why: str = "") -> Line:
    """Return the line of a check that holds."""
    return Line(check, role, OK, why)


def failed(check: str, role: str, why: str) -> Line:
    """Return the line of a check that fails."""
    return Line(check, role, FAILS, why)


def skipped(check: str, role: str, why: str) -> Line:
    """Return the line of a check that cannot be made."""
    return Line(check, role, SKIPPED, why)


def told(check: str, role: str, why: str) -> Line:
    """Return a line that says something, and checks nothing."""
    return Line(check, role, TOLD, why)


def judged(check: str, role: str, faults: list[str], advice: str, otherwise: str) -> Line:
    """Return a failed line with the faults and what to do about them, or one that says it holds."""
    if not faults:
        return held(check, role, otherwise)
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    return failed(check, role, f"{'; '.join(faults[:3])}{more}: {advice}")
