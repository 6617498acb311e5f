"""Hostile replies in Flower's simulation: in other processes, and through its serialisation."""

import json
import re
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path

import numpy as np

from coprefl_flwr.simulation import simulated
from tests.chaos.behaviours import EVALUATE, FIT, QUERY, clients_behave
from tests.chaos.hostile import CLIENTS, TYPES, accuracy_of, by_numpy, check_arrays, check_lines
from tests.chaos.tally import Case

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOGETHER = 30
"""Cases of a simulation, which takes some 20 seconds to start and to end."""
EXIT = "os._exit"
WHERE = {FIT: 0, QUERY: 2, EVALUATE: 4}


def cases(seed, count, folder) -> Iterator[Case]:
    """Yield each behaviour, at one node a client and at nodes of several, then `os._exit`."""
    for clients, every in ((0, 1), (5, 3)):
        told = list(behaviours(clients))[:count:every]
        for first in range(0, len(told), TOGETHER):
            yield from together(told[first : first + TOGETHER], clients, folder)
    for exchange in WHERE:
        yield from together([about("coprefl", exchange, EXIT, 0)], 0, folder)


def behaviours(clients):
    """Return cases: every behaviour in one exchange, in another where nodes host several."""
    exchanges = (FIT, QUERY, EVALUATE)
    done = set()
    for number, exchange in enumerate(exchanges * 2):
        names = [name for name in clients_behave(exchange) if name not in done]
        for position, name in enumerate(names):
            if position % 3 == (number + bool(clients)) % 3 or number >= len(exchanges):
                done.add(name)
                yield about("coprefl" if exchange == QUERY else "fedavg", exchange, name, clients)


def about(strategy, exchange, behaviour, clients):
    hostile = WHERE[exchange]
    hosting = f"{clients} clients of all nodes" if clients else "a client a node"
    case = f"{strategy}, {hosting}, {exchange}, client {hostile}: {behaviour}"
    return {
        "case": case, "strategy": strategy, "exchange": exchange, "behaviour": behaviour,
        "hostile": hostile,
    }  # fmt: skip


def together(told, clients, folder) -> Iterator[Case]:
    """Yield the cases of one simulation, which is run when the first of them is."""
    found = {}
    for one in told:

        def check(one=one):
            if not found:
                found.update(run(told, clients, folder))
            assert one["case"] in found, f"it did not come so far: {found['output'][-300:]}"
            check_case(one, found[one["case"]])

        yield Case(one["case"], check)


def run(told, clients, folder):
    """Return {case: what it came to} of a simulation."""
    place = folder / f"simulation-{len(list(folder.iterdir()))}"
    place.mkdir()
    (place / "cases.json").write_text(json.dumps(told))
    results = place / "results.jsonl"
    config = f"cases='{place / 'cases.json'}' results='{results}' clients={clients}"
    done = simulated(
        [HERE / "hostile_app", "2" if clients else "5", "-c", config],
        place,
        {
            "PYTHONPATH": str(ROOT),
            "FEDERATION_CONFIG": "init-args-num-cpus=2",
            "OMP_NUM_THREADS": "1",
        },
    )
    lines = results.read_text().splitlines() if results.exists() else []
    return {one["case"]: one for one in map(json.loads, lines)} | {"output": done.stdout}


def check_case(case, found):
    assert "error" not in found, found["error"]
    bad = {case["hostile"]}
    if case["behaviour"] == EXIT:
        check_exit(case, found)
        return
    check_lines(found["lines"], bad)
    good = {
        one: [i for i in CLIENTS if i not in bad] if one == case["exchange"] else list(CLIENTS)
        for one in TYPES
    }
    check_arrays(found["arrays"], by_numpy(case["strategy"], good, rounds=1))
    np.testing.assert_allclose(found["accuracy"], accuracy_of(good[EVALUATE]))


def check_exit(case, found):
    """Check a run in which a client takes its worker with it.

    Flower goes on to hand clients to the dead worker, which fail with it: each is named, and what
    the run comes to is exactly what those make who did not.
    """
    named = {int(n) for line in found["lines"] for n in re.findall(r"^client (\d+) on", line)}
    assert case["hostile"] in named
    check_lines(found["lines"], named)
    others = named - {case["hostile"]}
    exchanges = list(TYPES)[list(TYPES).index(case["exchange"]) :]
    possible = [set(some) for k in range(len(named) + 1) for some in combinations(named, k)]
    for bad in product(possible, repeat=len(exchanges)):
        if case["hostile"] not in bad[0] or not others <= set().union(*bad):
            continue
        lost = dict(zip(exchanges, bad, strict=True))
        good = {one: [i for i in CLIENTS if i not in lost.get(one, ())] for one in TYPES}
        if not (good[EVALUATE] and set(good[QUERY]) & set(good[FIT])):
            continue
        expected = by_numpy(case["strategy"], good, rounds=1)
        same = all(np.allclose(found["arrays"][k], a, rtol=1e-5) for k, a in expected.items())
        if same and np.isclose(found["accuracy"], accuracy_of(good[EVALUATE])):
            return
    raise AssertionError(f"no sum of clients that are not named: {found}")
