"""In Flower's simulation with one client per node, a run survives every kind of failing client."""

import json
import re
from pathlib import Path

import pytest

from tests.common.simulation import simulate

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.ray
def test_run_with_failing_clients_completes_and_names_each_of_them(tmp_path):
    """Every good client adds 1 per round: four rounds make 4, whichever clients are left out."""
    result = tmp_path / "result.json"
    done = simulate(HERE, tmp_path, {"result": str(result)}, nodes=8, workers=4)
    assert done.returncode == 0, done.stdout
    assert json.loads(result.read_text()) == {"w": [4.0, 4.0, 4.0], "rounds": [1, 2, 3, 4]}

    def lines(pattern):
        return re.findall(pattern, done.stdout)

    # The worker dies in round 3; Flower may then hand it other clients, which fail with it.
    assert len(lines(r"client 1 on node \d+ is left out: ArithmeticError: boom")) >= 2
    assert len(lines(r"client 2 on node \d+ is left out: array 'w' holds a NaN")) >= 2
    assert len(lines(r"node \d+ did not answer within 20 s and is not asked again")) == 1
    # Neither Flower, which logs every failure, nor Ray may print a traceback.
    assert "Traceback" not in done.stdout
    assert len(lines(r"client 4 on node \d+ is left out: .*[Dd]ied")) >= 1
