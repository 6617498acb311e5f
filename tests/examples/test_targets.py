"""The examples of other targets than classes, with fewer rounds."""

import importlib.util

import pytest

from tests.common.simulation import ROOT


def example(name):
    """Return the module of an example of `examples/targets`."""
    file = ROOT / "examples" / "targets" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"targets_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "metric", "sign", "rounds"),
    [
        ("regression", "absolute_error", -1, (20, 5)),
        ("multi_label", "f1", 1, (25, 3)),
        ("segmentation", "overlap", 1, (12, 1)),
    ],
)
def test_pre_trained_starts_are_better_in_their_measure(name, metric, sign, rounds):
    module = example(name)
    result = module.main(*rounds)
    means = result.summary()[f"metric:{metric}"]
    assert sign * (means["fedavg"] - means["random"]) > 0
    assert "correct" not in result.rows
    worst = result.summary()[f"metric:{metric}:worst-10%"]
    assert (sign * (means - worst) >= 0).all()
    title = getattr(module, metric).title
    assert title in str(result)
    assert "Accuracy" not in str(result)
