"""Read a recipe's file into one tree: with overlays and changes merged, and absolute paths of code.

In the tree, `methods` maps each label to its options. The option `method` is the method's name.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.plugins import whole_path
from coprefl_flwr.recipes.recipe import SMALL
from coprefl_flwr.recipes.schema import KEYS, validated
from coprefl_flwr.recipes.yaml_file import Keys, Places, parse_yaml, read_yaml
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.results import without_folders

logger = logging.getLogger("flwr.coprefl")

Tree = dict[str, Any]

ABOUT = ("because", "equal", "below", "small")
"""Keys of a protocol that are not its overlay. Its `small` is merged after the recipe's."""

PROSE = ("title", "source", "because", "paper", "scale", "protocol")
"""Keys with prose, in which no user files are looked for."""

CHANGES = "--set"
"""Start of the place of a change by the command line in messages."""

WITHOUT_PAPER = "The paper's numbers are left out, because they belong to other settings."


def read_file(path: Path) -> tuple[Tree, Places]:
    """Return the tree of a recipe's file with nothing merged; no code that it names is run.

    The second result has the places of all values. A SettingsError names the wrong line.
    """
    tree, lines = read_yaml(path)
    places = Places(str(path), lines)
    if not isinstance(tree, dict):
        raise SettingsError(f"{path}: a recipe must be a mapping (key: value)")
    if "methods" in tree:
        tree["methods"] = _by_label(tree["methods"], ("methods",), places)
    tree = with_whole_paths(tree, path.parent, places)
    validated(tree, places)
    return tree, places


def read_tree(path: Path, changes: Sequence[str], scale: str, protocol: str) -> tuple[Tree, Places]:
    """Return a recipe's tree with the protocol, the small scale and the changes merged.

    The results are as those of `read_file`.
    """
    tree, places = read_file(path)
    tree = _with_protocol(tree, protocol, path, places)
    cut: Sequence[str] = ()
    if scale == SMALL:
        tree, cut = _cut(tree, path, places)
    for change in changes:
        tree = _changed(tree, change, places)
        validated(tree, places)
    if scale == SMALL:
        tree["scale"] = tree["scale"].replace("{}", _shown(tree, cut), 1)
    return tree, places


def merge(tree: Mapping[str, Any], overlay: Mapping[str, Any]) -> Tree:
    """Return a tree with an overlay: mappings are merged, None removes a key (RFC 7396)."""
    merged = dict(tree)
    for key, value in overlay.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _overlaid(tree: Tree, keys: Keys, overlay: Mapping[str, Any], places: Places) -> Tree:
    """Return a recipe with an overlay merged; `keys` are the overlay's place in the file."""
    places.overlay(keys)
    for label in overlay.get("methods") or ():
        if label not in tree["methods"]:
            with places.at("methods", label):
                raise SettingsError(unknown("method", label, tree["methods"]))
    return merge(tree, overlay)


def _with_protocol(tree: Tree, name: str, path: Path, places: Places) -> Tree:
    """Return a recipe with a protocol applied: its first protocol if `name` is "".

    A recipe to which a protocol was applied before is returned unchanged.
    """
    known, before = tree.get("protocols", {}), tree.get("protocol", "")
    if before and name not in ("", before):
        raise SettingsError(f"--protocol {name}: {path} already has the protocol {before} applied")
    if before and before not in known:
        with places.at("protocol"):
            raise SettingsError(f"protocol: {unknown('protocol', before, known)}")
    if name and not known:
        raise SettingsError(f"--protocol {name}: {path} has no protocols")
    if before or not known:
        return tree
    if name not in ("", *known):
        raise SettingsError(f"--protocol: {unknown('protocol', name, known)}")
    if not name:
        name, *others = known
        also = ", ".join(others) or "none"
        logger.info("protocol %s, the first; others (--protocol NAME): %s", name, also)
    about = {key: value for key, value in known[name].items() if key in ABOUT}
    overlay = {key: value for key, value in known[name].items() if key not in ABOUT}
    tree = _overlaid(tree, ("protocols", name), overlay, places)
    if "below" in about:
        stop = {"stop-at-loss": about["below"], "start-loss": True}
        tree["settings"] = {**tree["settings"], **stop}
    return {**tree, "protocol": name, "protocols": {name: about}}


