"""Protocols: one comparison under several rules, each of them a key of the recipe with its reason.

```yaml
protocols:
  printed: {because: the numbers as the paper prints them}
  ratio: {because: "the printed ratios, at rates that train this network", rates: 100}
  epochs: {because: the other reading, settings: {local-epochs: 5, local-steps: }}
  equal-budget: {because: as far for all, rates: 100, equal: step-size}
  equal-loss: {because: as much learnt by all, rates: 100, equal: start-loss, below: 3.9}
  tuned: {because: the best of each, search: {learning-rate: [0.1, 0.01]}, select: validation}
```

`rates` multiplies every rate of the recipe, in settings, methods and search, the defaults of those
that are not set included. `settings`, `methods` (options by label), `search`, `select`,
`search-by`, `search-trials` and `seeds` come over the recipe's own, as they are written; what is
empty is not set. `equal` compares at the reference's summed step size, to which the rounds of every
row are changed, or at the first round at which a start's loss over all pre-training clients is at
most `below`.

What was changed stands in the effective recipe, whose key `protocol` says that it was.
"""

import functools
import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.learning.training import ADAM_RATE, SGD_RATE
from coprefl_flwr.methods import HEAD, PERSONALISED, TASK, find_method
from coprefl_flwr.named import Named
from coprefl_flwr.options import declared
from coprefl_flwr.recipes.entries import named_method, study_of
from coprefl_flwr.recipes.own import resolved
from coprefl_flwr.recipes.runs import ROLES, Run
from coprefl_flwr.recipes.yaml_file import Located, entries_of, part_of
from coprefl_flwr.report.columns import START_LOSS, STEP_SIZE
from coprefl_flwr.studies.budgets import cost, rounds_for
from coprefl_flwr.studies.identity import texts_of
from coprefl_flwr.studies.method import Method, Methods
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.settings import Settings

logger = logging.getLogger("flwr.coprefl")

PROTOCOL, PROTOCOLS = "protocol", "protocols"
PARTS = ("settings", "methods", "search", "select", "search-by", "search-trials", "seeds")
KEYS = ("because", "rates", *PARTS, "equal", "below")
RATES = (
    *("learning-rate", "meta-learning-rate", "inner-learning-rate", "server-learning-rate"),
    "task-learning-rate",
)
"""What `rates` multiplies; `global-learning-rate` has no unit, so it stays."""

Tree = Mapping[str, Located]


def applied(tree: Tree, name: str, file: Path) -> dict[str, Located]:
    """Return a recipe as one of its protocols has it, the first if none is named.

    One that a protocol was applied to stays as it is. Raises a SettingsError for a protocol that
    there is not, or one that cannot be.
    """
    known = part_of(tree, PROTOCOLS)
    for one in known.values():
        _check(one)
    if PROTOCOL in tree:
        before = tree[PROTOCOL].one_of(PROTOCOL, list(known))
        if name not in ("", before):
            raise SettingsError(f"--protocol {name}: {file} is of the protocol {before} already")
        return dict(tree)
    if not known:
        if name:
            raise SettingsError(f"--protocol {name}: {file} has no protocols")
        return dict(tree)
    if name not in ("", *known):
        raise SettingsError(f"--protocol: {unknown('protocol', name, known)}")
    if not name:
        name = next(iter(known))
        others = ", ".join(list(known)[1:]) or "none"
        logger.info("protocol %s, the first; --protocol takes another: %s", name, others)
    changed = _with(tree, known[name].mapping(name), file.parent)
    changed[PROTOCOL] = Located(name, known[name].place)
    changed[PROTOCOLS] = tree[PROTOCOLS].holding({name: known[name]})
    return changed


def chosen(tree: Tree) -> tuple[str, str, str]:
    """Return the protocol that was applied, its reason and what it makes equal; "" for none."""
    if PROTOCOL not in tree:
        return "", "", ""
    name = str(tree[PROTOCOL].value)
    one = part_of(tree, PROTOCOLS)[name].mapping(name)
    equal = str(one["equal"].value) if "equal" in one else ""
    return name, one["because"].text("because"), equal


def _check(protocol: Located) -> None:
    """Raise a SettingsError, with its line, for a protocol that cannot be."""
    one = protocol.mapping("a protocol", KEYS)
    if "because" not in one:
        raise protocol.error("a protocol needs its reason, because: ...")
    one["because"].text("because")
    equal = one["equal"].one_of("equal", (STEP_SIZE, START_LOSS)) if "equal" in one else ""
    if (equal == START_LOSS) != ("below" in one):
        raise protocol.error(f"equal: {START_LOSS} and below: LOSS need each other")
    for key in ("rates", "below"):
        if key in one and not _is_positive(one[key].value):
            raise one[key].error(f"{key} = {one[key].value}: must be a number above 0")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _with(tree: Tree, one: Tree, folder: Path) -> dict[str, Located]:
    """Return a recipe with what a protocol changes."""
    factor = one["rates"].value if "rates" in one else 1
    changed = dict(tree) if factor == 1 else _with_rates(tree, factor)
    for key in ("settings", "search"):
        own = {k: resolved(_or_not_set(v), folder) for k, v in part_of(one, key).items()}
        if own:
            changed[key] = one[key].holding({**part_of(changed, key), **own})
    if "below" in one:
        every = {"stop-at-loss": one["below"], "start-loss": one["below"].holding(True)}
        changed["settings"] = changed["settings"].holding({**changed["settings"].value, **every})
    if "methods" in one:
        changed["methods"] = _with_options(tree["methods"], entries_of(changed, "methods"), one)
    as_written = ("select", "search-by", "search-trials", "seeds")
    return changed | {key: one[key] for key in as_written if key in one}


