"""Writes the declarations in the code into the documentation's pages and pyproject.toml.

`python -m docs.tables` (or `make tables`) writes them. A test fails if they are out of date. In a
page, each written part is between two comments with its name.
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
from coprefl_flwr.learning.loss import Loss
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, TASK
from coprefl_flwr.options import Option, Value, declared
from coprefl_flwr.report.columns import COLUMNS
from coprefl_flwr.strategies import ServerRefined
from coprefl_flwr.studies.known_methods import METHODS
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.settings import GROUPS, Settings
from docs import faults, in_an_app, interface

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
"""{first setting of a group: heading of the group}."""

KINDS = {PRETRAINING: "pre-training", TASK: "training of tasks"}
KINDS |= {PERSONALISED: "personalised studies", HEAD: "last layer of tasks"}

PARTICIPANTS, CLIENTS, SAMPLES, AT_SERVER = 20, 100, 200, 1000
TRAINING = LocalTraining(local_steps=5, batch_size=32, learning_rate=0.05)
"""The example whose cost of a round is shown."""

TESTED_IN = {
    "coprefl-hybrid": "integration/test_scenario_two.py",
    "coprefl-sgd": "integration/test_scenario_two.py",
    "coprefl-std": "strategies/test_coprefl.py",
    "fedcgs": "strategies/test_linear_head.py",
    "fedcof": "strategies/test_linear_head.py",
    "ncm": "strategies/test_linear_head.py",
    "ridge": "strategies/test_linear_head.py",
}
"""{method: file with the tests of its formulas}, if not the file of its strategy's name."""

ONLY_SUMS = {"fedcgs", "fedetf", "frl", "ncm", "qffl", "ridge", "solo"}
"""Methods that do not average, but whose server needs only sums; a test checks this."""

_SUMS = "[sums of the clients' arrays](index.md#pre-training-methods)"
_OF_AVERAGES = "[options of all methods that average](../reference/settings.md#options-of-methods)"

PERSONALISED_STUDIES = {
    "fedavg": ("the whole model", "the global model"),
    "fedpcl": (
        "prototypes: each client sends its own and gets those of all clients",
        "the client's head and prototypes",
    ),
    "fedproto": (
        "prototypes: each client sends its own and gets the global prototypes",
        "the client's model and the global prototypes",
    ),
    "fedrep": ("all except the last layer", "the shared layers and the client's last layer"),
    "per-fedavg": ("the whole model", "the global model after one step on the client's samples"),
    "pfedme": ("the whole model", "the client's model theta"),
    "solo": ("nothing", "the client's model"),
}
"""{method: (content of a round's messages, model with which a client is tested)}."""


def methods_table() -> str:
    """Return the table of methods for pre-training and tasks, without `NAME-refined`."""
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
    """Return the table of methods for personalised studies."""
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
    """Return a method's name as a link to its page, or to that of the method that it refines."""
    texts = {path.name: path.read_text() for path in sorted((PAGES / "methods").glob("*.md"))}
    for candidate in (name, METHODS[name].strategy_class.name, name.removesuffix("-hybrid")):
        for page, text in texts.items():
            if f"<!-- {FRAME}{candidate}," in text:
                return f"[`{name}`]({page})"
    return f"`{name}`"


def _sums(method: Method) -> str:
    """Return "yes" for a method whose server needs only sums of clients' arrays."""
    return "yes" if needs_only_sums(method) else ""


def needs_only_sums(method: Method) -> bool:
    """Return whether a method's server needs only sums of the clients' arrays."""
    return method.strategy_class.averages or method.strategy_class.name in ONLY_SUMS


def _own(method: Method, role: str) -> str:
    """Return a method's options with their defaults, without the options of `aggregation`."""
    defaults = method.defaults(role)
    shown = []
    for key, default in defaults.items():
        if key in method.declared_options and method.declared_options[key].name in AGGREGATION:
            continue
        choices = method.declared_options[key].choices if key in method.declared_options else ()
        allowed = f" ({', '.join(choices)})" if choices else ""
        shown.append(f"`{key}` {_text(default)}{allowed}")
    return ", ".join(shown) or "none"


def settings_tables() -> str:
    """Return the settings of a study, with a heading and a table for each subject."""
    keys = {key: option for group in GROUPS for key, option in declared(group).items()}
    unknown = SUBJECTS.keys() - keys.keys()
    if unknown:
        raise KeyError(f"no settings: {', '.join(sorted(unknown))}")
    parts, lines = [], list[str]()
    for key, option in keys.items():
        if key in SUBJECTS:
            lines = _heads("key", "default", "limits", "meaning")
            parts.append((SUBJECTS[key], lines))
        lines.append(_line(f"[`{key}`](#{key}){{ #{key} }}", option))
    return "\n".join(f"## {title}\n\n{_options(lines)}" for title, lines in parts)


