"""A run of a strategy for each case, one after the other, each in a line of results."""

import json
from pathlib import Path

from flwr.app import ConfigRecord
from flwr.serverapp import ServerApp

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.rounds.bounds import Bounds
from tests.chaos.behaviours import LOSS_RANGE
from tests.chaos.hostile import BY_NUMPY, GAMMA, ZETA, Heard
from tests.common.replies import START

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    for case in json.loads(Path(str(config["cases"])).read_text()):
        try:
            found = run(grid, case, float(config["timeout"]), int(config["clients"]))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        with Path(str(config["results"])).open("a") as file:
            file.write(json.dumps({"case": case["case"], **found}) + "\n")


def run(grid, case, timeout, clients):
    own = {"gamma": GAMMA, "meta_learning_rate": ZETA} if case["strategy"] == "coprefl" else {}
    strategy = BY_NUMPY[case["strategy"]][0](
        min_nodes=2 if clients else 5,
        participants=5,
        evaluate_every=1,
        bounds=Bounds(loss_range=LOSS_RANGE),
        **own,
    )
    asked = {key: case[key] for key in ("exchange", "behaviour", "hostile")}
    with Heard() as heard:
        result = strategy.start(
            grid, to_record(START), 1, timeout, ConfigRecord(asked), ConfigRecord(asked)
        )
    return {
        "arrays": {name: array.tolist() for name, array in from_record(result.arrays).items()},
        "accuracy": result.evaluate_metrics_clientapp[1]["accuracy"],
        "lines": heard.lines,
    }
