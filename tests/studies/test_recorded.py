"""A method's results change only with its version, under which they are stored."""

import json

import pytest

from tests import recorded

FOUND = json.loads(recorded.FILE.read_text())


@pytest.mark.parametrize(("name", "role"), recorded.CASES)
def test_a_methods_figures_are_those_recorded(name, role, tmp_path):
    key = recorded.key(name, role)
    assert key in FOUND, "run `make tables`"
    found = recorded.measured(name, role, tmp_path)
    assert found.keys() == FOUND[key].keys()
    for what, value in FOUND[key].items():
        message = f"{key}: its {what} changed: raise `version` of its strategy, then `make tables`"
        assert found[what] == pytest.approx(value, rel=1e-4), message


def test_fedpcl_without_batchnorm_is_as_it_was_before_it_had_one(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "PERSONAL", recorded.PERSONAL | {"head-norm": "none"})
    found = recorded.measured("fedpcl", "personalised", tmp_path)
    before = FOUND["fedpcl, personalised, version 1"]
    assert {what: pytest.approx(value, rel=1e-4) for what, value in before.items()} == found