def _options(lines: list[str], kind: str = "options") -> str:
    """Return a table of options, whose rows become cards on a narrow screen."""
    table = "\n".join(lines)
    return f'<div class="{kind}" markdown>\n\n{table}\n\n</div>\n'


def _line(key: str, option: Option) -> str:
    """Return the table row of an option; `key` is its name in Markdown."""
    unit = f" ({option.unit})" if option.unit else ""
    default = f"`{_text(option.default)}`" if option.default not in (None, "") else "not set"
    meaning = option.meaning.replace("|", "\\|")
    return f"| {key} | {default}{unit} | {option.limits} | {meaning} |"


def options_table() -> str:
    """Return the table of the methods' options, with a row for each meaning of a key."""
    lines = _heads("key", "method", "limits", "meaning")
    methods = [method for method in METHODS.values() if HEAD not in method.roles]
    averaging = {name.replace("_", "-") for name in AGGREGATION}
    for key in dict.fromkeys(key for method in methods for key in method.declared_options):
        names_of: dict[tuple[str, str], list[str]] = {}
        for name, method in METHODS.items():
            if key in method.declared_options and not method.refined:
                option = method.declared_options[key]
                names_of.setdefault((option.limits, option.meaning), []).append(name)
        refined = next(
            (m.declared_options[key] for m in METHODS.values() if key in m.declared_options), None
        )
        if not names_of and refined:
            names_of[(refined.limits, refined.meaning)] = ["all refined methods"]
        for (limits, meaning), names in names_of.items():
            of = "all methods that average" if key in averaging else ", ".join(names)
            lines.append(f"| `{key}` | {of} | {limits} | {meaning} |")
    return _options(lines, "options by-method")


