"""Settings whose text is a list of numbers or of words, written as a YAML list within a list.

A list of values compares or is searched, so `downstream-classes: [[80, 81]]` is one value, the text
`list:80,81`, and `backbones: [[a, b], [a]]` are two, the texts `a b` and `a`.
"""

from collections.abc import Mapping

from coprefl_flwr.options import COUNT, NUMBERS, WORDS, declared
from coprefl_flwr.recipes.yaml_file import Located
from coprefl_flwr.studies.settings import Settings

PARTS = ("settings", "small")


def written_out(tree: Mapping[str, Located]) -> dict[str, Located]:
    """Return a recipe with every list within a list written out as its setting's text."""
    parts = {key: one for key, one in tree.items() if key in PARTS and isinstance(one.value, dict)}
    return dict(tree) | {
        part: one.holding({key: as_text(key, value) for key, value in one.value.items()})
        for part, one in parts.items()
    }


def as_text(key: str, entry: Located) -> Located:
    """Return a setting's value or values with each list among them as its text.

    Raises a SettingsError for a list of whole numbers where each could be a class or a count.
    """
    known = declared(Settings)
    takes = known[key].takes if key in known else ()
    if not takes or not isinstance(entry.value, list):
        return entry
    numbers = [one.value for one in entry.value if type(one.value) is int]
    if COUNT in takes and len(numbers) > 1:
        listed = ", ".join(map(str, numbers))
        counts = ", ".join(f"'{number}'" for number in numbers)
        raise entry.error(
            f"{key} = [{listed}]: write [[{listed}]] for these classes, or [{counts}] to compare "
            "so many"
        )
    return entry.holding([_one(one, takes) for one in entry.value])


def _one(entry: Located, takes: tuple[str, ...]) -> Located:
    """Return a list of numbers or of words as a text; anything else as it is."""
    values = entry.plain()
    if not isinstance(values, list) or not values:
        return entry
    if NUMBERS in takes and all(type(value) is int for value in values):
        return entry.holding("list:" + ",".join(map(str, values)))
    if WORDS in takes and all(isinstance(value, str) for value in values):
        return entry.holding(" ".join(values))
    return entry
