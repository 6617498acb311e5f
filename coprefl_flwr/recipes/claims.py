"""The claims of a recipe: what a paper says of two of its rows, each checked as it is read.

```yaml
claims:
  - claim: CoPreFL's start is more accurate than FedAvg's
    source: CoPreFL, AAAI text, Table 1(a)
    of: coprefl                # a row, or {row: coprefl, where: {participants: 30}}
    against: fedavg            # the same
    metric: accuracy           # one of the recipe's columns, which says what is better
    says: better               # or worse, or equal
    where: {alpha: 0.1}        # of both: a value of each compared setting
    printed: 83.29 78.96       # what the paper has of both
    margin: 0.5                # what is no difference, in the metric's unit
    cause: One sentence, or one by protocol.
  - claim: The same holds on Tiny-ImageNet
    source: CoPreFL, AAAI text, Table 1(a)
    open: what it would need
```
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.entries import Choices, compared, metric_of, printed_figures
from coprefl_flwr.recipes.yaml_file import Located, part_of
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Printed
from coprefl_flwr.report.verdicts import SAYS, Says, usual_margin

_TOLD = ("claim", "source", "printed", "cause")
_MEASURED = ("of", "against", "metric", "says")
_KEYS = (*_TOLD, *_MEASURED, "where", "margin", "open")
_SIDES = ("of", "against")


@dataclass(frozen=True)
class Side:
    """A row of one of a recipe's tables."""

    row: str  # its label, or its name where each of its values is a row
    where: Mapping[str, Value]  # a value of every compared setting


@dataclass(frozen=True)
class Asked:
    """What a measured claim asks of a recipe's results."""

    of: Side
    against: Side
    metric: str
    says: Says
    margin: float | None  # within which a difference is none; None: no difference is too small


@dataclass(frozen=True)
class Claim:
    """What a paper claims, and how it is looked into: measured, or left open."""

    claim: str
    source: str  # where the paper says so
    printed: Printed  # the paper's figures "of" and "against", as far as it has them
    causes: Mapping[str, str]  # one sentence by protocol, under "" for all others
    asked: Asked | None  # None for one that is left open
    needs: str  # what an open one would need


def read_claims(
    entry: Located, settings: Choices, names: Sequence[str], metrics: Sequence[str]
) -> tuple[Claim, ...]:
    """Read the claims of a recipe with these settings, rows and columns.

    Raises a SettingsError with the line of what is wrong.
    """
    return tuple(_claim(one, settings, names, metrics) for one in entry.listed("claims"))


def without_others(
    entry: Located, settings: Choices, names: Sequence[str], metrics: Sequence[str]
) -> Located:
    """Return the claims that a changed recipe still has the tables, rows and columns of."""
    kept = []
    for one in entry.listed("claims"):
        try:
            _claim(one, settings, names, metrics)
        except SettingsError:
            continue
        kept.append(one)
    return entry.holding(kept)


def _claim(
    entry: Located, settings: Choices, names: Sequence[str], metrics: Sequence[str]
) -> Claim:
    given = entry.mapping("a claim", _KEYS)
    is_open = "open" in given
    for key in ("claim", "source", *(() if is_open else _MEASURED)):
        if key not in given:
            also = f", and no 'open' either: a claim has {', '.join(_MEASURED)}, or open"
            raise entry.error(f"the claim has no '{key}'{also if key in _MEASURED else ''}")
    for key in [key for key in given if is_open and key not in (*_TOLD, "open")]:
        raise given[key].error(f"'{key}' of a claim that is open: nothing of it is measured")
    return Claim(
        claim=given["claim"].text("claim"),
        source=given["source"].text("source"),
        printed=printed_figures(given["printed"], _SIDES) if "printed" in given else {},
        causes=_causes(given["cause"]) if "cause" in given else {},
        asked=None if is_open else _asked(given, settings, names, metrics),
        needs=given["open"].text("open") if is_open else "",
    )


def _causes(entry: Located) -> dict[str, str]:
    """Read one sentence, or one by protocol."""
    if isinstance(entry.value, str):
        return {"": entry.text("cause")}
    return {protocol: one.text("cause") for protocol, one in entry.mapping("cause").items()}


def _asked(
    given: Mapping[str, Located], settings: Choices, names: Sequence[str], metrics: Sequence[str]
) -> Asked:
    shared = _where(given, settings)
    of, against = (_side(given[key], key, shared, settings, names) for key in _SIDES)
    if of == against:
        raise given["against"].error("a claim is about two rows, and these are one")
    metric = metric_of(given["metric"], "metric")
    if metric not in metrics:
        raise given["metric"].error(unknown("column of this recipe", metric, metrics))
    says: Says = next(one for one in SAYS if one == given["says"].one_of("says", SAYS))
    if says != "equal" and column(metric).better is None:
        raise given["says"].error(f"says: {metric} can only be equal: no way of it is better")
    margin = _margin(given["margin"]) if "margin" in given else usual_margin(metric)
    if says == "equal" and margin is None:
        raise given["says"].error(f"says: equal: {metric} is not in percent and needs a margin")
    return Asked(of, against, metric, says, margin)


def _side(
    entry: Located, key: str, shared: Mapping[str, Value], settings: Choices, names: Sequence[str]
) -> Side:
    """Read "ROW" or {row: ROW, where: {SETTING: VALUE}}."""
    given = {"row": entry}
    if isinstance(entry.value, dict):
        given = dict(entry.mapping(key, ("row", "where")))
        if "row" not in given:
            raise entry.error(f"{key} has no 'row'")
    row = given["row"].text("row")
    if row not in names:
        raise given["row"].error(unknown("row", row, names))
    where = {**shared, **_where(given, settings)}
    for setting, values in settings.items():
        if len(values) > 1 and setting not in where:
            raise entry.error(
                f"{key}: which {setting}? It is compared here: where: {{{setting}: {values[0]}}}"
            )
    return Side(row, {name: value for name, value in where.items() if len(settings[name]) > 1})


def _where(given: Mapping[str, Located], settings: Choices) -> dict[str, Value]:
    found = {}
    for key, entry in part_of(given, "where").items():
        if key not in settings:
            raise entry.error(f"where: {unknown('setting', key, settings)}")
        found[key] = compared(key, entry, settings)
    return found


def _margin(entry: Located) -> float:
    """Read a positive number."""
    value = entry.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise entry.error(f"margin = {value}: must be a number above 0")
    return float(value)
