"""Run a strategy for each case; write why a case fails, or an empty text if it passes."""

import json
from pathlib import Path

from flwr.serverapp import ServerApp

from tests.chaos.simulated import check_case, parts

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    clients, cases = parts(int(config["seed"]), int(config["most"]))[int(config["part"])]
    for case in cases:
        why = ""
        try:
            check_case(grid, clients, *case)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        with Path(str(config["results"])).open("a") as file:
            file.write(json.dumps([" ".join(map(str, case)), why]) + "\n")
