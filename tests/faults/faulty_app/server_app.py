"""Four rounds of FedAvg with clients that fail."""

import json
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp

from coprefl_flwr.arrays import to_record
from coprefl_flwr.strategies import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    result = FedAvg(min_available_nodes=8).start(
        grid,
        to_record({"w": np.zeros(3, np.float32)}),
        num_rounds=4,
        timeout=float(context.run_config["timeout"]),
    )
    found = {
        "w": result.arrays["w"].numpy().tolist(),
        "rounds": sorted(result.train_metrics_clientapp),
    }
    Path(str(context.run_config["result"])).write_text(json.dumps(found))
