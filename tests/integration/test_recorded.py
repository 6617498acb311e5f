"""A method's results change only with its version; stored results are kept under the version."""

import json

import pytest

from coprefl_flwr.federation import LossMoments, Mean, MetricsOnly, Total
from coprefl_flwr.federation.run import Run
from coprefl_flwr.strategies import Schedule
from coprefl_flwr.studies.known_methods import METHODS
from docs.tables import needs_only_sums
from tests.records import methods as recorded

FOUND = json.loads(recorded.FILE.read_text())


@pytest.fixture
def asked(monkeypatch):
    """Return the aggregation rules of all exchanges except evaluations, by strategy class."""
    found, real = {}, Run._replies

    def replies(run, ctx, exchange, config):
        if exchange.action != "evaluate":
            of = (
                run.strategy.phase(ctx.round)[0] if type(run.strategy) is Schedule else run.strategy
            )
            found.setdefault(type(getattr(of, "inner", of)), []).append(exchange.combine)
        return real(run, ctx, exchange, config)

    monkeypatch.setattr(Run, "_replies", replies)
    return found


CASES = [
    pytest.param(*case, marks=pytest.mark.slow if case[0].endswith("-refined") else ())
    for case in recorded.CASES
]
"""Of the refined methods, which are one wrapper around others, `coprefl-sgd` is enough for a fast
run."""


@pytest.mark.parametrize(("name", "role"), CASES)
def test_figures_of_a_method_are_the_recorded_ones(name, role, tmp_path, asked):
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


def test_fedpcl_without_batchnorm_has_the_figures_of_version_1(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "PERSONAL", recorded.PERSONAL | {"head-norm": "none"})
    found = recorded.measured("fedpcl", "personalised", tmp_path)
    before = FOUND["fedpcl, personalised, version 1"]
    assert {what: pytest.approx(value, rel=1e-4) for what, value in before.items()} == found
