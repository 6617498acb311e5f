"""Writes what the documentation's pages and pyproject.toml say that the code declares.

`python -m docs.tables` (or `make tables`) writes them; a test tells when that was forgotten. In a
page each such part stands between two comments that name it.
"""

import argparse
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coprefl_flwr.cli import parser
from coprefl_flwr.clients import StatefulClient
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.federation.robust import AGGREGATION
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.methods import (
    HEAD,
    METHODS,
    PERSONALISED,
    PRETRAINING,
    TASK,
    Algorithm,
    short_forms,
)
from coprefl_flwr.options import Option, Value, declared
from coprefl_flwr.report.columns import COLUMNS
from coprefl_flwr.strategies import ServerRefined
from coprefl_flwr.studies.settings import GROUPS, Settings
from docs import interface

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs"
PART = re.compile(
    r"<!-- (?P<name>[^\n]+), by `make tables` -->\n.*?<!-- end of (?P=name) -->\n", re.S
)
FRAME = "frame of "

SUBJECTS = {
    "study": "Study and output",
    "seed": "Seed, failures and checkpoints",
    "dataset": "Dataset, classes and domains",
    "clients": "Clients and their samples",
    "model": "Network",
    "local-steps": "Local training",
    "rounds": "Rounds and participants",
    "tasks": "Downstream tasks",
    "task-clients": "Clients and training of the tasks",
    "personal-datasets": "Personalised studies",
}
"""By the first of some settings in a row: the heading above them."""

KINDS = {PRETRAINING: "pre-training", TASK: "training of tasks"}
KINDS |= {PERSONALISED: "personalised studies", HEAD: "last layer of tasks"}

PARTICIPANTS, CLIENTS, SAMPLES, AT_SERVER = 20, 100, 200, 1000
TRAINING = LocalTraining(local_steps=5, batch_size=32, learning_rate=0.05)
"""What a round's cost is shown for."""

TESTED_IN = {
    "coprefl-hybrid": "integration/test_scenario_two.py",
    "coprefl-sgd": "integration/test_scenario_two.py",
    "coprefl-std": "strategies/test_coprefl.py",
    "ncm": "strategies/test_linear_head.py",
    "ridge": "strategies/test_linear_head.py",
}
"""Where the tests of a method's formulas are, if not in the file named after its strategy's."""

ONLY_SUMS = {"ncm", "qffl", "ridge", "solo"}
"""Methods that do not average, and whose server needs sums alone all the same; tested by rules."""

PERSONALISED_STUDIES = {
    "fedavg": ("the whole model", "the global model"),
    "fedpcl": ("prototypes: each client sends its own and gets all", "its head and prototypes"),
    "fedproto": (
        "prototypes: each client sends its own and gets the global ones",
        "its model and the global prototypes",
    ),
    "fedrep": ("all except the last layer", "the shared layers and its own last layer"),
    "per-fedavg": ("the whole model", "the global model after one step on its samples"),
    "pfedme": ("the whole model", "its own model theta"),
    "solo": ("nothing", "its own model"),
}
"""By method of a personalised study: what is sent in a round, and what a client is tested with."""


def methods_table() -> str:
    """Return the methods of starting models and tasks, without refined forms called so."""
    lines = _heads("`method`", "options and defaults", "scenario", "for tasks", "only sums")
    for name, method in METHODS.items():
        if not {PRETRAINING, TASK} & set(method.roles) or name.endswith("-refined"):
            continue
        scenario = "II" if method.uses_server_data else "I"
        tasks = "yes" if TASK in method.roles else ""
        own, sums = _own(method, PRETRAINING), _sums(method)
        lines.append(f"| {_linked(name)} | {own} | {scenario} | {tasks} | {sums} |")
    return _options(lines, "options methods")


def personal_table() -> str:
    """Return the methods of personalised studies."""
    lines = _heads(
        "`method`", "options and defaults", "sent in a round", "tested with", "only sums"
    )
    for name, method in METHODS.items():
        if PERSONALISED in method.roles:
            own = _own(method, PERSONALISED)
            shown = (_linked(name), own, *PERSONALISED_STUDIES[name], _sums(method))
            lines.append(f"| {' | '.join(shown)} |")
    return _options(lines, "options methods personal")


def _heads(*heads: str) -> list[str]:
    """Return the first two lines of a table."""
    return [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]