def _or_not_set(entry: Located) -> Located:
    return entry.holding("") if entry.value is None else entry


def _with_options(place: Located, methods: list[Located], one: Tree) -> Located:
    """Return the methods with the options that a protocol sets, by label; merged."""
    labels = [named_method(entry)[0] for entry in methods]
    changes = one["methods"].mapping("methods", labels, "method")
    found = []
    for entry in methods:
        label, named, options = named_method(entry)
        if label in changes:
            options = {**options, **changes[label].mapping(label)}
            options = {key: value for key, value in options.items() if value.value is not None}
            entry = entry.holding({label: entry.holding({"method": named, **options})})
        found.append(entry)
    return place.holding(found)


# ---- rates ---------------------------------------------------------------------------------------


def _with_rates(tree: Tree, factor: float) -> dict[str, Located]:
    """Return a recipe with every rate times a factor."""
    role = ROLES[study_of(tree)]
    settings, search = part_of(tree, "settings"), part_of(tree, "search")
    times = functools.partial(_times, factor)
    place = tree["settings"] if "settings" in tree else Located({}, "")
    defaults = {key: place.holding(one) for key, one in _of_settings(role).items()}
    rated = {
        key: _each(one, times) for key, one in {**defaults, **settings}.items() if key in RATES
    }
    for key, of in (("task-method", TASK), ("head", HEAD)):
        if key in settings:
            own = functools.partial(_rated, role=of, times=times, given=settings)
            rated[key] = _each(settings[key], own)
    changed = {**tree, "settings": place.holding({**settings, **rated})}
    if search:
        changed["search"] = tree["search"].holding(
            {key: _each(one, times) if key in RATES else one for key, one in search.items()}
        )
    if "methods" in tree:
        set_for_all = {*settings, *search}
        methods = [_method(one, role, times, set_for_all) for one in entries_of(tree, "methods")]
        changed["methods"] = tree["methods"].holding(methods)
    return changed


def _of_settings(role: str) -> dict[str, Any]:
    """Return the rates that are settings of a study, whatever its methods are: their defaults."""
    if role == PERSONALISED:
        return {"learning-rate": ADAM_RATE}
    of_tasks = declared(Settings)["task-learning-rate"].default
    return {"learning-rate": SGD_RATE, "task-learning-rate": of_tasks}


def _method(
    entry: Located, role: str, times: Callable[[Any], Any], set_for_all: Container[str]
) -> Located:
    """Return a method with its rates changed, those that nobody set included, under its label."""
    if not isinstance(entry.value, str | dict):
        return entry
    label, named, options = named_method(entry)
    given = {*options, *(key for key in RATES if key in set_for_all)}
    method = named.holding(_rated(named.value, role, times, given))
    options = {key: _each(one, times) if key in RATES else one for key, one in options.items()}
    if method == named and not options:
        return entry
    return entry.holding({label: entry.holding({"method": method, **options})})


def _rated(value: Any, role: str, times: Callable[[Any], Any], given: Container[str]) -> Method:
    """Return a method with the rates of its phases changed, defaults that nobody set included."""
    method = Method.read(value)

    def rated(phase: Named) -> Named:
        own = dict(phase.options)
        try:
            found = find_method(phase.name, role)
        except SettingsError:  # It is reported where the recipe is checked.
            return phase.having({key: times(one) for key, one in own.items() if key in RATES})
        every = {k: v for k, v in found.defaults(role).items() if k in found.options} | own
        changes = {k: one for k, one in every.items() if k in own or k not in given}
        return phase.having({key: times(one) for key, one in changes.items() if key in RATES})

    return (
        method if role not in (TASK, HEAD) and method.is_made_elsewhere else method.changed(rated)
    )


def _times(factor: float, value: Any) -> Any:
    """Return a number times a factor, without the last digits of floating point."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return float(f"{float(value) * factor:.12g}")


def _each(entry: Located, change: Callable[[Any], Any]) -> Located:
    """Return an entry with its value changed, or each of its values."""
    values = [one.holding(change(one.value)) for one in entry.items()]
    return entry.holding(values) if isinstance(entry.value, list) else values[0]


# ---- equal step sizes ----------------------------------------------------------------------------


def with_step_size(run: Run, reference: Run) -> Run:
    """Return a run of as many rounds as bring its summed step size nearest to a reference's.

    A start that is not trained stays. Raises a SettingsError if there is no such number.
    """
    if run == reference or not _pretraining(run).phases:
        return run
    rounds = _rounds(run, reference, texts_of(run.settings))
    method = Methods(one.with_rounds(rounds) for one in run.settings.method)
    return replace(run, settings=replace(run.settings, method=method))


@functools.lru_cache(maxsize=1024)
def _rounds(run: Run, reference: Run, _: tuple[str, ...]) -> int:
    wanted = cost(_pretraining(reference)).step_size
    if not wanted > 0:
        problem = f"equal: {STEP_SIZE}: the reference, {reference.name}, has a summed step size of"
        raise SettingsError(f"{problem} {wanted:g}", "reference")
    return rounds_for(_pretraining(run), wanted)


def _pretraining(run: Run) -> Pretraining:
    if isinstance(run.main, Pretraining):
        return run.main
    raise SettingsError(f"equal: {STEP_SIZE}: only starts have a summed step size")
