"""Writes the parameters of the Python interface for the reference pages, as definition lists.

The text of a function's parameter comes from the docstring. The text of a strategy's argument
comes from its declared option, or from `OBJECTS` for an argument that is no option.
"""

import ast
import dataclasses
import inspect
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coprefl_flwr
from coprefl_flwr.options import Option, declared
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.known_methods import METHODS
from coprefl_flwr.studies.settings import Settings

OBJECTS = {
    "server": "the server's data, and a network to compute with: a `ServerData`",
    "training": "how the server trains: a `LocalTraining`",
    "weighted_by_key": "metric of the clients' replies by which their models are weighted",
    "head": "the last layer of the network: its name, its sizes and its classes",
    "phases": "pairs (strategy, rounds), in order. The last strategy continues until the run ends, "
    "whatever its number of rounds",
    "inner": "the strategy whose rounds are followed by steps on the server's data",
    "batch_size": "samples of a step on the server's data",
    "bounds": "limits on what clients may report: a "
    "[`Bounds`](exchanges.md#coprefl_flwr.federation.Bounds)",
    "buffers": "names of the model's buffers, which are averaged, never stepped; a study sets them",
    "metric_reductions": "{metric of the clients: `max`, `min` or `sum`}; the others are means",
    "clients": "the clients of each node ([hosting](../../concepts/hosting.md)): the number of "
    "all clients, if every node can run every client; a mapping from node ids to clients; the "
    "path of a TOML file with this mapping; `nodes`: each node is one client, with the node's id; "
    "not set: the server asks each node",
}
"""Arguments of strategies that are objects and no declared options."""

TEXTS = tomllib.loads((Path(__file__).parent / "parameters.toml").read_text(encoding="utf-8"))
"""{function or class: {parameter: text}} for parameters without a docstring or an option."""


@dataclass(frozen=True)
class Parameter:
    """A documented parameter; `about` is its type, default and limits in Markdown."""

    name: str
    about: str
    meaning: str


def parameters(name: str) -> str:
    """Return the parameters and the exceptions of a public function, such as `pretrain`."""
    function = _public(name)
    title = f"**Parameters of `{name.rpartition('.')[2]}`**"
    parts = [title, _list(_documented(function), name)]
    raised = [f"`{kind}`\n:   {_indented(text)}\n" for kind, (_, text) in _rows(function, "Raises")]
    return "\n\n".join([*parts, *(["**Raises**", "\n".join(raised)] if raised else [])])


def arguments(name: str) -> str:
    """Return the arguments that a strategy class has in addition to the common ones."""
    owner = _public(name)
    common = {parameter.name for parameter in dataclasses.fields(RoundStrategy)}
    own = [parameter for parameter in _arguments(owner) if parameter.name not in common]
    parts = [_list(own, name)]
    client = [_of_option(option) for option in _client_options(owner)]
    if client:
        parts.append("Options of the client, arguments of `cp.pretrain`:\n\n" + _list(client, name))
    if owner.__init__ is not coprefl_flwr.Schedule.__init__:
        link = "[arguments of every strategy](strategies.md#arguments-of-every-strategy)"
        some = f"`{owner.__name__}` {'also takes' if parts[0] else 'takes only'} the"
        parts.append(f"{some} {link}.\n")
    return "\n".join(part for part in parts if part)


def of_every_strategy() -> str:
    """Return the arguments that all strategies have."""
    return _list(_arguments(RoundStrategy), "strategy")


def _public(name: str) -> Any:
    """Return an object of the package by its dotted name."""
    value: Any = coprefl_flwr
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _list(parameters: list[Parameter], owner: str) -> str:
    """Return a definition list whose terms have anchors."""
    lines = []
    for parameter in parameters:
        anchor = f"{owner}.{parameter.name}".lower().replace("*", "")
        meaning = _indented(parameter.meaning)
        head = f"`{parameter.name}`{{ #{anchor} }} {parameter.about}".rstrip()
        lines.append(f"{head}\n:   {meaning}\n")
    return "\n".join(lines)


def _indented(text: str) -> str:
    """Return the text of a definition, with its further lines indented."""
    return text.replace("\n", "\n    ")


def _arguments(owner: type) -> list[Parameter]:
    """Return the arguments of a strategy class's constructor."""
    options = {option.name: option for option in declared(owner).values()}
    arguments = []
    for name, parameter in list(inspect.signature(owner.__init__).parameters.items())[1:]:
        if name in options:
            arguments.append(_of_option(options[name]))
        else:
            about = _about(_annotation(parameter.annotation), _default(owner, parameter))
            arguments.append(Parameter(name, about, _sentence(OBJECTS[name])))
    return arguments