def _linked(name: str) -> str:
    """Return a method's name as a link to the page with its frame, or of what it refines."""
    texts = {path.name: path.read_text() for path in sorted((PAGES / "methods").glob("*.md"))}
    for one in (name, METHODS[name].strategy_class.name, name.removesuffix("-hybrid")):
        for page, text in texts.items():
            if f"<!-- {FRAME}{one}," in text:
                return f"[`{name}`]({page})"
    return f"`{name}`"


def _sums(method: Algorithm) -> str:
    """Return "yes" for a method whose server needs only sums of clients' arrays."""
    return "yes" if needs_only_sums(method) else ""


def needs_only_sums(method: Algorithm) -> bool:
    """Return whether sums of clients' arrays are all that a method's server needs."""
    return method.strategy_class.averages or method.strategy_class.name in ONLY_SUMS


def _own(method: Algorithm, role: str) -> str:
    """Return a method's own settings with their defaults, but for those of `aggregation`."""
    defaults = method.defaults(role)
    shown = []
    for key, default in defaults.items():
        if key in method.options and method.options[key].name in AGGREGATION:
            continue
        choices = method.options[key].choices if key in method.options else ()
        allowed = f" ({', '.join(choices)})" if choices else ""
        shown.append(f"`{key}` {_text(default)}{allowed}")
    return ", ".join(shown) or "none"


def settings_tables() -> str:
    """Return the settings of a study in their order: a heading and a table for each subject."""
    keys = {key: one for group in GROUPS for key, one in declared(group).items()}
    unknown = SUBJECTS.keys() - keys.keys()
    if unknown:
        raise KeyError(f"no settings: {', '.join(sorted(unknown))}")
    parts, lines = [], list[str]()
    for key, one in keys.items():
        if key in SUBJECTS:
            lines = _heads("key", "default", "limits", "meaning")
            parts.append((SUBJECTS[key], lines))
        lines.append(_line(f"[`{key}`](#{key}){{ #{key} }}", one))
    return "\n".join(f"## {title}\n\n{_options(lines)}" for title, lines in parts)


def _options(lines: list[str], kind: str = "options") -> str:
    """Return a table of options, whose rows become cards on a narrow screen."""
    table = "\n".join(lines)
    return f'<div class="{kind}" markdown>\n\n{table}\n\n</div>\n'


def _line(key: str, one: Option) -> str:
    """Return the line of an option, whose name is given in Markdown."""
    unit = f" ({one.unit})" if one.unit else ""
    default = f"`{_text(one.default)}`" if one.default not in (None, "") else "not set"
    meaning = one.meaning.replace("|", "\\|")
    return f"| {key} | {default}{unit} | {one.limits} | {meaning} |"


def options_table() -> str:
    """Return the methods' own options, one line for each meaning that a key has."""
    lines = _heads("key", "method", "limits", "meaning")
    methods = [one for one in METHODS.values() if HEAD not in one.roles]
    averaging = {name.replace("_", "-") for name in AGGREGATION}
    # With those that have no short form, as it is a setting of another meaning.
    for key in dict.fromkeys(key for method in methods for key in method.options):
        found: dict[tuple[str, str], list[str]] = {}
        for name, method in METHODS.items():
            if key in method.options and not method.refined:
                one = method.options[key]
                found.setdefault((one.limits, one.meaning), []).append(name)
        refined = next((m.options[key] for m in METHODS.values() if key in m.options), None)
        if not found and refined:
            found[(refined.limits, refined.meaning)] = ["methods called NAME-refined"]
        for (limits, meaning), names in found.items():
            of = "all methods that average" if key in averaging else ", ".join(names)
            lines.append(f"| `{key}` | {of} | {limits} | {meaning} |")
    return _options(lines, "options by-method")


