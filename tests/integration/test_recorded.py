"""A method's results change only with its version; stored results are kept under the version."""

import json

import pytest

from coprefl_flwr.federation import LossMoments, Mean, MetricsOnly, Total
from coprefl_flwr.federation.run import Run
from coprefl_flwr.methods import METHODS
from coprefl_flwr.strategies import Schedule
from docs.tables import needs_only_sums
from tests.records import methods as recorded

FOUND = json.loads(recorded.FILE.read_text())


@pytest.fixture
def asked(monkeypatch):
    """Return the aggregation rules of all exchanges except evaluations, by strategy class."""
    found, real = {}, Run.messages

    def messages(run, ctx, exchange, config):
        if exchange.action != "evaluate":
            of = (
                run.strategy.phase(ctx.round)[0] if type(run.strategy) is Schedule else run.strategy
            )
            found.setdefault(type(getattr(of, "inner", of)), []).append(exchange.combine)
        return real(run, ctx, exchange, config)

    monkeypatch.setattr(Run, "messages", messages)
    return found


@pytest.mark.parametrize(("name", "role"), recorded.CASES)
def test_a_methods_figures_are_those_recorded(name, role, tmp_path, asked):
    """The figures of a method are the recorded figures.

    The documentation also states whether the server needs only sums of arrays. The rules of the
    exchanges must agree with this statement.
    """
    key = recorded.key(name, role)
    assert key in FOUND, "run `make tables`"
    found = recorded.measured(name, role, tmp_path)
    strategy = METHODS[name].strategy_class
    rules = asked.get(strategy, [])
    pooled = strategy.server_data in ("clients", "both")  # The server has the data.
    assert rules or pooled
    sums = all(isinstance(rule, Mean | Total | LossMoments | MetricsOnly) for rule in rules)
    assert needs_only_sums(METHODS[name]) == (sums and not pooled)
    assert found.keys() == FOUND[key].keys()
    for what, value in FOUND[key].items():
        message = f"{key}: its {what} changed: raise `version` of its strategy, then `make tables`"
        assert found[what] == pytest.approx(value, rel=1e-4), message


def test_fedpcl_without_batchnorm_is_as_it_was_before_it_had_one(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "PERSONAL", recorded.PERSONAL | {"head-norm": "none"})
    found = recorded.measured("fedpcl", "personalised", tmp_path)
    before = FOUND["fedpcl, personalised, version 1"]
    assert {what: pytest.approx(value, rel=1e-4) for what, value in before.items()} == found