def _cut(tree: Tree, path: Path, places: Places) -> tuple[Tree, list[str]]:
    """Return a recipe cut down by its overlay `small`, and the keys that the overlay sets.

    The paper's numbers are left out. The key `scale` is a note with a {} for the final values.
    """
    if "small" not in tree:
        problem = "the recipe has no key 'small', which lists the reduced settings"
        raise SettingsError(f"--scale small: {path}: {problem}")
    overlays: dict[Keys, Tree] = {("small",): tree.pop("small")}
    if of_protocol := tree.get("protocols", {}).get(tree.get("protocol"), {}).pop("small", None):
        overlays["protocols", tree["protocol"], "small"] = of_protocol
    cut: list[str] = []
    for keys, overlay in overlays.items():
        tree = _overlaid(tree, keys, overlay, places)
        cut += [*overlay.get("settings", ()), *({"seeds"} & overlay.keys())]
    scale = "Cut down (--scale small): {}."
    if tree.pop("paper", None):
        scale += f" {WITHOUT_PAPER}"
    return {**tree, "scale": scale}, cut


def _shown(tree: Tree, keys: Sequence[str]) -> str:
    """Return the values of the settings and seeds with these keys, "rounds 6; seeds 0, 1"."""
    known = {**tree["settings"], "seeds": tree.get("seeds")}
    values = {key: known[key] for key in keys if known.get(key) not in ("", None)}
    listed = {key: value if isinstance(value, list) else [value] for key, value in values.items()}
    texts = {key: map(str, map(without_folders, of_key)) for key, of_key in listed.items()}
    return "; ".join(f"{key} {', '.join(of_key)}" for key, of_key in texts.items())


def _changed(tree: Tree, change: str, places: Places) -> Tree:
    """Return a recipe with one change, "KEY=VALUE", applied."""
    key, equals, text = change.partition("=")
    place = f"{CHANGES} {change}"
    if not equals:
        raise SettingsError(f"{place}: write KEY=VALUE")
    if key in ("protocol", "protocols"):
        raise SettingsError(f"{place}: a protocol is chosen with --protocol NAME")
    value, lines = parse_yaml(text, place) if text else ("", {})
    keys = (key,) if key in KEYS else ("settings", key)
    places.replace(keys, lines | {(): place})
    if key == "methods":
        value = _by_label(value, keys, places)
    value = with_whole_paths(value, Path.cwd(), places, keys)
    part = {key: value} if key in KEYS else {"settings": {**tree["settings"], key: value}}
    return tree | part


def _by_label(entries: Any, keys: Keys, places: Places) -> dict[str, Any]:
    """Return the options of each method in a list of "NAME" and {LABEL: {OPTION: VALUE}}.

    The entries' lines in the file are also stored by label.
    """
    rows: dict[str, Any] = {}
    for at, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        with places.at(*keys, at):
            if not isinstance(entry, str | dict):
                raise SettingsError("a method must be NAME, or LABEL: {settings}")
            if isinstance(entry, dict) and len(entry) != 1:
                raise SettingsError("a method must have one label: LABEL: {settings}")
            ((label, options),) = entry.items() if isinstance(entry, dict) else [(entry, None)]
            if label in rows:
                raise SettingsError(f"methods contains '{label}' twice: give them different labels")
            if not isinstance(options, dict | None):
                raise SettingsError(f"{label} must be a mapping (key: value)")
        rows[label] = {"method": label, **(options or {})}
    labels, depth = list(rows), len(keys)
    for path, line in list(places.lines.items()):
        number, *inner = path[depth:] or [""]
        if path[:depth] == keys and isinstance(number, int):
            label = labels[number]
            inner = inner[1:] if inner[:1] == [label] else inner
            places.lines[(*keys, label, *inner)] = line
    return rows


def with_whole_paths(value: Any, folder: Path, places: Places, keys: Keys = ()) -> Any:
    """Return a value in which the paths of the user's code and of starts (`file:`) are absolute.

    Paths of data stay as they are. The method of each row becomes a `Method`.
    """
    if isinstance(value, dict):
        return {
            key: part
            if key in PROSE and "methods" not in keys
            else with_whole_paths(part, folder, places, (*keys, key))
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [
            with_whole_paths(part, folder, places, (*keys, at)) for at, part in enumerate(value)
        ]
    with places.at(*keys):
        if keys[-1:] == ("method",) and keys[-3:-2] == ("methods",):
            if not isinstance(value, str) or not value.strip():
                raise SettingsError("method must be a text")
            return Method.parse(value.replace(" ", "")).resolved(folder)
        if not isinstance(value, str):
            return value
        return " ".join(_whole(word, folder) for word in value.split(" "))


def _whole(word: str, folder: Path) -> str:
    """Return a word with absolute paths of the user's files, also in options and joined by "+"."""
    if word.startswith(FILE):
        return FILE + whole_path(word.removeprefix(FILE), folder)
    return str(Method.parse(word).resolved(folder)) if ".py:" in word else word