def _client_options(owner: type) -> list[Option]:
    """Return the options of a strategy's client that are not the strategy's own."""
    methods = [method for method in METHODS.values() if method.strategy_class is owner]
    if not methods:
        return []
    own = {option.name for option in declared(owner).values()}
    options = declared(methods[0].client_class).values()
    return [option for option in options if option.name not in own]


def _of_option(option: Option) -> Parameter:
    """Return a declared option as a parameter."""
    kinds = " or ".join(kind.__name__ for kind in option.kinds if kind is not type(None))
    limits = f", {option.limits}" if option.limits else ""
    about = _about(f"`{kinds}`", option.default) + limits
    return Parameter(option.name, about, _sentence(option.meaning))


def _documented(function: Any) -> list[Parameter]:
    """Return the parameters of a function or class; raise a KeyError for an undescribed one."""
    shared = coprefl_flwr.partition if function is coprefl_flwr.tasks else None
    rows = {**(dict(_rows(shared)) if shared else {}), **_texts(function), **dict(_rows(function))}
    declarations = declared(function).values() if _is_class(function) else ()
    options = {option.name: option for option in declarations}
    settings = {setting.name: setting.meaning for setting in declared(Settings).values()}
    documented = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if name in options and name not in rows:
            documented.append(_of_option(options[name]))
            continue
        shown = f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name
        kind, meaning = rows.get(shown) or ("", settings.get(name, ""))
        if not (kind or meaning):
            problem = f"{function.__name__}: nothing describes the parameter {name}"
            raise KeyError(f"{problem}: its docstring or docs/parameters.toml should")
        if not meaning or meaning[0].islower():  # The type is the beginning of the text.
            kind, meaning = "", f"{kind} {meaning}".strip()
        shown_type = _type(kind) or _annotation(parameter.annotation)
        about = _about(shown_type, _default(function, parameter), kind)
        documented.append(Parameter(shown, about, _sentence(meaning)))
    return documented


def _is_class(function: Any) -> bool:
    return isinstance(function, type)


def _texts(function: Any) -> dict[str, tuple[str, str]]:
    """Return the texts in `TEXTS` for a function, or for a class and its bases."""
    owners = reversed(function.__mro__) if _is_class(function) else [function]
    texts = {name: text for owner in owners for name, text in TEXTS.get(owner.__name__, {}).items()}
    return {name: ("", text) for name, text in texts.items()}


def _default(function: Any, parameter: inspect.Parameter) -> Any:
    """Return the default of a parameter; a default_factory is called."""
    if dataclasses.is_dataclass(function):
        for field in dataclasses.fields(function):
            if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
                return field.default_factory()
    return parameter.default


def _rows(function: Any, title: str = "Parameters") -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the rows of a section of a docstring in NumPy's style: name, type and text."""
    text = inspect.cleandoc(function.__doc__)
    section = re.search(rf"^{title}\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", text, re.S | re.M)
    if not section:
        return
    for row in re.finditer(r"^(\S[^\n]*)\n((?:[ ]+[^\n]*\n?|\n)*)", section[1], re.M):
        head, body = row[1], inspect.cleandoc(row[2])
        names, _, kind = head.partition(" : ")
        kinds = kind.split(", ") if kind.count(",") == names.count(",") else []
        for number, name in enumerate(names.split(", ")):
            yield name, (kinds[number] if kinds else kind, body)


def _type(text: str) -> str:
    """Return the type in a docstring: an expression as code, words unchanged."""
    text = re.sub(r", optional$", "", text.strip())
    if re.search(r" (or|and) ", text):
        return text
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return text
    return f"`{text}`" if text else ""


def _annotation(annotation: Any) -> str:
    """Return an annotation as code, without the modules of its classes."""
    if annotation is inspect.Parameter.empty or annotation is Any:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"(\w+\.)+(?=\w)", "", text).replace("'", "")
    text = re.sub(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[\w+\]\]|NDArray\[Any\]", "ndarray", text)
    return f"`{text.removesuffix(' | None')}`"


def _about(kind: str, default: Any, text: str = "") -> str:
    """Return the type and the default of a parameter."""
    if default is inspect.Parameter.empty:
        shown = ""
    elif default is None:
        shown = "" if "not set" in text else "not set"
    elif default in ((), {}):
        shown = "default none"
    else:
        simple = isinstance(default, bool | int | float | str)
        shown = f"default `{default!r}`" if simple else f"default `{type(default).__name__}()`"
    return ", ".join(part for part in (kind, shown) if part)


def _sentence(text: str) -> str:
    """Return a meaning as a sentence."""
    if not text:
        return ""
    text = text[0].upper() + text[1:] if not text.startswith("`") else text
    return text if text.endswith((".", ":", "`)")) else f"{text}."


PREFIXES: Mapping[str, typing.Callable[[str], str]] = {
    "parameters of ": parameters,
    "arguments of ": arguments,
}
"""{beginning of a part's name in a page: function that writes the part}."""
