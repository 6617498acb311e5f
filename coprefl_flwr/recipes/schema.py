"""The schema of a recipe file: pydantic models to check a file, and a JSON Schema for editors.

`coprefl schema` prints the JSON Schema, which the package has as `recipe.schema.json`. The settings
and the options of methods are checked later, when the whole recipe is known (see `load`). The same
declarations of settings and options are used for this check and for the JSON Schema.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    ValidationError,
    model_validator,
)

from coprefl_flwr.errors import SettingsError, excerpt, unknown
from coprefl_flwr.options import COUNT, Option, declared
from coprefl_flwr.recipes.yaml_file import Places
from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.report.figures import FIGURES
from coprefl_flwr.studies.known_methods import METHODS
from coprefl_flwr.studies.settings import Settings

ELSEWHERE = {
    "seed": "the recipe's key 'seeds'",
    "method": "the recipe's key 'methods'",
    "run-name": "--out",
    "output-dir": "--out",
    "resume": "the same command again, which continues the runs",
}
"""Settings that a recipe cannot set, each with the key or the option to use instead."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def option_schema(options: Iterable[Option]) -> dict[str, Any]:
    """Return the JSON Schema of a setting or option: one value, or a list of values to compare."""
    values: list[dict[str, Any]] = []
    for option in options:
        for kind in option.kinds:
            if kind is type(None):
                values.append({"enum": ["", None]})
            elif kind not in _TYPES:  # An object, written as a string or a mapping.
                values.append({"type": ["string", "object"]})
            elif option.choices and not option.own:
                values.append({"enum": list(option.choices)})
            else:
                limits = {"minimum": option.minimum, "maximum": option.maximum}
                limits |= {"exclusiveMinimum": option.above}
                set_ = {key: limit for key, limit in limits.items() if limit is not None}
                values.append({"type": _TYPES[kind], **set_})
        if COUNT in option.takes:
            values.append({"type": "integer"})
        if option.takes:
            values.append({"type": "array"})
    different = [value for at, value in enumerate(values) if value not in values[:at]]
    unit = f" ({option.unit})" if option.unit else ""
    several = {"type": "array", "items": {"anyOf": different}, "minItems": 1}
    return {"description": option.meaning + unit, "anyOf": [*different, several]}


# ---- the parts of a file -------------------------------------------------------------------------


def _listed(value: Any) -> Any:
    """Return `value` if it is a list, or else a list with this single value."""
    return value if isinstance(value, list) else [value]


def _seeds(value: Any) -> Any:
    """Return a list of seeds; refuse a number above 0, which may be a seed or a number of seeds."""
    if type(value) is int and value > 0:
        first = list(range(min(value, 10)))
        many = f"{first} for {value} seed{'s' * (value > 1)}" if value <= 10 else "[0, 1, ...]"
        problem = f"seeds = {value}: must be a list of seeds: write {many}"
        raise SettingsError(f"{problem}, or [{value}] for the single seed {value}")
    seeds = _listed(value)
    if any(type(seed) is int and seeds.count(seed) > 1 for seed in seeds):
        raise SettingsError("seeds contains the same seed twice")
    return seeds


Select = Literal["validation", "test", "all"]
SearchBy = Literal["all", "halving", "optuna"]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
AtLeast0 = Annotated[int, Strict(), Field(ge=0)]
AtLeast1 = Annotated[int, Strict(), Field(ge=1)]
Texts = Annotated[list[Text], BeforeValidator(_listed), Field(min_length=1)]
Seeds = Annotated[list[AtLeast0], BeforeValidator(_seeds), Field(min_length=1)]
Keyed = Annotated[dict[str, Any], Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )


class Overlay(_Part):
    """Keys that are merged into a recipe; an empty value removes a key."""

    settings: Keyed = {}
    methods: dict[str, dict[str, Any] | None] = Field({}, description="options, by row")
    search: dict[str, Any] | None = None
    select: Select | None = None
    search_by: SearchBy | None = None
    search_trials: AtLeast1 | None = None
    seeds: Seeds | None = None
    metrics: Texts | None = None
    reference: Text | None = None


class Protocol(Overlay):
    """An overlay with its reason, `because`, and a quantity that is equal in all rows, `equal`."""

    because: Text
    equal: Literal["step-size", "start-loss"] | None = None
    below: Annotated[float, Strict(), Field(gt=0)] | None = Field(
        None, description="with `equal: start-loss`: a pre-training ends at this loss, or below"
    )
    small: Overlay | None = None

    @model_validator(mode="after")
    def _check_below(self) -> "Protocol":
        if (self.equal == START_LOSS) != (self.below is not None):
            raise ValueError(f"equal: {START_LOSS} and below: LOSS must be set together")
        return self


class PrintedTable(_Part):
    """A table of the paper: its values by row, and the settings to which the table applies."""

    table: Text | int = ""
    where: dict[str, Any] = {}
    rows: Keyed


class Paper(_Part):
    """The tables that the paper printed, and their columns."""

    columns: Texts
    tables: list[PrintedTable] = Field(min_length=1)


