"""The schema of a recipe file: pydantic models to check a file, and a JSON Schema for editors.

`coprefl schema` prints the JSON Schema, which the package has as `recipe.schema.json`. A recipe is
validated when its overlays are merged. The options of its rows are validated with `choices_type`
too, when their methods are known (see `load`).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
    with_config,
)
from typing_extensions import TypedDict

from coprefl_flwr.errors import SettingsError, excerpt, unknown
from coprefl_flwr.methods import METHODS
from coprefl_flwr.named import Named
from coprefl_flwr.options import COUNT, NUMBERS, WORDS, Option, Value, declared
from coprefl_flwr.recipes.yaml_file import Keys, Places
from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.report.figures import FIGURES
from coprefl_flwr.studies.settings import Settings, check_known

ELSEWHERE = {
    "seed": "the recipe's key 'seeds'",
    "method": "the recipe's key 'methods'",
    "run-name": "--out",
    "output-dir": "--out",
    "resume": "the same command again, which continues the runs",
}
"""Settings that a recipe cannot set, each with the key or the option to use instead."""

# ---- settings and options: one value, or a list of values --------------------------------------

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _schema_of(values: Sequence[Mapping[str, Any]], fewest: int = 1) -> dict[str, Any]:
    """Return the JSON Schema of one value, or of a list of at least `fewest` of such values."""
    several = {"type": "array", "items": {"anyOf": values}, "minItems": fewest}
    return {"anyOf": [*values, several]}


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
    return {"description": option.meaning + unit, **_schema_of(different)}


def choices_type(options: Mapping[str, Option]) -> Any:
    """Return the Pydantic type of a mapping of options, which has the list of values of each."""
    types = {key: _values_type(option) for key, option in options.items()}
    choices = TypedDict("Settings", types, total=False)  # type: ignore[misc]
    return with_config(ConfigDict(extra="forbid"))(choices)


def _values_type(option: Option) -> Any:
    one = Annotated[Any, AfterValidator(partial(_typed, option))]
    listed = Annotated[list[one], BeforeValidator(partial(_values, option)), Field(min_length=1)]
    return Annotated[listed, AfterValidator(_unique), WithJsonSchema(option_schema([option]))]


def _values(option: Option, entry: Any) -> list[Any]:
    """Return the values in an entry of a file: a value, or a list of values.

    A list in this list becomes the text of one value, such as "list:8,9".
    """
    entries = _listed(entry)
    numbers = [value for value in entries if type(value) is int]
    if COUNT in option.takes and len(numbers) > 1:
        texts = [str(number) for number in numbers]
        raise ValueError(f"write [{numbers}] for these classes, or {texts} to compare the numbers")
    values: list[Any] = []
    for value in entries:
        nested = isinstance(value, list) and value and isinstance(entry, list)
        if nested and NUMBERS in option.takes and all(type(number) is int for number in value):
            value = "list:" + ",".join(map(str, value))
        elif nested and WORDS in option.takes:
            value = " ".join(map(str, value))
        values.append(value)
    return values


def _typed(option: Option, value: Any) -> Value:
    """Return a value in the type of its option; raise a SettingsError if it is not allowed."""
    if isinstance(value, dict) and "method" in value:  # A method within a method.
        options = {name: inner for name, inner in value.items() if name != "method"}
        value = Named(str(value["method"])).having(options)
    typed: Value | None = option.read(value)
    return "" if typed is None else typed


def _listed(value: Any) -> list[Any]:
    """Return `value` if it is a list, or else a list with this single value."""
    return value if isinstance(value, list) else [value]


def _unique(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values, which must be different, as a tuple."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value} occurs twice")
    return tuple(values)


SettingsPart: Any = choices_type(
    {k: o for k, o in declared(Settings).items() if k not in ELSEWHERE}
)
"""The settings of a recipe; each has the tuple of its values."""


def _options_type() -> Any:
    """Return the Pydantic type of options of methods, which are validated with their methods."""
    known = {key: [option] for key, option in declared(Settings).items()}
    for method in METHODS.values():
        for key, option in method.options.items():
            known.setdefault(key, []).append(option)
    types = {k: Annotated[Any, WithJsonSchema(option_schema(every))] for k, every in known.items()}
    options = TypedDict("Options", types, total=False)  # type: ignore[misc]
    return with_config(ConfigDict(extra="allow"))(options)  # Users' methods have other options.


Options = _options_type()


# ---- the parts of a file -------------------------------------------------------------------------


def _seeds(value: Any) -> Any:
    """Return a list of seeds; refuse a number above 0, which may be a seed or a number of seeds."""
    if type(value) is int and value > 0:
        raise ValueError(
            f"{value}: write [{value}] for the single seed {value}, [0, 1] for two seeds"
        )
    return _listed(value)


Select = Literal["validation", "test", "all"]
SearchBy = Literal["all", "halving", "optuna"]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
AtLeast0 = Annotated[int, Strict(), Field(ge=0)]
AtLeast1 = Annotated[int, Strict(), Field(ge=1)]
Texts = Annotated[
    list[Text],
    BeforeValidator(_listed),
    Field(min_length=1),
    WithJsonSchema(_schema_of([{"type": "string", "minLength": 1}])),
]
Seeds = Annotated[
    list[AtLeast0],
    BeforeValidator(_seeds),
    Field(min_length=1),
    AfterValidator(_unique),
    WithJsonSchema(_schema_of([{"type": "integer", "minimum": 0}])),
]
Figures = Annotated[
    list[Literal[*FIGURES]],  # type: ignore[valid-type]
    BeforeValidator(_listed),
    WithJsonSchema(_schema_of([{"enum": list(FIGURES)}], fewest=0)),
]
Rows = Annotated[
    dict[str, Options],
    Field(min_length=1),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {"type": "object", "maxProperties": 1}]},
            "minItems": 1,
        }
    ),
]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )


class Overlay(_Part):
    """Keys that are merged into a recipe; an empty value removes a key."""

    settings: dict[str, Any] = {}  # Validated when it is merged.
    methods: dict[str, Options | None] = Field({}, description="options, by row")
    search: Options | None = None
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
    where: SettingsPart = {}
    rows: Annotated[dict[str, Any], Field(min_length=1)]


class Paper(_Part):
    """The tables that the paper printed, and their columns."""

    columns: Texts
    tables: list[PrintedTable] = Field(min_length=1)


class RecipeFile(_Part):
    """A comparison of methods of federated pre-training, or of personalised methods."""

    title: Text
    source: Text | None = Field(None, description="the paper and its table")
    settings: SettingsPart
    methods: Rows = Field(
        description="the rows of a table: METHOD, or LABEL: {method: METHOD, OPTION: VALUE}"
    )
    search: Options = Field({}, description="values to search, for every method that has them")
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
    figures: Figures = []
    protocols: dict[str, Protocol] = {}
    small: Overlay | None = Field(None, description="keys that replace others with `--scale small`")
    paper: Paper | None = None
    protocol: Text | None = Field(None, description="set by `coprefl run`: its --protocol")
    scale: Text | None = Field(None, description="set by `coprefl run`: its --scale")


KEYS = tuple(name.replace("_", "-") for name in RecipeFile.model_fields)
"""The top-level keys of a recipe."""

_PARTS: dict[str, Any] = {
    "protocols": Protocol,
    "small": Overlay,
    "paper": Paper,
    "tables": PrintedTable,
    "settings": SettingsPart,
    "where": SettingsPart,
}


def validated(kind: Any, value: Any, places: Places, keys: Keys = ()) -> Any:
    """Return a part of a recipe as the Pydantic type `kind`; `keys` are the part's place.

    Raises a SettingsError with the line of the first mistake. `places` has the lines of the keys.
    """
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        # Unknown keys come first: a misspelt key explains why a required key is missing.
        first = min(error.errors(), key=lambda error: error["type"] != "extra_forbidden")
        with places.at(*keys, *first["loc"]):
            _refuse(kind, first)


def _refuse(kind: Any, error: Mapping[str, Any]) -> NoReturn:
    """Raise a SettingsError with Pydantic's message, the key and the value, or the nearest name."""
    names = [key for key in error["loc"] if isinstance(key, str)] or ["a recipe"]
    key, why = names[-1], error["type"]
    if why == "extra_forbidden":
        part = next((_PARTS[name] for name in reversed(names[:-1]) if name in _PARTS), kind)
        if part is SettingsPart and key in ELSEWHERE:
            raise SettingsError(f"'{key}' is no setting of a recipe: use {ELSEWHERE[key]}")
        if part is SettingsPart:
            check_known(key)
        is_file = isinstance(part, type) and issubclass(part, BaseModel)
        known = part.model_fields if is_file else part.__annotations__
        what = "key" if is_file else "setting"
        raise SettingsError(unknown(what, key, [name.replace("_", "-") for name in known]))
    problem = error.get("ctx", {}).get("error")
    if isinstance(problem, SettingsError):
        raise problem
    if why == "literal_error":
        allowed = re.findall("'(.*?)'", error["ctx"]["expected"])
        raise SettingsError(f"{key}: {unknown('value', str(error['input']), allowed)}")
    if why == "missing":
        raise SettingsError(f"{'.'.join(names)}: {error['msg']}")
    message = problem or error["msg"]
    raise SettingsError(f"{key} = {excerpt(error['input'])}: {message}")


# ---- JSON Schema ---------------------------------------------------------------------------------


def recipe_schema() -> str:
    """Return the JSON Schema of a recipe file, as indented JSON text."""
    schema = RecipeFile.model_json_schema()
    definitions = schema["$defs"]
    settings = definitions["Settings"]["properties"]
    options = definitions["Options"]["properties"]
    options |= {key: {"$ref": f"#/$defs/Settings/properties/{key}"} for key in settings}
    for overlay in ("Overlay", "Protocol"):
        definitions[overlay]["properties"]["settings"] = {"$ref": "#/$defs/Settings"}
    row = schema["properties"]["methods"]["items"]["anyOf"][1]
    row["additionalProperties"] = {"anyOf": [{"$ref": "#/$defs/Options"}, {"type": "null"}]}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
