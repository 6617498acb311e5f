"""README.md and pyproject.toml say what the code declares."""

from docs import tables


def test_they_are_as_the_command_writes_them():
    for name, change in (("README.md", tables.readme), ("pyproject.toml", tables.pyproject)):
        text = (tables.ROOT / name).read_text()
        assert change(text) == text, f"{name} is not up to date: run `make tables`"
