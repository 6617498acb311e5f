"""Hostile replies in Flower's simulation, which runs clients in other processes and serialises."""

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
"""Number of cases in a simulation, because a simulation takes some 20 seconds to start and end."""
EXIT = "os._exit"
WHERE = {FIT: 0, QUERY: 2, EVALUATE: 4}
"""The hostile client of each exchange."""


def parts(seed, most):
    """Return (clients, cases) of each simulation.

    `clients` is the number of clients that all nodes share, or 0 if each node has its own client.
    Every behaviour is in one exchange, and a third of the behaviours are also in a simulation whose
    nodes host several clients. `os._exit`, which ends a worker, has separate simulations.
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
    """Run a strategy for one round, and check that only the hostile client is missing."""
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
    """Yield the possible good clients of each exchange, after a client has ended its worker.

    `exchanges` are the exchange in which the worker ended and the exchanges after it. Flower
    continues to hand clients to the dead worker, and these clients fail too. The log names each of
    them, and the result is exactly the result of the clients that did not fail.
    """
    some = [set(one) for k in range(len(bad) + 1) for one in combinations(bad, k)]
    for lost in product(some, repeat=len(exchanges)):
        of = dict(zip(exchanges, lost, strict=True))
        good = {one: [i for i in CLIENTS if i not in of.get(one, ())] for one in TYPES}
        enough = good[EVALUATE] and set(good[QUERY]) & set(good[FIT])
        if hostile in lost[0] and bad <= set().union(*lost) and enough:
            yield good
