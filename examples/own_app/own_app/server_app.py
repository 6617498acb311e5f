"""What the server does."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from own_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a global model."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)
    result = strategy.start(
        grid, ArrayRecord(Net().state_dict()), num_rounds=int(context.run_config["num-rounds"])
    )
    torch.save(result.arrays.to_torch_state_dict(), "model.pt")