class RecipeFile(_Part):
    """A comparison of methods of federated pre-training, or of personalised methods."""

    title: Text
    source: Text | None = Field(None, description="the paper and its table")
    settings: Keyed
    methods: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    search: dict[str, Any] = Field(
        {}, description="values to search, for every method that has them"
    )
    select: Select = Field(
        "validation",
        description="how searched values are chosen: on validation tasks, on the reported tasks "
        "(test), or not at all (all: each value is a row)",
    )
    search_by: SearchBy = "all"
    search_trials: AtLeast1 = Field(10, description="trials of each row with `search-by: optuna`")
    validation_tasks: AtLeast1 = 2
    validation_seed: AtLeast0 = 100
    reference: Text | None = Field(None, description="label of the row to compare with")
    seeds: Seeds = [0]
    metrics: Texts = Field([], description="the columns of the tables")
    figures: Annotated[list[Literal[*FIGURES]], BeforeValidator(_listed)] = []  # type: ignore[valid-type]
    protocols: dict[str, Protocol] = {}
    small: Overlay | None = Field(None, description="keys that replace others with `--scale small`")
    paper: Paper | None = None
    protocol: Text | None = Field(None, description="set by `coprefl run`: its --protocol")
    scale: Text | None = Field(None, description="set by `coprefl run`: its --scale")


KEYS = tuple(name.replace("_", "-") for name in RecipeFile.model_fields)
"""The top-level keys of a recipe."""

_PARTS: dict[str, type[_Part]] = {
    "protocols": Protocol,
    "small": Overlay,
    "paper": Paper,
    "tables": PrintedTable,
}


def validated(tree: Any, places: Places) -> RecipeFile:
    """Return the checked recipe in `tree`, the parsed YAML file.

    Raises a SettingsError with the line of the first mistake. `places` has the lines of the keys.
    """
    try:
        return RecipeFile.model_validate(tree)
    except ValidationError as error:
        # Unknown keys come first: a misspelt key explains why a required key is missing.
        errors = sorted(error.errors(), key=lambda error: error["type"] != "extra_forbidden")
        raise SettingsError(f"{places.of(*errors[0]['loc'])}: {_sentence(errors[0])}") from error


def _sentence(error: Mapping[str, Any]) -> str:
    """Return the message of a pydantic error, in the wording of this package's other errors."""
    loc, kind, value = error["loc"], error["type"], error["input"]
    names = [key for key in loc if isinstance(key, str)]
    what = names[-1] if names else "a recipe"
    limits = error.get("ctx", {})
    if kind == "extra_forbidden":
        part = next((_PARTS[name] for name in reversed(names[:-1]) if name in _PARTS), RecipeFile)
        return unknown("key", what, [name.replace("_", "-") for name in part.model_fields])
    if kind == "missing" and what == "because":
        return "a protocol needs the key 'because', which states its reason"
    if kind == "missing":
        return f"{names[-2] if len(names) > 1 else 'a recipe'} needs '{what}'"
    if kind == "literal_error":
        allowed = re.findall("'(.*?)'", limits["expected"])
        return f"{what}: {unknown('value', str(value), allowed)}"
    if kind == "value_error":
        return str(limits["error"])
    if kind == "too_short":
        return f"{what} is {'an empty list' if isinstance(value, list) else 'empty'}"
    if kind in ("int_type", "greater_than_equal"):
        limit = limits.get("ge", 1 if what in ("search-trials", "validation-tasks") else 0)
        return f"{what} = {excerpt(value)}: must be a whole number, at least {limit}"
    if kind in ("float_type", "greater_than"):
        return f"{what} = {excerpt(value)}: must be a number above 0"
    if kind in ("string_type", "string_too_short"):
        return f"{what} must be a text"
    return f"{what} must be a {'list' if kind == 'list_type' else 'mapping (key: value)'}"


# ---- JSON Schema ---------------------------------------------------------------------------------


def recipe_schema() -> str:
    """Return the JSON Schema of a recipe file, as indented JSON text."""
    known = {key: option for key, option in declared(Settings).items() if key not in ELSEWHERE}
    settings = {key: option_schema([option]) for key, option in sorted(known.items())}
    options = {key: {"$ref": f"#/$defs/Settings/properties/{key}"} for key in settings}
    of_methods: dict[str, list[Option]] = {}
    for method in METHODS.values():
        for key, option in method.declared_options.items():
            of_methods.setdefault(key, []).append(option)
    others = sorted(of_methods.keys() - options)
    options |= {key: option_schema(of_methods[key]) for key in others}
    schema = RecipeFile.model_json_schema()
    definitions = schema["$defs"]
    for part in (schema, *definitions.values()):
        part["properties"] = {key: _or_one(entry) for key, entry in part["properties"].items()}
    all_settings, row = {"$ref": "#/$defs/Settings"}, {"$ref": "#/$defs/Options"}
    by_label = {"type": "object", "additionalProperties": _or_null(row)}
    for name in ("Overlay", "Protocol"):
        parts = {"settings": all_settings, "methods": by_label, "search": _or_null(row)}
        definitions[name]["properties"] |= parts
    definitions["Settings"] = {
        "type": "object",
        "properties": settings,
        "additionalProperties": False,
    }
    definitions["Options"] = {"type": "object", "properties": options}  # User methods have others.
    schema["properties"] |= {
        "settings": all_settings,
        "methods": {
            "description": "the rows of a table: METHOD, or LABEL: {method: METHOD, OPTION: VALUE}",
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {**by_label, "maxProperties": 1}]},
            "minItems": 1,
        },
        "search": row,
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _or_one(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a list, extended to also allow a single value without brackets."""
    lists = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") == "array"]
    values = [choice["items"] for choice in lists if "$ref" not in choice["items"]]
    if not values:
        return schema
    names = ("default", "description", "title")
    about = {key: value for key, value in schema.items() if key in names}
    alone = {key: value for key, value in schema.items() if key not in names}
    return {**about, "anyOf": [*schema.get("anyOf", [alone]), *values]}
