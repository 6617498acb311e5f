"""The server's part: pre-train with CoPreFL, and store the model and a checkpoint."""

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.federation.flower import end_log_with
from coprefl_flwr.models import model_arrays, save_model
from coprefl_flwr.strategies import CoPreFL
from coprefl_flwr.studies.settings import Settings
from deployment_app import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Pre-train with what the run-config says."""
    try:
        nodes = str(context.run_config[task.NODE_CLIENTS])
        pretrain(grid, task.settings_of(context.run_config), nodes or None)
    except (SettingsError, RunFailedError) as error:
        end_log_with(error)
        raise


def pretrain(grid: Grid, settings: Settings, node_clients: str | None) -> None:
    """Pre-train, and write the model to OUTPUT-DIR/RUN-NAME.

    A run of the same name continues after its last checkpoint.

    `node_clients` is the file that says which node is which client; with None, each names itself.

    Raises
    ------
    SettingsError
        Before the first round, if something set cannot be used.
    RunFailedError
        If a round failed too often; the checkpoint is good: run the app again to continue.
    """
    folder = Path(settings.output_dir).expanduser().resolve() / settings.run_name
    checkpoint, own = folder / "checkpoint.safetensors", task.options(settings)
    strategy = CoPreFL(
        gamma=own["gamma"],
        meta_learning_rate=own["meta-learning-rate"],
        participants=settings.participants,
        seed=settings.seed,
        run_name=settings.run_name,
        population="pretrain",
        min_available_nodes=settings.min_available_nodes,
        min_replies=settings.min_replies,
        max_failed_rounds=settings.max_failed_rounds,
        clients=node_clients,
        evaluate_every=0,  # What a start is worth is seen in tasks of new classes.
    )
    result = strategy.start(
        grid,
        to_record(model_arrays(task.initial_model(settings.seed))),
        settings.rounds,
        settings.timeout,
        checkpoint=checkpoint,
        checkpoint_every=settings.checkpoint_every,
        resume=checkpoint.exists(),
    )
    save_model(folder, from_record(result.arrays), about(settings))
    print(f"the model is in {folder}")


def about(settings: Settings) -> dict[str, Any]:
    """Return how the model was made, for its JSON."""
    return {
        "model": task.MODEL,
        "num-classes": task.NUM_CLASSES,
        "image-shape": task.IMAGE_SHAPE,
        "pixel-mean": [task.PIXEL_MEAN],
        "pixel-std": [task.PIXEL_STD],
        "method": "coprefl",
        "rounds": settings.rounds,
        "participants": settings.participants,
        **task.options(settings),
        "local-steps": settings.local_steps,
        "batch-size": settings.batch_size,
        "learning-rate": settings.learning_rate,
        "seed": settings.seed,
    }
