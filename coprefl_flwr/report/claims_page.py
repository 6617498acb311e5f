"""The page of verdicts on the papers' claims, in Markdown."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Printed
from coprefl_flwr.report.forms import bars, escaped
from coprefl_flwr.report.table import shown
from coprefl_flwr.report.verdicts import (
    ERROR,
    FAILS,
    HOLDS,
    MARGIN,
    MIN_SEEDS,
    OPEN,
    Question,
    Verdict,
    judge,
)

NOT_MEASURED = "not measured"
_HEAD = ("Claim", "In the paper", "Protocol", "Ours", "Verdict", "Cause")
_WIDTH = 100


@dataclass(frozen=True, eq=False)
class Row:
    """A claim under one protocol, or one that nothing was measured of."""

    claim: str
    source: str  # where the paper says so: "CoPreFL, AAAI text, Table 1(a)"
    printed: Printed  # its figures "of" and "against"
    protocol: str  # "" where nothing was measured
    setting: str  # the compared settings of both rows, "participants=30"; "" for none
    sides: Sequence[str]  # what the two rows are called; none where nothing is to be measured
    question: Question | None  # None where nothing was measured
    cause: str
    needs: str = ""  # of what was not measured: what it would need

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.source.partition(",")[0]


@dataclass(frozen=True)
class Section:
    """A recipe's claims."""

    title: str
    note: str  # what it is, and what was reduced
    protocols: Mapping[str, str]  # each with its reason
    commands: Sequence[str]  # one for each protocol
    rows: Sequence[Row]


@dataclass(frozen=True)
class Page:
    """All recipes' claims, judged together."""

    sections: Sequence[Section]
    command: str  # that makes the page
    figures: Mapping[str, str]  # file beside the page: what it shows

    def verdicts(self) -> dict[Row, Verdict]:
        """Return the verdict of each row that was measured."""
        asked = {row: row.question for one in self.sections for row in one.rows if row.question}
        return dict(zip(asked, judge(list(asked.values())), strict=True))

    def text(self) -> str:
        """Return the page."""
        judged = self.verdicts()
        papers = dict.fromkeys(row.paper for one in self.sections for row in one.rows)
        parts = [_introduction(self.command, judged), _counts(self.sections, judged, papers)]
        parts += [f"![{escaped(what)}]({file})\n" for file, what in self.figures.items()]
        for paper in papers:
            parts.append(f"## {escaped(paper)}\n")
            parts += [_section(one, paper, judged) for one in self.sections]
        return "\n".join(part for part in parts if part)


def _introduction(command: str, judged: Mapping[Row, Verdict]) -> str:
    tested = sum(one.low < one.high for one in judged.values())
    kinds = (
        f"- **{HOLDS}**: the corrected interval of the difference lies wholly on the claimed side "
        "of 0; of a claim that two rows are equal, wholly within the margin. The margin is "
        f"{MARGIN} points for metrics in percent, and none for others unless the claim sets one.",
        f"- **{FAILS}**: it lies wholly on the other side, or wholly within the margin: too small "
        "a difference to matter.",
        f"- **{OPEN}**: neither. What would decide it stands beside it. With fewer than "
        f"{MIN_SEEDS} seeds, or where seeds do not differ, there is no interval and no verdict.",
    )
    paragraphs = [
        "Each claim of the papers that a recipe looks into is a row, once for each protocol that "
        "it was run with. A protocol says which of the paper's numbers were kept, and why. What "
        "was reduced stands above each table: a verdict is about that setting, and about nothing "
        "larger.",
        "The unit is the pre-training seed. The tasks from one pre-training share a model, so "
        "their mean is one value. The two rows of a claim have the same seeds and the same tasks: "
        "the difference is taken seed by seed, first row less second.",
        f"Intervals are corrected over all {tested} rows of this page that can be tested (Holm's "
        "step-down over the p-values of paired t-tests; each interval is the t interval at the "
        f"level of its step). Where nothing differs, {100 * ERROR:g} % of such pages say of some "
        "row that it differs.",
        "Each interval is corrected by itself, and they are not simultaneous: it is not claimed "
        f"that on {100 * (1 - ERROR):g} % of such pages all of them hold the true differences. "
        "Holm's order is that of tests against a difference of 0. Verdicts by the margin (that two "
        "rows are equal, or differ too little to matter) are read off the same intervals, outside "
        f"of that order: the {100 * ERROR:g} % do not cover them.",
    ]
    text = [_wrapped(one) for one in paragraphs]
    return "\n".join([
        "# The papers' claims, measured", "", f"<!-- Made by `{command}`; not to be edited. -->",
        "", *text, "A verdict:", "", *("\n".join(_lines(one, "  ")) for one in kinds), "",
    ])  # fmt: skip


