"""The schema of a recipe file: pydantic models to check a file, and a JSON Schema for editors.

`coprefl schema` prints the JSON Schema, which the package has as `recipe.schema.json`. A recipe is
validated when its overlays are merged. The options of its rows are validated with `choices_type`
too, when their methods are known (see `load`).
"""

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic.functional_validators import AfterValidator, BeforeValidator
from pydantic.json_schema import WithJsonSchema
from pydantic.types import Strict, StringConstraints
from typing_extensions import TypedDict

from coprefl_flwr.errors import SettingsError, excerpt, unknown
from coprefl_flwr.named import with_options
from coprefl_flwr.options import COUNT, Option, Value, declared
from coprefl_flwr.recipes.yaml_file import Keys, Places
from coprefl_flwr.report.figures import FIGURES
from coprefl_flwr.studies.choice import DRAWS, FEWEST
from coprefl_flwr.studies.known_methods import METHODS
from coprefl_flwr.studies.settings import Settings, check_known

ELSEWHERE = {
    "seed": "the recipe's key 'seeds'",
    "data-seed": "the recipe's key 'seeds'",
    "method": "the recipe's key 'methods'",
    "run-name": "--out",
    "output-dir": "--out",
}
"""Settings that a recipe cannot set, each with the key or the option to use instead."""

# ---- one value, or a list of values --------------------------------------------------------------


def _listed(value: Any) -> list[Any]:
    """Return `value` if it is a list, or else a list with this single value."""
    return value if isinstance(value, list) else [value]