def columns_table() -> str:
    """Return the columns of a recipe's tables."""
    lines = _heads("`metrics`", "heading", "better")
    for name, heading in COLUMNS.items():
        lines.append(f"| `{name}` | {heading.title} | {heading.better or ''} |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Return every command of `coprefl` with its arguments."""
    (named,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    meaning = {one.dest: one.help for one in named._choices_actions}
    parts = []
    for name, command in named.choices.items():
        lines = _heads("argument", "meaning")
        for one in command._actions:
            if not isinstance(one, argparse._HelpAction):
                lines.append(f"| `{_argument(one)}` | {one.help or ''} |")
        table = ["\n".join(lines)] if len(lines) > 2 else []
        parts.append("\n\n".join([f"## coprefl {name}", _sentence(str(meaning[name])), *table]))
    return "\n\n".join(parts) + "\n"


def _argument(one: argparse.Action) -> str:
    """Return how an argument is written."""
    if not one.option_strings:
        return str(one.metavar or one.dest).upper()
    if one.nargs == 0:
        return one.option_strings[0]
    choices = f"{{{','.join(map(str, one.choices))}}}" if one.choices else ""
    return f"{one.option_strings[0]} {choices or one.metavar or one.dest.upper()}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def frame(name: str) -> str:
    """Return what a method's page says by the code: what it is, its options, how to run it."""
    method = METHODS[name]
    strategy, client = method.strategy_class, method.client_class
    roles = "; ".join(KINDS[role] for role in method.roles)
    test = "tests/" + TESTED_IN.get(name, f"strategies/test_{_module(strategy)}.py")
    lines = _heads(f"`{name}`", "")
    lines += [
        f"| used for | {roles} |",
        f"| strategy | {_strategy(strategy)} |",
        f"| client | {_client(client) if strategy.actions else 'none'} |",
        f"| exchanges in a round | {_exchanges(method)} |",
        f"| the server needs | {_needs(method)} |",
        *([f"| cost of a round | {_cost(method)} |"] if HEAD not in method.roles else []),
        f"| tests of the formulas | [{test}](../../{test}) |",
    ]
    role = method.roles[0]
    return "\n".join(lines) + "\n\n" + _options_of(method, role) + "\n" + _command(name, role)


def _module(one: type) -> str:
    return one.__module__.rpartition(".")[2]


def _source(one: type) -> str:
    """Return the link to a class's file from a method's page."""
    return "../../" + str(Path(inspect.getfile(one)).relative_to(ROOT))


def _strategy(strategy: type) -> str:
    """Return a link to a strategy's arguments, and one to its file."""
    name = strategy.__name__
    for page in sorted((PAGES / "reference" / "api").glob("*.md")):
        if found := re.search(rf"^::: (coprefl_flwr\.(?:\w+\.)?{name})$", page.read_text(), re.M):
            arguments = f"[`{name}`](../reference/api/{page.name}#{found[1]})"
            return f"{arguments} ([source]({_source(strategy)}))"
    raise KeyError(f"no page of the Python reference describes {name}")


def _client(client: type) -> str:
    keeps = "; stores a state between rounds" if issubclass(client, StatefulClient) else ""
    return f"[`{client.__name__}`]({_source(client)}){keeps}"


def _exchanges(method: Algorithm) -> str:
    actions = ", then ".join(f"`{one}`" for one in method.strategy_class.actions)
    if method.strategy_class.name == "cyclic":
        return "`train`, one client after another; a node that hosts several gets one message"
    return actions or "none"


def _needs(method: Algorithm) -> str:
    """Return what the server must have and see."""
    sums = "sums of clients' arrays" if _sums(method) else "each client's own arrays"
    if not method.strategy_class.actions:
        sums = "all data"
    elif method.strategy_class.name == "cyclic":
        sums = "the model that each client, or node, passes on"
    return f"{sums}, and its own data" if method.uses_server_data else sums


def _cost(method: Algorithm) -> str:
    """Return what a round costs, and FedAvg's."""
    budget = _budget(method)
    step = next(budget.step_sizes(TRAINING))
    size = "no comparable step size" if math.isnan(step) else f"{step:.3g} summed step size"
    if not budget.step_sum and not budget.at_server:
        size = "no steps of shared weights"
    return f"{size}, {budget.gradients:,.0f} gradients ([explanation](index.md#what-a-round-costs))"


@dataclass(frozen=True)
class _Held:
    """Data at the server, of which only the size counts."""

    samples: int
    precision: str = TRAINING.precision

    def __len__(self) -> int:
        return self.samples


def _budget(method: Algorithm) -> Budget:
    """Return the cost of a round of the example."""
    own = {"clients": CLIENTS * SAMPLES, "both": CLIENTS * SAMPLES, "server": AT_SERVER, "": 0}
    held = own[method.strategy_class.server_data]
    given = {"server": _Held(held)} if held else {}
    if not method.strategy_class.actions:
        given["training"] = TRAINING
    strategy = method.strategy_class(participants=PARTICIPANTS, **given)
    if method.refined:
        strategy = ServerRefined(strategy, _Held(AT_SERVER))
    options = {key: one.default for key, one in declared(method.client_class).items()}
    return strategy.budget(Work(PARTICIPANTS, [SAMPLES] * CLIENTS, TRAINING, options))


def _options_of(method: Algorithm, role: str) -> str:
    """Return the table of a method's own options."""
    defaults = method.defaults(role)
    lines = _heads("option", "default", "limits", "meaning")
    for key, one in method.options.items():
        if one.name not in AGGREGATION:
            lines.append(_line(f"`{key}`", one))
    named = declared(Settings)
    for key, default in method.strategy_class.training_defaults.items():
        lines.append(f"| `{key}` | `{default}` | {named[key].limits} | {named[key].meaning} |")
    if len(lines) == 2:
        return "This method has no options.\n"
    other = [key for key in method.options if defaults.get(key) != method.options[key].default]
    also = ", ".join(f"`{key}` is {defaults[key]}" for key in other if key in defaults)
    return _options(lines) + (f"\nBy default {also} here.\n" if also else "")


def _command(name: str, role: str) -> str:
    """Return a command that runs the method."""
    if role == PERSONALISED:
        rows = ", ".join(dict.fromkeys(["fedavg", name, "fedpcl"]))  # The recipe's reference.
        recipe = "examples/recipes/fedpcl-table-2.yaml --scale small"
        return f'```sh\ncoprefl run {recipe} \\\n    --set "methods=[{rows}]"\n```\n'
    if role == HEAD:
        return (
            f'```sh\ncoprefl new first\ncoprefl run first.yaml --set "head=[fresh, {name}]"\n```\n'
        )
    rows = ", ".join(dict.fromkeys(["random", "fedavg", name]))
    return f'```sh\ncoprefl new first\ncoprefl run first.yaml --set "methods=[{rows}]"\n```\n'


def run_config() -> str:
    """Return the lines of [tool.flwr.app.config]: every setting with its default."""
    found = {**declared(Settings), **dict.fromkeys(short_forms())}
    return "".join(f"{key} = {_toml(one)}\n" for key, one in found.items())


def _toml(one: Option | None) -> str:
    """Return a default in TOML; "" is "not set"."""
    default: Value = "" if one is None or one.default is None else one.default
    return _text(default) if isinstance(default, bool | int | float) else f'"{default}"'


def _text(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


TABLES: Mapping[str, Callable[[], str]] = {
    "methods": methods_table,
    "personalised methods": personal_table,
    "settings": settings_tables,
    "options": options_table,
    "arguments of every strategy": interface.of_every_strategy,
    "columns": columns_table,
    "commands": commands,
}


PREFIXES = {FRAME: frame, **interface.PREFIXES}
"""By the beginning of a part's name: the function that writes the part for the rest of it."""


def parts(text: str) -> list[str]:
    """Return the names of the parts that a page has."""
    return [one["name"] for one in PART.finditer(text)]


def page(text: str) -> str:
    """Return a page with its parts made anew."""

    def made(found: re.Match[str]) -> str:
        name = found["name"]
        for prefix, write in PREFIXES.items():
            if name.startswith(prefix) and name not in TABLES:
                table = write(name.removeprefix(prefix))
                break
        else:
            table = TABLES[name]()
        return f"<!-- {name}, by `make tables` -->\n\n{table}\n<!-- end of {name} -->\n"

    return PART.sub(made, text)


def pyproject(text: str) -> str:
    """Return pyproject.toml with the run-config's section made anew."""
    section = r"(?<=\[tool\.flwr\.app\.config\]\n).*?(?=\n\[tool\.)"
    return re.sub(section, lambda _: run_config(), text, flags=re.DOTALL)


def files() -> Mapping[Path, Callable[[str], str]]:
    """Return what is written: each file, and how."""
    pages = sorted(path for path in PAGES.rglob("*.md") if parts(path.read_text()))
    return {ROOT / "pyproject.toml": pyproject, **dict.fromkeys(pages, page)}


def main() -> None:
    """Write them all."""
    for path, change in files().items():
        path.write_text(change(path.read_text()))


if __name__ == "__main__":
    main()
