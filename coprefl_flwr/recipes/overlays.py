"""Read a recipe's file into one tree: with overlays and changes merged, and absolute paths of code.

In the tree, `methods` maps each label to its options. The option `method` is the method's name. The
tree is not validated yet: parts with a wrong shape stay as they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.recipes.recipe import SMALL
from coprefl_flwr.recipes.schema import KEYS
from coprefl_flwr.recipes.yaml_file import Keys, Places, parse_yaml, read_yaml
from coprefl_flwr.studies.method import Method

Tree = dict[str, Any]

ABOUT = ("because", "equal", "small")
"""Keys of a protocol that are not its overlay. Its `small` is merged after the recipe's."""

PROSE = ("title", "source", "reference", "scale", "protocol", "because", "paper")
"""Keys with prose and labels, in which no user files are looked for."""

CHANGES = "--set"
"""Start of the place of a change by the command line in messages."""

WITHOUT_PAPER = " The paper's numbers are left out, because they belong to other settings."


def read_tree(path: Path, changes: Sequence[str], scale: str, protocol: str) -> tuple[Tree, Places]:
    """Return a recipe's tree with the protocol, the small scale and the changes merged.

    The second result has the places of all values. No code that the file names is run. A
    SettingsError names the line of a mistake in the form of `methods`, or the wrong option.
    """
    tree, lines = read_yaml(path)
    places = Places(str(path), lines)
    if not isinstance(tree, dict):
        raise SettingsError(f"{path}: a recipe must be a mapping (key: value)")
    tree = _normalised(tree, path.parent, (), places)
    name = _protocol(tree, protocol)
    overlays: list[Keys] = [("protocols", name)] if name and "protocol" not in tree else []
    if scale == SMALL:
        if "small" not in tree:
            raise SettingsError(f"--scale small: {path}: the recipe has no key 'small'")
        overlays += [("small",), ("protocols", name, "small")]
    for keys in overlays:
        overlay = {key: value for key, value in _part(tree, *keys).items() if key not in ABOUT}
        places.copy(keys, ())
        tree = merge(tree, overlay)
    tree = merge(tree, {"protocol": name or None})
    for change in changes:
        tree = _changed(tree, change, places)
    if scale == SMALL:
        left_out = WITHOUT_PAPER * ("paper" in tree)
        tree = merge(tree, {"scale": f"Cut down (--scale small).{left_out}", "paper": None})
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


def _part(tree: Any, *keys: str | int) -> Tree:
    """Return the mapping at `keys`; {} if there is none, or if the value is no mapping."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def _protocol(tree: Tree, name: str) -> str:
    """Return the protocol of a recipe: `name`, or the applied one, or the first; "" for none."""
    known = _part(tree, "protocols")
    chosen = name or tree.get("protocol") or next(iter(known), "")
    if chosen not in ("", *known):
        raise SettingsError(f"--protocol: {unknown('protocol', str(chosen), known)}")
    return chosen


def _changed(tree: Tree, change: str, places: Places) -> Tree:
    """Return a recipe with one change, "KEY=VALUE", applied: the value replaces the old one."""
    key, _, text = change.partition("=")
    place = f"{CHANGES} {change}"
    if key in ("protocol", "protocols"):
        raise SettingsError(f"{place}: a protocol is chosen with --protocol NAME")
    value, lines = parse_yaml(text, place) if text else ("", {})
    keys: Keys = (key,) if key in KEYS else ("settings", key)
    places.replace(keys, lines | {(): place})
    changed = _normalised({key: value}, Path.cwd(), keys[:-1], places)
    return tree | (changed if key in KEYS else {"settings": _part(tree, "settings") | changed})


def _normalised(tree: Tree, folder: Path, keys: Keys, places: Places) -> Tree:
    """Return a tree with absolute paths of code and methods by label; `keys` are its place."""
    if "methods" in tree:
        tree = {**tree, "methods": _by_label(tree["methods"], places)}
    whole = {}
    for key, part in tree.items():
        with places.at(*keys, key):
            whole[key] = part if key in PROSE else with_whole_paths(part, folder)
    return whole


def _by_label(entries: Any, places: Places) -> dict[str, Any]:
    """Return the options of each method in a list of "NAME" and {LABEL: {OPTION: VALUE}}.

    The entries' lines in the file are also stored by label.
    """
    rows: dict[str, Any] = {}
    for at, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        with places.at("methods", at):
            label, options = entry, dict[str, Any]()
            if isinstance(entry, dict) and len(entry) == 1:
                ((label, options),) = entry.items()
            if not (isinstance(label, str) and isinstance(options, dict)):
                raise SettingsError("a method must be NAME, or LABEL: {OPTION: VALUE}")
            if label in rows:
                raise SettingsError(f"methods contains '{label}' twice: give them different labels")
        rows[label] = {"method": label, **options}
        places.copy(("methods", at), ("methods", label))
        places.copy(("methods", at, label), ("methods", label))
    return rows


def with_whole_paths(value: Any, folder: Path) -> Any:
    """Return a value in which the paths of the user's code and of starts (`file:`) are absolute.

    Paths of data stay as they are.
    """
    if isinstance(value, dict):
        return {k: v if k == "because" else with_whole_paths(v, folder) for k, v in value.items()}
    if isinstance(value, list):
        return [with_whole_paths(part, folder) for part in value]
    is_text = isinstance(value, str)
    return " ".join(_whole(word, folder) for word in value.split(" ")) if is_text else value


def _whole(word: str, folder: Path) -> str:
    """Return a word with absolute paths of the user's files, also in options and joined by "+"."""
    own = word.startswith(FILE) or ".py:" in word
    return str(Method.parse(word).resolved(folder)) if own else word