def columns_table() -> str:
    """Return the table of the columns of a recipe's report."""
    lines = _heads("`metrics`", "heading", "better")
    for name, heading in COLUMNS.items():
        lines.append(f"| `{name}` | {heading.title} | {heading.better or ''} |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Return every command of `coprefl` with its arguments."""
    actions = parser()._actions
    (named,) = (a for a in actions if isinstance(a, argparse._SubParsersAction))
    meaning = {action.dest: action.help for action in named._choices_actions}
    parts = []
    for name, command in named.choices.items():
        lines = _heads("argument", "meaning")
        for action in command._actions:
            if not isinstance(action, argparse._HelpAction):
                lines.append(f"| `{_argument(action)}` | {action.help or ''} |")
        table = ["\n".join(lines)] if len(lines) > 2 else []
        parts.append("\n\n".join([f"## coprefl {name}", _sentence(str(meaning[name])), *table]))
    return "\n\n".join(parts) + "\n"


def _argument(action: argparse.Action) -> str:
    """Return an argument as a user writes it."""
    if not action.option_strings:
        return str(action.metavar or action.dest).upper()
    if action.nargs == 0:
        return action.option_strings[0]
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    return f"{action.option_strings[0]} {choices or action.metavar or action.dest.upper()}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def frame(name: str) -> str:
    """Return the generated frame of a method's page: its properties, options and a command."""
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
    parts = ["\n".join(lines) + "\n", _options_of(method, role), _command(name, role)]
    return "\n".join(filter(None, [*parts, in_an_app.section(method)]))


def _module(owner: type) -> str:
    return owner.__module__.rpartition(".")[2]


def _source(owner: type) -> str:
    """Return the link to a class's file from a method's page."""
    return "../../" + str(Path(inspect.getfile(owner)).relative_to(ROOT))


def _strategy(strategy: type) -> str:
    """Return a link to a strategy's arguments, and one to its file."""
    name = strategy.__name__
    for page in sorted((PAGES / "reference" / "api").glob("*.md")):
        if entry := re.search(rf"^::: (coprefl_flwr\.(?:\w+\.)?{name})$", page.read_text(), re.M):
            arguments = f"[`{name}`](../reference/api/{page.name}#{entry[1]})"
            return f"{arguments} ([source]({_source(strategy)}))"
    raise KeyError(f"no page of the Python reference describes {name}")


def _client(client: type) -> str:
    keeps = "; stores a state between rounds" if issubclass(client, StatefulClient) else ""
    return f"[`{client.__name__}`]({_source(client)}){keeps}"


def _exchanges(method: Method) -> str:
    actions = ", then ".join(f"`{action}`" for action in method.strategy_class.actions)
    if method.strategy_class.name == "cyclic":
        return (
            "`train`, to one client after another (one message for consecutive clients of a node)"
        )
    return actions or "none"


def _needs(method: Method) -> str:
    """Return the data that a method's server needs, as a text."""
    sums = f"only {_SUMS}" if _sums(method) else "each client's own arrays"
    if not method.strategy_class.actions:
        sums = "all data"
    elif method.strategy_class.name == "cyclic":
        sums = "each client's model, or on a node with several clients the last client's model"
    return f"{sums}, and its own data" if method.uses_server_data else sums


def _cost(method: Method) -> str:
    """Return the cost of a round of the example, as a text."""
    budget = _budget(method)
    step = next(budget.step_sizes(TRAINING))
    size = "no comparable step size" if math.isnan(step) else f"summed step size {step:.3g}"
    if not budget.step_sum and not budget.at_server:
        size = "no steps of shared weights"
    return f"{size}, {budget.gradients:,.0f} gradients ([explanation](index.md#what-a-round-costs))"


@dataclass(frozen=True)
class _ServerSamples:
    """Data at the server, of which only the number of samples is used."""

    samples: int
    precision: str = TRAINING.precision
    loss: Loss = TRAINING.loss

    def __len__(self) -> int:
        return self.samples


def _budget(method: Method) -> Budget:
    """Return the budget of a round of the example."""
    own = {"clients": CLIENTS * SAMPLES, "both": CLIENTS * SAMPLES, "server": AT_SERVER, "": 0}
    samples = own[method.strategy_class.server_data]
    arguments = {"server": _ServerSamples(samples)} if samples else {}
    if not method.strategy_class.actions:
        arguments["training"] = TRAINING
    strategy = method.strategy_class(participants=PARTICIPANTS, **arguments)
    if method.refined:
        strategy = ServerRefined(strategy, _ServerSamples(AT_SERVER))
    options = {key: option.default for key, option in declared(method.client_class).items()}
    return strategy.budget(Work(PARTICIPANTS, [SAMPLES] * CLIENTS, TRAINING, options))


def _options_of(method: Method, role: str) -> str:
    """Return the table of a method's options."""
    defaults = method.defaults(role)
    lines = _heads("option", "default", "limits", "meaning")
    for key, option in method.declared_options.items():
        if option.name not in AGGREGATION:
            lines.append(_line(f"`{key}`", option))
    named = declared(Settings)
    for key, default in method.strategy_class.training_defaults.items():
        lines.append(f"| `{key}` | `{default}` | {named[key].limits} | {named[key].meaning} |")
    if len(lines) == 2:
        averages = any(option.name in AGGREGATION for option in method.declared_options.values())
        only = f"has only the {_OF_AVERAGES}" if averages else "has no options"
        return f"This method {only}.\n"
    other = [
        key
        for key in method.declared_options
        if defaults.get(key) != method.declared_options[key].default
    ]
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
    return "".join(f"{key} = {_toml(option)}\n" for key, option in declared(Settings).items())


def _toml(option: Option) -> str:
    """Return a default in TOML, `""` if it is not set."""
    default: Value = "" if option.default is None else option.default
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
    "faults": faults.table,
}


PREFIXES = {FRAME: frame, **interface.PREFIXES}
"""{beginning of a part's name: function that writes the part from the rest of the name}."""


def parts(text: str) -> list[str]:
    """Return the names of the generated parts of a page."""
    return [part["name"] for part in PART.finditer(text)]


def page(text: str) -> str:
    """Return a page with its generated parts written again."""

    def renewed(part: re.Match[str]) -> str:
        name = part["name"]
        for prefix, write in PREFIXES.items():
            if name.startswith(prefix) and name not in TABLES:
                table = write(name.removeprefix(prefix))
                break
        else:
            table = TABLES[name]()
        return f"<!-- {name}, by `make tables` -->\n\n{table}\n<!-- end of {name} -->\n"

    return PART.sub(renewed, text)


def pyproject(text: str) -> str:
    """Return pyproject.toml with the section of the run-config written again."""
    section = r"(?<=\[tool\.flwr\.app\.config\]\n).*?(?=\n\[tool\.)"
    return re.sub(section, lambda _: run_config(), text, flags=re.DOTALL)


def files() -> Mapping[Path, Callable[[str], str]]:
    """Return {generated file: function that returns its new text from the old text}."""
    pages = sorted(path for path in PAGES.rglob("*.md") if parts(path.read_text()))
    return {ROOT / "pyproject.toml": pyproject, **dict.fromkeys(pages, page)}


def main() -> None:
    """Write all generated files."""
    for path, change in files().items():
        path.write_text(change(path.read_text()))


if __name__ == "__main__":
    main()
