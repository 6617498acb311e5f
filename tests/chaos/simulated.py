"""Hostile replies in Flower's simulation: in other processes, and through its serialisation."""

import json
import random
import re
import time
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.simulation import simulated
from coprefl_flwr.strategies import CoPreFL, FedAvg
from tests.chaos import length
from tests.chaos.behaviours import EVALUATE, FIT, QUERY, clients_behave
from tests.chaos.hostile import (
    CLIENTS,
    TYPES,
    Heard,
    accuracy_of,
    by_numpy,
    check_lines,
    good_without,
    strategy_of,
)
from tests.common.replies import START

HERE = Path(__file__).parent
TOGETHER = 30
"""Cases of a simulation, which takes some 20 seconds to start and to end."""
EXIT = "os._exit"
WHERE = {FIT: 0, QUERY: 2, EVALUATE: 4}
"""The hostile client of each exchange."""


def parts(seed, most):
    """Return (clients of all nodes, or 0 where each has its own; cases) of each simulation.

    Every behaviour is in one exchange, a third of them also where nodes host several clients;
    `os._exit`, which ends a worker, has simulations of its own.
    """
    rng = random.Random(seed)
    known = {}
    for exchange in WHERE:
        for name in clients_behave(exchange):
            known.setdefault(name, []).append(exchange)
    found = []
    for clients, every in ((0, 1), (5, 3)):
        cases = [(rng.choice(exchanges), name) for name, exchanges in known.items()]
        cases = rng.sample(cases, min(most, len(cases)) // every)
        found += [(clients, cases[at : at + TOGETHER]) for at in range(0, len(cases), TOGETHER)]
    return found + [(0, [(exchange, EXIT)]) for exchange in WHERE]


MOST = length.LENGTHS.get("simulated", 0)


@pytest.mark.parametrize("part", range(len(parts(length.SEED, MOST))))
def test_what_a_client_answers_costs_it_alone(part, tmp_path):
    clients, cases = parts(length.SEED, MOST)[part]
    results = tmp_path / "results.jsonl"
    config = f"results='{results}' seed={length.SEED} most={MOST} part={part} clients={clients}"
    environment = {"PYTHONPATH": str(HERE.parents[1]), "FEDERATION_CONFIG": "init-args-num-cpus=2"}
    app = [HERE / "hostile_app", "2" if clients else "5", "-c", config]
    begun = time.monotonic()
    done = simulated(app, tmp_path, environment | {"OMP_NUM_THREADS": "1"})
    found = [json.loads(line) for line in results.read_text().splitlines()]
    wrong = [f"{case}: {why}" for case, why in found if why]
    held = len(found) - len(wrong)
    length.COUNTS["simulated"].add(len(cases), held, time.monotonic() - begun)
    assert not wrong
    assert len(found) == len(cases), f"it did not come so far: {done.stdout[-300:]}"


# ---- within the simulation ----------------------------------------------------------------------


def check_case(grid, clients, exchange, behaviour):
    """Run a strategy of one round, and check that the hostile client is all that is missing."""
    of, hostile = (CoPreFL if exchange == QUERY else FedAvg), WHERE[exchange]
    strategy = strategy_of(
        of, min_available_nodes=2 if clients else 5, participants=5, clients=clients or None
    )
    asked = ConfigRecord({"exchange": exchange, "behaviour": behaviour, "hostile": hostile})
    with Heard() as heard:
        result = strategy.start(grid, to_record(START), 1, 60.0, asked, asked)
    arrays = from_record(result.arrays)
    accuracy = result.evaluate_metrics_clientapp[1]["accuracy"]

    def same(good):
        expected = by_numpy(of, good, rounds=1)
        return np.isclose(accuracy, accuracy_of(good[EVALUATE])) and all(
            np.allclose(arrays[name], array, rtol=1e-5) for name, array in expected.items()
        )

    bad = {hostile}
    possible = [good_without(bad, exchange)]
    if behaviour == EXIT:
        bad = {int(n) for line in heard.lines for n in re.findall(r"^client (\d+) on", line)}
        possible = without_some(bad, hostile, list(TYPES)[list(TYPES).index(exchange) :])
    check_lines(heard.lines, bad)
    assert hostile in bad
    assert any(same(good) for good in possible), f"{arrays}, accuracy {accuracy}: {heard.lines}"


def without_some(bad, hostile, exchanges):
    """Yield the good clients of exchanges from that on in which a client takes its worker with it.

    Flower goes on to hand clients to the dead worker, which fail with it: each is named, and what
    the run comes to is exactly what those make who did not.
    """
    some = [set(one) for k in range(len(bad) + 1) for one in combinations(bad, k)]
    for lost in product(some, repeat=len(exchanges)):
        of = dict(zip(exchanges, lost, strict=True))
        good = {one: [i for i in CLIENTS if i not in of.get(one, ())] for one in TYPES}
        enough = good[EVALUATE] and set(good[QUERY]) & set(good[FIT])
        if hostile in lost[0] and bad <= set().union(*lost) and enough:
            yield good
