"""The values that an option is tried with, each beyond one of its limits or of a wrong type."""

import pytest

from coprefl_flwr.checking.options import bad_values
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import METHODS
from coprefl_flwr.options import Option
from coprefl_flwr.places import parsed


@pytest.mark.parametrize(
    ("kinds", "limits", "bad"),
    [
        ((bool,), {}, ["many", "7", "0.5"]),
        ((str,), {}, ["true", "7", "0.5"]),
        ((str,), {"choices": ("a", "b")}, ["true", "7", "0.5", "no-such-choice"]),
        ((int,), {"minimum": 1}, ["many", "true", "0.5", "0"]),
        ((float,), {"minimum": 0, "maximum": 1}, ["many", "true", "-1", "2", "nan"]),
        ((float, type(None)), {"above": 0}, ["many", "true", "0", "nan"]),
    ],
)
def test_bad_values(kinds, limits, bad):
    one = Option("rate", "rate", None, kinds, "", **limits)
    assert bad_values(one) == bad
    for text in bad:
        with pytest.raises(SettingsError):
            one.read(parsed(text))


@pytest.mark.parametrize("name", METHODS)
def test_every_option_has_values_to_refuse(name):
    assert all(bad_values(one) for one in METHODS[name].options.values())