def _unique(values: list[Any]) -> tuple[Any, ...]:
    """Return the values as a tuple; raise a ValueError if one of them occurs twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value} occurs twice")
    return tuple(values)


def several(one: Any, fewest: int = 1, meaning: str = "") -> Any:
    """Return the Pydantic type of a tuple of different values of the type `one`.

    A file has a list of at least `fewest` such values, or a single value without brackets.
    """
    schema = TypeAdapter(one).json_schema()
    values = schema.get("anyOf", [schema])
    array = {"type": "array", "items": {"anyOf": values}, "minItems": fewest}
    values_type = Annotated[list[one], BeforeValidator(_listed), Field(min_length=fewest)]
    schema = {"description": meaning} if meaning else {}
    schema["anyOf"] = [*values, array]
    return Annotated[values_type, AfterValidator(_unique), WithJsonSchema(schema)]


# ---- settings and options ------------------------------------------------------------------------


def option_schema(options: Iterable[Option]) -> dict[str, Any]:
    """Return the JSON Schema of a value of a setting, or of an option that several methods have."""
    values: list[dict[str, Any]] = []
    for option in options:
        if type(None) in option.kinds:
            values.append({"enum": ["", None]})
        if option.choices and not option.own:
            values.append({"enum": list(option.choices)})
        else:
            values.append(option.json_schema())
        if COUNT in option.takes:
            values.append({"type": "integer"})
        if option.takes:
            values.append({"type": "array"})
    return {"anyOf": [value for at, value in enumerate(values) if value not in values[:at]]}


@functools.cache
def option_type(*options: Option) -> Any:
    """Return the Pydantic type of the values of an option, which several methods may declare."""
    option = options[0]

    def typed(value: Any) -> Value:
        if isinstance(value, dict) and "method" in value:  # A method within a method.
            inner = {key: entry for key, entry in value.items() if key != "method"}
            value = with_options(str(value["method"]), inner.items())
        typed: Value | None = option.read(value)
        return "" if typed is None else typed

    one = Annotated[Any, AfterValidator(typed), WithJsonSchema(option_schema(options))]
    meaning = option.meaning + (f" ({option.unit})" if option.unit else "")
    return several(one, meaning=meaning)


def choices_type(options: Mapping[str, Option]) -> Any:
    """Return the Pydantic type of a mapping of options, which has the tuple of values of each."""
    types = {key: option_type(option) for key, option in options.items()}
    choices = TypedDict("Settings", types, total=False)  # type: ignore[misc]
    return with_config(ConfigDict(extra="forbid"))(choices)


SETTINGS = {key: option for key, option in declared(Settings).items() if key not in ELSEWHERE}
SettingsPart: Any = choices_type(SETTINGS)
"""The settings of a recipe; each has the tuple of its values."""


def _options_type() -> Any:
    """Return the Pydantic type of options of methods, which are validated with their methods."""
    known = {key: [option] for key, option in SETTINGS.items()}
    for method in METHODS.values():
        for key, option in method.declared_options.items():
            known.setdefault(key, []).append(option)
    schemas = {key: TypeAdapter(option_type(*every)).json_schema() for key, every in known.items()}
    types = {key: Annotated[Any, WithJsonSchema(schema)] for key, schema in schemas.items()}
    options = TypedDict("Options", types, total=False)  # type: ignore[misc]
    return with_config(ConfigDict(extra="allow"))(options)  # Users' methods have other options.


Options: Any = _options_type()


# ---- the parts of a file -------------------------------------------------------------------------


Select = Literal["validation", "test", "all"]
SearchBy = Literal["all", "halving"]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
AtLeast0 = Annotated[int, Strict(), Field(ge=0)]
AtLeast1 = Annotated[int, Strict(), Field(ge=1)]
Above0 = Annotated[float, Strict(), Field(gt=0)]
Texts: Any = several(Text)
# Not `several`: a single 2 might mean the seed 2, or two seeds.
SeedList: Any = Annotated[list[AtLeast0], Field(min_length=1), AfterValidator(_unique)]


def _from_0(value: Any) -> Any:
    """Return the seeds 0 to N - 1 for a number N of seeds; another value unchanged."""
    return list(range(value)) if type(value) is int and value > 0 else value


_SCHEMA = {"anyOf": [TypeAdapter(AtLeast1).json_schema(), TypeAdapter(SeedList).json_schema()]}
SeedCount: Any = Annotated[SeedList, BeforeValidator(_from_0), WithJsonSchema(_SCHEMA)]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )


class CrossedSeeds(_Part):
    """Seeds of the data and of the training: there is a run for each pair. N means 0 to N - 1."""

    data: SeedCount = Field((0,), description="seeds of clients and tasks (data-seed)")
    training: SeedCount = Field((0,), description="seeds of weights, participants, order, noise")

    def __str__(self) -> str:
        return f"data {[*self.data]}, training {[*self.training]}"


def _seeds(value: Any) -> Any:
    """Return a list of seeds, or crossed seeds; Pydantic keeps the places of errors inside."""
    kind = CrossedSeeds if isinstance(value, dict) else SeedList
    return TypeAdapter(kind).validate_python(value)


_SCHEMAS = [TypeAdapter(kind).json_schema() for kind in (SeedList, CrossedSeeds)]
Seeds: Any = Annotated[Any, AfterValidator(_seeds), WithJsonSchema({"anyOf": _SCHEMAS})]


class Overlay(_Part):
    """Keys that are merged into a recipe; an empty value removes a key."""

    settings: dict[str, Any] = {}  # Validated when it is merged.
    methods: dict[str, Options | None] = Field({}, description="options, by row")
    search: Options | None = None
    select: Select | None = None
    search_by: SearchBy | None = None
    seeds: Seeds | None = None
    metrics: Texts | None = None
    reference: Text | None = None


class Protocol(Overlay):
    """An overlay with its reason, `because`, and a quantity that is equal in all rows, `equal`."""

    because: Text
    equal: Literal["step-size"] | None = None
    small: Overlay | None = None


class PrintedTable(_Part):
    """A table of the paper: its values by row, and the settings to which the table applies."""

    table: Text | int = ""
    where: SettingsPart = {}
    rows: Annotated[dict[str, Any], Field(min_length=1)]


class Paper(_Part):
    """The tables that the paper printed, and their columns.

    Tables and rows that the recipe does not have are left out.
    """

    columns: Texts
    tables: list[PrintedTable] = Field(min_length=1)


class ChoiceOfStart(_Part):
    """What `coprefl choose` may use to choose one of the methods."""

    draws: Annotated[int, Strict(), Field(ge=FEWEST)] = Field(
        DRAWS, description="largest number of draws of clients and tasks"
    )
    budget: Text | None = Field(None, description='"30 minutes", "2 hours" or "5000 rounds"')


class RecipeFile(_Part):
    """A comparison of methods of federated pre-training, or of personalised methods."""

    title: Text
    source: Text | None = Field(None, description="the paper and its table")
    settings: SettingsPart
    methods: dict[str, Options] = Field(
        description="the rows of a table: METHOD, or LABEL: {method: METHOD, OPTION: VALUE}",
        min_length=1,
    )
    search: Options = Field({}, description="values to search, for every method that has them")
    select: Select = Field(
        "validation",
        description="how searched values are chosen: on validation tasks, on the reported tasks "
        "(test), or not at all (all: each value is a row)",
    )
    search_by: SearchBy = "all"
    validation_tasks: AtLeast1 = 2
    validation_seed: several(AtLeast0, meaning="seeds of the validation runs") = (100,)  # type: ignore[valid-type]
    reference: Text | None = Field(None, description="label of the row to compare with")
    seeds: Seeds = (0,)
    margin: Above0 | None = Field(None, description="smallest difference that matters, in points")
    choose: ChoiceOfStart = ChoiceOfStart(draws=DRAWS, budget=None)
    metrics: Texts = Field((), description="the columns of the tables")
    figures: several(Literal[*FIGURES], fewest=0) = ()  # type: ignore[valid-type]
    protocols: dict[str, Protocol] = {}
    small: Overlay | None = Field(None, description="keys that replace others with `--scale small`")
    paper: Paper | None = None
    protocol: Text = Field("", description="set by `coprefl run`: its --protocol")
    scale: Text = Field("", description="set by `coprefl run`: its --scale")


KEYS = tuple(name.replace("_", "-") for name in RecipeFile.model_fields)
"""The top-level keys of a recipe."""

_EVERY_KEY = dict.fromkeys(
    name.replace("_", "-")
    for part in (RecipeFile, CrossedSeeds, ChoiceOfStart, Protocol, Paper, PrintedTable)
    for name in part.model_fields
)


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
    """Raise a SettingsError with Pydantic's message and the key, or with the nearest name."""
    names = [key for key in error["loc"] if isinstance(key, str)] or ["a recipe"]
    key, problem = names[-1], error.get("ctx", {}).get("error")
    if isinstance(problem, SettingsError):
        raise problem
    if error["type"] != "extra_forbidden":
        value = "" if error["type"] == "missing" else f" = {excerpt(error['input'])}"
        raise SettingsError(f"{'.'.join(names)}{value}: {error['msg']}")
    if kind is not RecipeFile:
        raise SettingsError(unknown("setting", key, kind.__annotations__))
    if {"settings", "where"} & {*names}:
        if key in ELSEWHERE:
            raise SettingsError(f"'{key}' is no setting of a recipe: use {ELSEWHERE[key]}")
        check_known(key)
    raise SettingsError(unknown("key", key, _EVERY_KEY))


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
    of_label = definitions["Overlay"]["properties"]["methods"]["additionalProperties"]
    row = {"type": "object", "additionalProperties": of_label, "maxProperties": 1}
    schema["properties"]["methods"] = {
        "description": schema["properties"]["methods"]["description"],
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, row]},
        "minItems": 1,
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
