"""A recipe to begin with: `new.yaml`, in which every key of a recipe is explained."""

from pathlib import Path

from coprefl_flwr.errors import SettingsError

TEMPLATE = Path(__file__).with_name("new.yaml")


def write_new(name: Path) -> Path:
    """Write the recipe to NAME.yaml and return its path; a SettingsError where that is there."""
    if name.name in ("", ".."):
        raise SettingsError(f"{str(name)!r} cannot name a recipe: give a name such as mine.yaml")
    path = name if name.suffix in (".yaml", ".yml") else name.with_name(f"{name.name}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise SettingsError(f"{path} is there already; give another name") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
    return path
