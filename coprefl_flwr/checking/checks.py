"""The checks of a method, one after the other, each a line that is shown once it is known."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coprefl_flwr.checking import options, small_study
from coprefl_flwr.checking.comparing import flat, furthest, other
from coprefl_flwr.checking.lines import Line, failed, held, judged, skipped, told
from coprefl_flwr.checking.networks import TIED
from coprefl_flwr.checking.running import Job, Outcome, outcome
from coprefl_flwr.checking.watching import Call, Fault
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import HEAD, PERSONALISED, Method
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.study import Study

ROUNDING = 1e-5
"""How far two runs may be apart that add the same numbers up in another order."""

NODES = (2, 4)


@dataclass(frozen=True)
class Case:
    """A method in a role, in a folder of its own; the first run is what others must equal."""

    method: Method
    place: str
    role: str
    data: Path
    folder: Path
    registered: bytes = b""

    def job(self, name: str) -> Job:
        """Return a run into the folder of this name."""
        folder = self.folder / name / small_study.RUN_NAME
        return Job(self.place, self.role, self.data, folder, registered=self.registered)

    @functools.cached_property
    def whole(self) -> Outcome:
        """The run on one node that nothing disturbs."""
        return outcome(self.job("whole"))

    def study(self, written: str = "", name: str = "built") -> Study:
        """Return the study with its defaults, or with the options `key=value`."""
        place = self.method.name + (f":{written}" if written else "")
        settings = small_study.settings_of(place, self.role, self.data, self.folder / name)
        return build(settings)


def check_options(case: Case) -> Line:
    """Check that options are declared, and refuse what they must before any work."""
    check = functools.partial(judged, "options", case.role)
    try:
        made: RoundStrategy = case.study().stages[-1].strategy()
    except SettingsError as error:
        return check([f"its defaults are refused: {error}"], "give others", "")
    found = list(options.faults(case.method, made, case.study))
    if (case.folder / "built").exists():
        found.append("a study that was only built has written files")
    count = len(case.method.options)
    what = "each refuses a wrong type and what is beyond its limits" if count else "none of its own"
    return check(found, "see coprefl_flwr.options", f"{count} declared; {what}")


def role_lines(case: Case) -> Iterator[Line]:
    """Yield the lines of the checks that are made in every role."""
    first = case.whole
    yield _runs(case, first)
    checks = (hosting, unchanged, dtypes, buffers, tied, failures, resumed, costs)
    for check in checks:
        if first.error:
            yield skipped(check.__name__, case.role, "it does not run")
        else:
            yield check(case, first)


def _runs(case: Case, first: Outcome) -> Line:
    check = functools.partial(judged, "runs", case.role)
    if first.error:
        return check([first.error], "every other check needs a run", "")
    found = list(first.left_out)
    if first.unread:
        found.append("its clients write a state that no exchange commits: set stateful=True")
    number = len(first.metrics)
    clients = len({call.client for call in first.seen.calls})
    return check(found, "all clients must answer", f"rounds: {number}, clients: {clients}")


def hosting(case: Case, first: Outcome) -> Line:
    """Check that arrays and figures are the same whichever node hosts whom."""
    worst = 0.0, ""
    for nodes in NODES:
        run = outcome(replace(case.job(f"on-{nodes}"), nodes=nodes))
        if run.error:
            return failed("hosting", case.role, f"on {nodes} nodes: {run.error}")
        worst = max(worst, furthest(flat(first), flat(run)))
    off = f"1, 2 and 4 nodes: arrays and figures are at most {worst[0]:.2g} apart"
    return judged(
        "hosting",
        case.role,
        [f"{off} ({worst[1]})"] if worst[0] > ROUNDING else [],
        "a result may depend on what a client holds, not on which others are on its node, how many "
        "nodes there are, or who worked before",
        off,
    )


def unchanged(case: Case, first: Outcome) -> Line:
    """Check that neither clients nor rounds change the arrays that they are given."""
    advice = "copy an array before you write into it"
    return judged("unchanged", case.role, first.seen.changed, advice, "what is sent stays as it is")


def dtypes(case: Case, first: Outcome) -> Line:
    """Check that names, shapes and dtypes come back as they were sent."""
    advice = "return arrays in the dtypes that were sent, array.astype(sent.dtype)"
    found = "names, shapes and dtypes are those that were sent"
    return judged("dtypes", case.role, first.seen.other, advice, found)


def buffers(case: Case, first: Outcome) -> Line:
    """Check that BatchNorm's statistics are the clients' means, weighted by samples."""
    if not first.seen.has_buffers:
        return skipped("buffers", case.role, "what travels has no BatchNorm")
    if first.seen.buffers and case.method.strategy_class.server_data:
        why = "the strategy computes on data itself, which may renew BatchNorm's statistics"
        return skipped("buffers", case.role, why)
    return judged(
        "buffers",
        case.role,
        [f"{name} is off by {off:.2g}" for name, off in first.seen.buffers.items()],
        "BatchNorm's statistics must be the mean of the clients', weighted by num-examples",
        "BatchNorm's statistics are the clients' means by samples",
    )


def tied(case: Case, first: Outcome) -> Line:
    """Check that a weight with two names is one weight after training too."""
    projects = case.method.strategy_class.network != "classifier"
    if case.role == PERSONALISED and projects:
        return skipped("tied", case.role, "its clients train a projection of ours")
    if not any(name.endswith(".weight") for name in first.arrays):
        return skipped("tied", case.role, "no weights travel")
    run = outcome(replace(case.job("tied"), network="tied"))
    if run.error:
        return failed("tied", case.role, f"on a network with a tied weight: {run.error}")
    one, two = (run.arrays[name] for name in TIED)
    if not np.array_equal(one, two):
        off = float(np.max(np.abs(one - two)))
        return failed(
            "tied",
            case.role,
            f"a weight with two names ends as two, {off:.2g} apart: a step that is found under "
            "the first name must be taken under every one",
        )
    if case.role != HEAD and np.array_equal(one, run.first[TIED[0]]):
        return failed("tied", case.role, "a weight with two names is never trained")
    return held("tied", case.role, "a weight with two names stays one")


def failures(case: Case, first: Outcome) -> Line:
    """Check that a client that fails after its work leaves what one does that fails before it."""
    chosen = _who_fails(first.seen.calls)
    if not chosen:
        return skipped("failures", case.role, "no client is asked")
    runs = [
        outcome(
            replace(
                case.job(f"fails-{late}"),
                faults=tuple(Fault(one.client, one.round, one.answer, late) for one in chosen),
            )
        )
        for late in (False, True)
    ]
    for run in runs:
        if run.error:
            return failed("failures", case.role, f"a client fails once: {run.error}")
    who = ", ".join(f"client {one.client} in {one.answer} of round {one.round}" for one in chosen)
    different = other(*runs)
    found = f"{who} fails after its work, and {different} from a run in which it never began"
    return judged(
        "failures",
        case.role,
        [found] if different else [],
        "keep a client's state by self.state.write alone, which counts once the round has ended",
        f"{who}: as if it had never begun",
    )


def _who_fails(calls: Sequence[Call]) -> list[Call]:
    """Return who is to fail: in each kind of answer one client, that takes part later too."""
    chosen: list[Call] = []
    for answer in dict.fromkeys(call.answer for call in calls if call.answer != "evaluate"):
        number = len(chosen) + 2
        able = [call for call in calls if call.answer == answer and call.round == number]
        able = able or [call for call in calls if call.answer == answer][:1]

        def rounds(one: Call) -> int:
            return len({call.round for call in calls if call.client == one.client})

        taken = [one.client for one in chosen]
        free = [call for call in able if call.client not in taken] or able
        chosen.append(max(free, key=rounds))
    return chosen


def resumed(case: Case, first: Outcome) -> Line:
    """Check that a killed run, resumed, ends with the bytes of one that was not."""
    if case.role == HEAD:
        return skipped("resumed", case.role, "its one round is made anew")
    killed_after = small_study.CHECKPOINT_EVERY + 1
    job = case.job("resumed")
    killed = outcome(replace(job, killed_after=killed_after))
    if not killed.killed:
        return failed("resumed", case.role, f"killed in round {killed_after}: {killed.error}")
    run = outcome(job)
    if run.error:
        return failed("resumed", case.role, f"killed and resumed: {run.error}")
    different = other(first, run)
    return judged(
        "resumed",
        case.role,
        [f"killed in round {killed_after} and resumed, {different}"] if different else [],
        "keep what rounds carry in self.state, and what clients carry by self.state.write",
        f"killed in round {killed_after}: the same bytes in the end",
    )


def costs(case: Case, first: Outcome) -> Line:
    """Say what a participant is sent and sends, evaluations left out."""
    cost = first.seen.cost
    if not cost.exchanges:
        return told("costs", case.role, "no exchange")
    word = "exchange" if cost.exchanges == 1 else "exchanges"
    chain = ", one client after the other" if cost.chained else ""
    return told(
        "costs",
        case.role,
        f"{cost.exchanges} {word} a round{chain}; a participant is sent {cost.arrays_down:g} "
        f"arrays ({_size(cost.bytes_down)}) and sends {cost.arrays_up:g} "
        f"({_size(cost.bytes_up)})",
    )


def _size(number: float) -> str:
    return f"{number / 1000:.1f} kB" if number >= 1000 else f"{number:g} B"