def _counts(
    sections: Sequence[Section], judged: Mapping[Row, Verdict], papers: Iterable[str]
) -> str:
    """Return how many rows of each paper have which verdict."""
    words = (HOLDS, FAILS, OPEN, NOT_MEASURED)
    found = {paper: dict.fromkeys(words, 0) for paper in papers}
    for row in [row for one in sections for row in one.rows]:
        found[row.paper][judged[row].word if row in judged else NOT_MEASURED] += 1
    total = {word: sum(of[word] for of in found.values()) for word in words}
    lines = [(name, *map(str, of.values())) for name, of in {**found, "all": total}.items()]
    head = [bars(["Paper", *words]), "|:--|" + "--:|" * len(words)]
    return "\n".join([*head, *(bars(map(escaped, line)) for line in lines), ""])


def _section(section: Section, paper: str, judged: Mapping[Row, Verdict]) -> str:
    """Return a recipe's table of one paper's claims; "" if it has none."""
    rows = [row for row in section.rows if row.paper == paper]
    if not rows:
        return ""
    text = [f"### {escaped(section.title)}", ""]
    text += [_wrapped(escaped(section.note))] if section.note else []
    for name, because in section.protocols.items():
        text += _lines(f"- `{name}`: {escaped(because)}", "  ")
    text += [""] if section.protocols else []
    text += ["```sh", *section.commands, "```", "", bars(_HEAD), "|:--" * len(_HEAD) + "|"]
    before = ("", "")
    for row in rows:
        # A claim is written once, above its protocols.
        told = [row.claim, _printed(row)] if (row.claim, row.source) != before else ["", ""]
        under = "\n".join(filter(None, [row.protocol, row.setting]))
        text.append(bars(map(_cell, [*told, under, *_found(row, judged.get(row))])))
        before = (row.claim, row.source)
    return "\n".join([*text, ""])


def _printed(row: Row) -> str:
    """Return where the paper has a claim, and the figures there."""
    figures = [
        _figure(mean) + (f" ± {_figure(std)}" if std else "") for mean, std in row.printed.values()
    ]
    place = row.source.partition(",")[2].strip() or row.source
    return f"{place}\n{' against '.join(figures)}" if figures else place


def _figure(value: float) -> str:
    """Return a printed figure: the papers have two decimals, and none of what is counted."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _found(row: Row, verdict: Verdict | None) -> list[str]:
    """Return what was measured, the verdict, and its cause or what it would need."""
    needs = verdict.needs if verdict else row.needs
    why = [row.cause, f"Would need: {needs}." if needs else ""]
    word = verdict.word if verdict else OPEN
    ours = _ours(row, row.question, verdict) if verdict and row.question else ""
    return [ours, f"**{word}**" if word != OPEN else word, "\n".join(filter(None, why))]


def _ours(row: Row, question: Question, verdict: Verdict) -> str:
    """Return the difference with its corrected interval, and both rows' means over seeds."""
    heading = column(question.metric)
    means = [
        f"{name} {shown(sum(values) / len(values), f',.{heading.decimals}f')}"
        for name, values in zip(row.sides, (question.of, question.against), strict=True)
    ]
    seeds = f"{verdict.seeds} seed{'s' * (verdict.seeds != 1)}"
    spec = f"+,.{heading.decimals}f"
    between = (
        f" [{verdict.low:{spec}}, {verdict.high:{spec}}]" if verdict.low < verdict.high else ""
    )
    difference = f": {verdict.mean:{spec}}{between}" if verdict.mean == verdict.mean else ""
    return f"{heading.title}{difference}\n{', '.join(means)}; {seeds}"


def _cell(text: str) -> str:
    """Return a cell, its own lines below each other; what is bold stays so."""
    bold = text.startswith("**") and text.endswith("**")
    lines = "<br>".join(escaped(line) for line in text.strip("*" if bold else "").splitlines())
    return f"**{lines}**" if bold else lines


def _wrapped(text: str) -> str:
    return "\n".join([*_lines(text), ""])


def _lines(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
